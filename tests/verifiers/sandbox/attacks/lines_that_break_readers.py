# attack: lines_that_break_readers
# kind: judge-crash   task: func   naive: run
# attempts: write lines that break readers: too deep, too many digits, half of a code point, NaN, no object
import os

LINES = [
    b"[" * 100_000, b'{"i":0,"v":' + b"[" * 100_000, b'{"i":0,"v":' + b'{"v":' * 50_000, b'{"i":0,"v":' + b"9" * 500_000 + b"}",
    b'{"i":0,"v":1e999999}', b'{"i":0,"v":NaN}', b'{"i":0,"v":-Infinity}', b'{"i":0,"v":"\xff\xfe"}', b'{"i":0,"v":"\\ud800"}',
    b'{"i":1e400,"v":0}', b'{"i":-1,"v":0}', b'{"i":"0","v":0}', b'{"i":null}', b"null", b"[]", b"0", b'""', b"", b"\0", b"\xff",
    b'{"i":0,"i":1,"v":0,"v":3}', b'{"i":0,"v":{"$int":"zz"}}', b'{"i":0,"v":{"$int":"0x' + b"f" * 500_000 + b'"}}',
    b'{"i":0,"v":{"$dict":[[[1],2]]}}', b'{"i":0,"v":{"$set":[[1]]}}', b'{"i":0,"v":{"$float":"1"}}', b'{"i":0,"v":{"$tuple":1}}',
    b'{"i":0,"v":{"$dict":[[{"$dict":[]},1]]}}', b'{"i":0,"v":{"$set":[{"$set":[]}]}}',
]
turn = 0

def add(a, b):
    for line in LINES:
        for fd in range(3, 64):
            try:
                os.set_blocking(fd, False)
                os.write(fd, line + b"\n")
            except OSError:
                pass
    return 0
