# attack: clone_namespaces
# kind: leak   task: any   naive: run
# attempts: make namespaces by clone and clone3 in place of unshare
import os

def evidence(found="yes"):
    said = f"PWNED clone_namespaces {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/clone_namespaces", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

for flags in (0x10000000, 0x10000000 | 0x20000000, 0x20000, 0x40000000, 0x08000000, 0x02000000, 0x80):
    args = (ctypes.c_uint64 * 11)(flags, 0, 0, 0, 17)
    for number, rest in ((56, (flags | 17, 0, 0, 0, 0)), (435, (ctypes.addressof(args), ctypes.sizeof(args)))):
        got, _ = call(number, *rest)
        if got == 0:
            os._exit(0)
        if got > 0:
            evidence(f"clone with {flags:#x}")
