# benign: open_zero
# must pass: open(0), as short programs do
print(sum(map(int, open(0))))
