# benign: leaves_early
# must pass: exit(), quit() and sys.exit() with a message to nobody
n = int(input())
print(n + 1)
if n == 1:
    exit()
if n == 2:
    quit(0)
raise SystemExit
