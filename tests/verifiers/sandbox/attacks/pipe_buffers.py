# attack: pipe_buffers
# kind: resource   task: any   naive: run
# attempts: take memory that the kernel holds: full pipes and socket buffers
import os

def evidence(found="yes"):
    said = f"PWNED pipe_buffers {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/pipe_buffers", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import fcntl
import socket

held, total = [], 0
try:
    while total < 256 << 20:
        read, write = os.pipe()
        held.append((read, write))
        try:
            fcntl.fcntl(write, 1031, 1 << 20)
        except OSError:
            pass
        os.set_blocking(write, False)
        total += os.write(write, b"x" * (1 << 20))
        one, other = socket.socketpair()
        held.append((one, other))
        one.setblocking(False)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
        total += one.send(b"x" * (1 << 20))
except OSError:
    pass
if total > 64 << 20:
    evidence(f"{total >> 20} MB in kernel buffers")
