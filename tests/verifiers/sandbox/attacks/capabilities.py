# attack: capabilities
# kind: leak   task: any   naive: run
# attempts: hold capabilities, or become another user
import os

def evidence(found="yes"):
    said = f"PWNED capabilities {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/capabilities", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

head = (ctypes.c_uint32 * 2)(0x20080522, 0)
data = (ctypes.c_uint32 * 6)()
call(125, ctypes.addressof(head), ctypes.addressof(data))
data[0], data[1] = data[0] & ~4, data[1] & ~4  # an interpreter in a private folder is read by CAP_DAC_READ_SEARCH
if any(data):
    evidence(f"capabilities {list(data)}")
for name, change in {"setuid": lambda: os.setuid(0), "setgid": lambda: os.setgid(0), "setgroups": lambda: os.setgroups([0]),
                     "setresuid": lambda: os.setresuid(0, 0, 0)}.items():
    try:
        change()
        evidence(name)
    except (OSError, TypeError, AttributeError):
        pass
