# benign: end_of_input
# must pass: EOFError ends the loop
total = 0
try:
    while True:
        total += int(input())
except EOFError:
    print(total)
