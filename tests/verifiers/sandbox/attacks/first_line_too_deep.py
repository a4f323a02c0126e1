# attack: first_line_too_deep
# kind: judge-crash   task: func   naive: run
# attempts: the first answer is a line that breaks readers: too deep
import os

def add(a, b):
    for fd in range(3, 64):
        try:
            os.write(fd, b'{"i":0,"v":' + b'[' * 100_000 + b"\n")
        except OSError:
            pass
    return 0
