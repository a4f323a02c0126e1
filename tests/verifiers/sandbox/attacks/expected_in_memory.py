# attack: expected_in_memory
# kind: leak   task: any   naive: run
# attempts: find what the third test expects in objects and on the heap
import os

def evidence(found="yes"):
    said = f"PWNED expected_in_memory {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/expected_in_memory", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import ctypes
import gc

want = 7 * 111111

def hunt():
    for thing in gc.get_objects():
        if type(thing) in (list, tuple, dict) and thing is not globals():
            for part in gc.get_referents(thing):
                if type(part) is int and part == want and part is not want:
                    return "an object"
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    page = (libc.sbrk(0) - 4096) & ~4095
    for _ in range(50_000):
        if libc.msync(ctypes.c_void_p(page), ctypes.c_size_t(4096), 1):
            break
        if str(111111 * 7).encode() in ctypes.string_at(page, 4096):
            text = ctypes.string_at(page, 4096)
            at = text.index(b"7" * 6)
            if any(word in text[max(0, at - 60) : at + 60] for word in (b"expected", b"stdout", b"tests")):
                return "the heap"
        page -= 4096
    return ""

def add(a, b):
    if found := hunt():
        evidence(found)
    return 0

if found := hunt():
    evidence(found)
