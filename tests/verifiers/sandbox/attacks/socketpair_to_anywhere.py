# attack: socketpair_to_anywhere
# kind: leak   task: any   naive: run
# attempts: a datagram socket made by socketpair sends to any address, with no socket() at all
import os

def evidence(found="yes"):
    said = f"PWNED socketpair_to_anywhere {found}"[:200].encode("utf-8", "replace") + b"\n"
    try:
        os.write(1, said)
        os.write(os.open("/tmp/sbx_evidence/socketpair_to_anywhere", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), said)
    except OSError:
        pass

import socket

for kind in (socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_STREAM):
    for address in ("\0sbx_canary_dgram", "/tmp/sbx_canary/dgram", "\0sbx_canary", "/tmp/sbx_canary/sock", "/dev/log"):
        try:
            one, _ = socket.socketpair(socket.AF_UNIX, kind)
        except OSError:
            continue
        for name, act in (("sendto", lambda: one.sendto(b"out", address)), ("sendmsg", lambda: one.sendmsg([b"out"], [], 0, address)),
                          ("connect", lambda: one.connect(address)), ("bind", lambda: one.bind("/tmp/sbx_canary/mine"))):
            try:
                act()
                if kind == socket.SOCK_DGRAM or name in ("connect", "bind"):  # the others send to their peer, whatever the address
                    evidence(f"{name} {address!r}")
            except OSError:
                pass
