# attack: payload_again
# kind: leak   task: any   naive: run
# attempts: rewind and read again every descriptor that can be rewound: payload, input, tests
import os

def evidence(found="yes"):
    said = f"PWNED payload_again {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/payload_again", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

for fd in range(256):
    try:
        size = os.fstat(fd).st_size
        raw = os.pread(fd, max(size, 1 << 20), 0)
    except OSError:
        continue
    if b"7" * 6 in raw or b'"expected"' in raw or b'"tests"' in raw:
        evidence(f"tests in descriptor {fd}")
