# attack: socketpair_families
# kind: leak   task: any   naive: run
# attempts: make kernel sockets of rare families by socketpair
import os

def evidence(found="yes"):
    said = f"PWNED socketpair_families {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/socketpair_families", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import socket

for family in range(2, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RDM):
        try:
            socket.socketpair(family, kind)
            evidence(f"family {family}")
        except OSError:
            pass
