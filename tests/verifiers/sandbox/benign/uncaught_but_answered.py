# benign: uncaught_but_answered
# must pass: writes to standard error and still passes
import sys
import warnings

warnings.warn("careful")
print("debug", file=sys.stderr)
print(int(input()) * 2)
