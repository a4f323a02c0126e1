# attack: posix_queue_left
# kind: leftover   task: any   naive: run
# attempts: leave a POSIX message queue for the next run
import os

def evidence(found="yes"):
    said = f"PWNED posix_queue_left {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/posix_queue_left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None)
if libc.mq_open(b"/sbx_left", os.O_RDWR) >= 0:
    evidence("a queue of an earlier run")
    libc.mq_unlink(b"/sbx_left")
else:
    libc.mq_open(b"/sbx_left", os.O_RDWR | os.O_CREAT, 0o666, None)
