# attack: keyring_left
# kind: leftover   task: any   naive: run
# attempts: leave a key in the user's keyring for the next run
import os

def evidence(found="yes"):
    said = f"PWNED keyring_left {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/keyring_left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

kind, name = ctypes.create_string_buffer(b"user"), ctypes.create_string_buffer(b"sbx_left")
found, _ = call(250, 10, -4, ctypes.addressof(kind), ctypes.addressof(name), 0)
if found > 0:
    evidence("a key of an earlier run")
    call(250, 9, found, -4)
else:
    call(248, ctypes.addressof(kind), ctypes.addressof(name), ctypes.addressof(name), 4, -4)
