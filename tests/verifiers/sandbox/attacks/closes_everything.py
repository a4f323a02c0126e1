# attack: closes_everything
# kind: resource   task: any   naive: run
# attempts: close every descriptor and sleep: a judge that waits for an end of file sees one, yet the program lives
import os
import time

os.closerange(0, 256)
time.sleep(3600)
