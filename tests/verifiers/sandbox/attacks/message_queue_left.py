# attack: message_queue_left
# kind: leftover   task: any   naive: run
# attempts: leave a SysV message queue and a semaphore for the next run
import os

def evidence(found="yes"):
    said = f"PWNED message_queue_left {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/message_queue_left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None)
for get, control, more in ((libc.msgget, libc.msgctl, ()), (libc.semget, lambda at, what, _: libc.semctl(at, 0, what), (1,))):
    found = get(0x5BCA12, *more, 0o666)
    if found >= 0:
        evidence("of an earlier run")
        control(found, 0, 0)
    else:
        get(0x5BCA12, *more, 0o1666)
