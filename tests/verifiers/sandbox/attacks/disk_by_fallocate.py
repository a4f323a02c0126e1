# attack: disk_by_fallocate
# kind: resource   task: any   naive: run
# attempts: reserve disk by fallocate, and fill it by sendfile and copy_file_range
import os

def evidence(found="yes"):
    said = f"PWNED disk_by_fallocate {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/disk_by_fallocate", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

total = 0
try:
    for place in range(30):
        fd = os.open(f"part{place}", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(fd, 0, 8 << 20)
        total += os.fstat(fd).st_blocks * 512
        more = os.open(f"copy{place}", os.O_RDWR | os.O_CREAT, 0o600)
        os.copy_file_range(fd, more, 8 << 20)
        total += os.fstat(more).st_blocks * 512
except OSError:
    pass
finally:
    for place in range(30):
        for name in ("part", "copy"):
            try:
                os.unlink(f"{name}{place}")
            except OSError:
                pass
if total > 64 << 20:
    evidence(f"{total >> 20} MB on disk")
