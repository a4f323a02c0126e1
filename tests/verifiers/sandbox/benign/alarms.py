# benign: alarms
# must pass: a timer of its own, and a signal handler
import signal
import time

def ring(*_):
    raise TimeoutError

signal.signal(signal.SIGALRM, ring)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    time.sleep(20)
except TimeoutError:
    print("rang")
