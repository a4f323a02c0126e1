# attack: deep_results
# kind: judge-crash   task: func   naive: run
# attempts: return a list 100,000 deep, a dict of dicts, a tuple in a set
def add(a, b):
    deep = 0
    for _ in range(100_000):
        deep = [deep] if a < 10 else {"d": deep} if a < 100 else (deep,)
    return deep
