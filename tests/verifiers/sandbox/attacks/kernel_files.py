# attack: kernel_files
# kind: leak   task: any   naive: run
# attempts: learn about the host from /proc and /sys
import os

def evidence(found="yes"):
    said = f"PWNED kernel_files {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/kernel_files", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

for path in ("/proc/kallsyms", "/proc/modules", "/proc/version", "/proc/mounts", "/proc/self/mountinfo", "/proc/net/tcp",
             "/proc/self/maps", "/proc/cmdline", "/proc/meminfo", "/sys/class/dmi/id/product_uuid", "/sys/kernel/notes",
             "/etc/machine-id", "/etc/hostname", "/var/log/dpkg.log", "/root/.bashrc", "/root/.bash_history"):
    try:
        if os.read(os.open(path, os.O_RDONLY), 10):
            evidence(path)
    except OSError:
        pass
