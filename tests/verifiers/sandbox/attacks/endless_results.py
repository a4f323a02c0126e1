# attack: endless_results
# kind: resource   task: func   naive: run
# attempts: return things that have no end
import itertools

class Endless(list):
    def __iter__(self):
        return itertools.count()

    def __len__(self):
        return 3

def add(a, b):
    return itertools.count() if a < 10 else Endless() if a < 100 else {"a": Endless([1])}
