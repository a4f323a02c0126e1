# attack: dribble
# kind: resource   task: any   naive: run
# attempts: write a little for ever, so that a judge with a time limit per read never ends
import os
import time

def add(a, b):
    while True:
        os.write(1, b"0")
        time.sleep(0.001)

add(0, 0)
