# attack: pattern_for_ever
# kind: resource   task: any   naive: run
# attempts: a pattern match that takes 2 ** 60 steps in C
import re

re.match("(a|a)+$", "a" * 60 + "b")
