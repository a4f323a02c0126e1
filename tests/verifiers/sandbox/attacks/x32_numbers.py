# attack: x32_numbers
# kind: leak   task: any   naive: run
# attempts: reach system calls by their x32 numbers
import os

def evidence(found="yes"):
    said = f"PWNED x32_numbers {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/x32_numbers", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

for number in (39, 102, 104):
    got, error = call(0x40000000 | number)
    if got >= 0:
        evidence(f"x32 call {number}")
