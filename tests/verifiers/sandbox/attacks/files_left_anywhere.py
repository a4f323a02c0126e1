# attack: files_left_anywhere
# kind: leftover   task: any   naive: run
# attempts: leave a file in any folder that can be written
import os

def evidence(found="yes"):
    said = f"PWNED files_left_anywhere {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/files_left_anywhere", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import sys

folders = {".", "..", "/", "/tmp", "/var/tmp", "/dev", "/dev/shm", "/run", "/run/lock", "/proc", "/sys/fs/cgroup", "/usr", "/usr/lib",
           os.path.expanduser("~"), os.path.dirname(os.__file__), *[p for p in sys.path if p], sys.prefix,
           os.environ.get("TMPDIR") or "/tmp"}
paths = sorted({os.path.realpath(folder) + "/sbx_left" for folder in folders})
for path in paths:
    try:
        if os.path.lexists(path):
            evidence(path)
            os.unlink(path)
    except OSError:
        pass
for path in paths:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
    except OSError:
        pass
