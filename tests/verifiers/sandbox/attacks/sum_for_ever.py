# attack: sum_for_ever
# kind: resource   task: any   naive: run
# attempts: a loop in C that never looks at signals
import itertools

sum(itertools.repeat(1))
