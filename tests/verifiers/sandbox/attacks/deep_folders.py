# attack: deep_folders
# kind: judge-crash   task: any   naive: run
# attempts: make folders in folders until no path reaches the last: who tidies up must not recurse
import os

try:
    for _ in range(400):
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
except OSError:
    pass
