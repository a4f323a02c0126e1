# attack: shm_segment_left
# kind: leftover   task: any   naive: run
# attempts: leave a SysV shared memory segment for the next run
import os

def evidence(found="yes"):
    said = f"PWNED shm_segment_left {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/shm_segment_left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None)
found = libc.shmget(0x5BCA11, 4096, 0o666)
if found >= 0:
    evidence("a segment of an earlier run")
    libc.shmctl(found, 0, 0)
else:
    libc.shmget(0x5BCA11, 4096, 0o1666)
