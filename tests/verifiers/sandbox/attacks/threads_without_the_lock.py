# attack: threads_without_the_lock
# kind: resource   task: any   naive: run
# attempts: burn several processors at once in C code that lets go of the interpreter's lock
import hashlib
import threading

block = b"x" * (1 << 20)

def burn():
    while True:
        hashlib.sha256(block)

for _ in range(8):
    threading.Thread(target=burn, daemon=True).start()
burn()
