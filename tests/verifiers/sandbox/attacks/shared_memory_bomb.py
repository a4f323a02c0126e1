# attack: shared_memory_bomb
# kind: resource   task: any   naive: run
# attempts: take memory by shared mappings
import os

def evidence(found="yes"):
    said = f"PWNED shared_memory_bomb {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/shared_memory_bomb", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import mmap

held = []
try:
    while len(held) < 40:
        part = mmap.mmap(-1, 64 << 20)
        for page in range(0, 64 << 20, 4096):
            part[page] = 1
        held.append(part)
        if len(held) == 20:
            evidence("1.25 GB of shared memory")
            break
except (OSError, ValueError, MemoryError):
    pass
