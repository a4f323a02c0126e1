# attack: first_line_text
# kind: judge-crash   task: func   naive: run
# attempts: the first answer is a line that breaks readers: text
import os

def add(a, b):
    for fd in range(3, 64):
        try:
            os.write(fd, b'{"i":0,"v":"\xff\\ud800\x00"}' + b"\n")
        except OSError:
            pass
    return 0
