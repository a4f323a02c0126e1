# attack: closes_in_call
# kind: resource   task: func   naive: run
# attempts: close every descriptor in the midst of a call and sleep
import os
import time

def add(a, b):
    os.closerange(0, 256)
    time.sleep(3600)
