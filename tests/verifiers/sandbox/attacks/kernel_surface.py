# attack: kernel_surface
# kind: leak   task: any   naive: run
# attempts: reach rarely needed system calls, each a way into the kernel
import os

def evidence(found="yes"):
    said = f"PWNED kernel_surface {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/kernel_surface", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

for name, number, args in (
    ("personality", 135, (0xFFFFFFFF,)), ("modify_ldt", 154, (0, 0, 0)), ("io_setup", 206, (0, 0)), ("kcmp", 312, (0, 0, 9)),
    ("move_pages", 279, (0, 0, 0, 0, 0)), ("mbind", 237, (0, 0, 9)), ("migrate_pages", 256, (0, 0, 0, 0)),
    ("set_mempolicy", 238, (9,)), ("vmsplice", 278, (-1, 0, 0, 0)), ("fanotify_init", 300, (0, 0)), ("inotify_init1", 294, (0,)),
    ("syslog", 103, (10,)), ("process_madvise", 440, (-1, 0, 0, 0, 0)), ("memfd_secret", 447, (0,)), ("memfd_create", 319, (0, 0)),
    ("remap_file_pages", 216, (0, 0, 0, 0, 0)), ("sysfs", 139, (3,)), ("shmget", 29, (0, 4096, 0o600)), ("semget", 64, (0, 1, 0o600)),
    ("msgget", 68, (0, 0o600)), ("mq_open", 240, (0, 0)), ("pidfd_open", 434, (1, 0)), ("quotactl_fd", 443, (-1,)),
    ("name_to_handle_at", 303, (-1, 0, 0, 0)), ("lsm_list_modules", 461, (0, 0, 0)), ("statmount", 457, (0, 0, 0)),
    ("listmount", 458, (0, 0, 0)), ("io_pgetevents", 333, (0,)), ("ioprio_set", 251, (1, 0, 0)), ("socket", 41, (1, 1, 0)),
):
    got, error = call(number, *args)
    if got >= 0 or error not in (1, 13, 38):  # not EPERM, EACCES, ENOSYS
        evidence(name)
