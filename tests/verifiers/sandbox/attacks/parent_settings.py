# attack: parent_settings
# kind: effect   task: any   naive: run
# attempts: change priority, processors and limits of the parent
import os

def evidence(found="yes"):
    said = f"PWNED parent_settings {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/parent_settings", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import resource

parent = os.getppid()
if parent > 2:  # 1 and 2 are this run's own, inside a PID namespace
    for name, change in {
        "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, parent, 5),
        "sched_setaffinity": lambda: os.sched_setaffinity(parent, os.sched_getaffinity(parent)),
        "prlimit": lambda: resource.prlimit(parent, resource.RLIMIT_CORE),
        "sched_setscheduler": lambda: os.sched_setscheduler(parent, os.SCHED_BATCH, os.sched_param(0)),
    }.items():
        try:
            change()
            evidence(name)
        except (OSError, AttributeError, TypeError):
            pass
