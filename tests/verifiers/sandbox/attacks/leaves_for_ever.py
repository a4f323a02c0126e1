# attack: leaves_for_ever
# kind: resource   task: any   naive: run
# attempts: functions at exit that never return, and a thread that is not a daemon
import atexit
import threading
import time

@atexit.register
def stay():
    while True:
        pass

threading.Thread(target=time.sleep, args=(3600,)).start()
