# attack: descriptor_flags_left
# kind: leftover   task: any   naive: run
# attempts: change flags of inherited descriptors, which a fork server's other children may share
import os

def evidence(found="yes"):
    said = f"PWNED descriptor_flags_left {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/descriptor_flags_left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import fcntl

for fd in range(64):
    try:
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        if flags & os.O_APPEND and fd != 1 or fcntl.fcntl(fd, fcntl.F_GETOWN) == os.getpid() != 0 and flags & os.O_ASYNC:
            evidence(f"flags of descriptor {fd}")
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_APPEND)
    except OSError:
        pass
