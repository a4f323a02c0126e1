# benign: thread_pool
# must pass: a pool of eight threads, locks, queues
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

done, lock = queue.Queue(), threading.Lock()

def work(n):
    with lock:
        done.put(n * n)

with ThreadPoolExecutor(8) as pool:
    list(pool.map(work, range(100)))
print(sum(done.get() for _ in range(100)))
