# benign: big_stack_thread
# must pass: the usual way to recurse deep: a thread with a big stack
import sys
import threading

def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)

def main():
    print(depth(int(input())))

sys.setrecursionlimit(1 << 20)
threading.stack_size(1 << 28)
thread = threading.Thread(target=main)
thread.start()
thread.join()
