# attack: first_line_numbers
# kind: judge-crash   task: func   naive: run
# attempts: the first answer is a line that breaks readers: numbers
import os

def add(a, b):
    for fd in range(3, 64):
        try:
            os.write(fd, b'{"i":0,"v":[NaN,Infinity,1e999999,-0]}' + b"\n")
        except OSError:
            pass
    return 0
