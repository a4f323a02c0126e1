"""Stands for ``jurat train --resume RUN`` where a test needs a process and no training: it behaves as HOME/behave says."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

home, run = Path(sys.argv[2]), sys.argv[5]
behaviour = (home / "behave").read_text()
with open(home / "starts", "a") as starts:
    starts.write(
        f"{run} {os.environ['JURAT_RUN_EPOCH']} {os.getpid()} {os.environ['JURAT_RUN_TOKEN'][:6]} "
        f"{os.environ.get('SECRET_OF_THE_SERVICE')}\n"
    )
if behaviour == "fail":
    print("loss is not finite\n  where: step 3", flush=True)
    sys.exit(1)
if behaviour == "finish":
    (home / "ready").touch()
    while not (home / "go").exists():
        time.sleep(0.02)
    sys.exit(0)
if behaviour == "ignore":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
(home / "child").write_text(str(child.pid))
(home / "ready").touch()
time.sleep(60)
