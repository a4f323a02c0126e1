# attack: devices
# kind: leak   task: any   naive: run
# attempts: open devices that are more than null, zero and random
import os

def evidence(found="yes"):
    said = f"PWNED devices {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/devices", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

for name in ("mem", "kmem", "port", "kmsg", "ptmx", "tty", "console", "fuse", "kvm", "net/tun", "vhost-net", "vsock",
             "loop-control", "mapper/control", "nvidiactl", "dri/card0", "snd/timer", "rtc0", "hpet", "sda", "vda", "nvme0n1"):
    for how in (os.O_RDWR, os.O_RDONLY):
        try:
            os.open("/dev/" + name, how | os.O_NONBLOCK | os.O_NOCTTY)
            evidence("/dev/" + name)
        except OSError:
            pass
