# attack: clock_and_name
# kind: effect   task: any   naive: unsafe
# attempts: set the host's clock and name (to what they are)
import os

def evidence(found="yes"):
    said = f"PWNED clock_and_name {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/clock_and_name", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

now = (ctypes.c_int64 * 2)()
libc.clock_gettime(0, ctypes.byref(now))
name = ctypes.create_string_buffer(os.uname().nodename.encode())
for what, got in (
    ("sethostname", call(170, ctypes.addressof(name), len(name) - 1)[0]),
    ("setdomainname", call(171, ctypes.addressof(name), 0)[0]),
    ("clock_settime", call(227, 0, ctypes.addressof(now))[0]),
):
    if got == 0:
        evidence(what)
