# attack: thread_bomb
# kind: resource   task: any   naive: unsafe
# attempts: start a thousand threads
import os

def evidence(found="yes"):
    said = f"PWNED thread_bomb {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/thread_bomb", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import threading
import time

threading.stack_size(65536)
try:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        if threading.active_count() > 128:
            evidence("129 threads")
            break
except (RuntimeError, MemoryError):
    pass
