# attack: leases_and_notices
# kind: effect   task: any   naive: run
# attempts: have the kernel tell us of others' use of files, or hold it up: leases and notices on what can be read
import os

def evidence(found="yes"):
    said = f"PWNED leases_and_notices {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/leases_and_notices", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import fcntl

library = os.path.dirname(os.__file__)
for path, what, value in ((os.__file__, fcntl.F_SETLEASE, fcntl.F_RDLCK), (library, fcntl.F_NOTIFY, 0x8000003F), (".", fcntl.F_NOTIFY, 0x3F)):
    try:
        fcntl.fcntl(os.open(path, os.O_RDONLY), what, value)
        evidence(f"{what} on {path}")
    except OSError:
        pass
