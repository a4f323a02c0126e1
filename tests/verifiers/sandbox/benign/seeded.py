# benign: seeded
# must pass: the same numbers from a seed on every run
import random

random.seed(7)
print(random.randint(1, 10**9), random.random() == random.Random(7).random(), sorted({"b", "a"}))
