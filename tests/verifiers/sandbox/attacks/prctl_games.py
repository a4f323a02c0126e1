# attack: prctl_games
# kind: leak   task: any   naive: run
# attempts: cancel the death signal, let others trace us, drop protections by prctl
import os

def evidence(found="yes"):
    said = f"PWNED prctl_games {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/prctl_games", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes

libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):  # x86-64 numbers
    ctypes.set_errno(0)
    return libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, args)), ctypes.get_errno()

for what, args in (
    ("PR_SET_PDEATHSIG", (1, 0)), ("PR_SET_PTRACER", (0x59616D61, -1)), ("PR_SET_CHILD_SUBREAPER", (36, 1)),
    ("PR_SET_KEEPCAPS", (8, 1)), ("PR_SET_SECUREBITS", (28, 0)), ("PR_CAP_AMBIENT", (47, 2, 0)), ("PR_SET_MM", (35, 1, 0)),
    ("PR_SET_TIMERSLACK", (29, 1)), ("PR_SET_SYSCALL_USER_DISPATCH", (59, 0)),
):
    if call(157, *args, *([0] * (5 - len(args))))[0] >= 0:
        evidence(what)
