# attack: kernel_knobs
# kind: effect   task: any   naive: run
# attempts: open the kernel's switches for writing (nothing is written)
import os

def evidence(found="yes"):
    said = f"PWNED kernel_knobs {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/kernel_knobs", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import glob

for path in ("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/self/oom_score_adj",
             "/proc/self/uid_map", "/proc/self/mem", "/proc/self/attr/current", "/sys/kernel/uevent_helper",
             *glob.glob("/sys/fs/cgroup/*/cgroup.procs"), "/sys/fs/cgroup/cgroup.procs"):
    try:
        os.open(path, os.O_WRONLY)
        evidence(path)
    except OSError:
        pass
