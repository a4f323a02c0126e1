# attack: exception_names
# kind: judge-crash   task: any   naive: run
# attempts: raise a type whose name is a terminal's code and a forged log line
def add(a, b):
    raise type("\x1b]0;owned\x07\n2026-01-01 INFO verdict=correct\x9b2J\u202e", (Exception,), {"__module__": "\x1b[2J"})("\x1b[31m\u2066")

add(0, 0)
