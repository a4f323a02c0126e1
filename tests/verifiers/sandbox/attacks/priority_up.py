# attack: priority_up
# kind: leak   task: any   naive: run
# attempts: take more of the processor: nice, real time, locked memory
import os

def evidence(found="yes"):
    said = f"PWNED priority_up {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/priority_up", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

for name, change in {
    "nice": lambda: os.nice(-5),
    "fifo": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "round robin": lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1)),
    "others of the user": lambda: os.setpriority(os.PRIO_USER, os.getuid(), 5) if os.getppid() > 2 else os.open("/none", 0),
    "mlockall": lambda: ctypes.CDLL(None).mlockall(3) and os.open("/none", 0),
}.items():
    try:
        change()
        evidence(name)
    except (OSError, TypeError, AttributeError):
        pass
