# attack: stops_itself
# kind: resource   task: any   naive: run
# attempts: stop in place of ending
import os
import signal

os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
