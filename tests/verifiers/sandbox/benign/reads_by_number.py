# benign: reads_by_number
# must pass: standard input by its descriptor, in pieces and to the end
import os
import sys

first = sys.stdin.readline()
rest = open(0).read() if False else sys.stdin.read()
print(len(first.split()), sum(map(int, rest.split())), os.isatty(0))
