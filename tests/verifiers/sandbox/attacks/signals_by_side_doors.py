# attack: signals_by_side_doors
# kind: effect   task: any   naive: unsafe
# attempts: kill the parent by tkill, tgkill, sigqueue and pidfd_send_signal
import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

parent = os.getppid()
info = ctypes.create_string_buffer(128)
ctypes.c_int.from_buffer(info).value = 9
ctypes.c_int.from_buffer(info, 8).value = -1
call(200, parent, 9)
call(234, parent, parent, 9)
call(129, parent, 9, ctypes.addressof(info))
call(297, parent, parent, 9, ctypes.addressof(info))
handle, _ = call(434, parent, 0)
if handle >= 0:
    call(424, handle, 9, 0, 0)
call(62, -1, 9)
