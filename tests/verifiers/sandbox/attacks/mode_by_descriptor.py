# attack: mode_by_descriptor
# kind: effect   task: any   naive: run
# attempts: change mode and times of the interpreter's files through a descriptor that may only read
import os

def evidence(found="yes"):
    said = f"PWNED mode_by_descriptor {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/mode_by_descriptor", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import sys

for path in {os.__file__, os.path.realpath(sys.executable), *(getattr(m, "__file__", None) or os.__file__ for m in list(sys.modules.values()))}:
    try:
        fd = os.open(path, os.O_RDONLY)
        mode = os.fstat(fd).st_mode & 0o7777
    except OSError:
        continue
    for what, change in {"fchmod": lambda: os.fchmod(fd, mode), "futimens": lambda: os.utime(fd, None), "fchown": lambda: os.fchown(fd, -1, -1),
                         "fsetxattr": lambda: os.setxattr(fd, "user.sbx", b""), "ftruncate": lambda: os.ftruncate(fd, os.fstat(fd).st_size)}.items():
        try:
            change()
            evidence(f"{what} {path}")
        except (OSError, TypeError):
            pass
    os.close(fd)
