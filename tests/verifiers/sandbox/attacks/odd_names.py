# attack: odd_names
# kind: judge-crash   task: any   naive: run
# attempts: files whose names are no text, hold control codes, or cannot be opened
import os

for name in (b"\xff\xfe", b"a\nb", b"\x1b[2J", b"-rf", b"x" * 255, b" ", b"*"):
    try:
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT, 0))
        os.mkdir(name + b"d"[: 255 - len(name)], 0)
    except OSError:
        pass
