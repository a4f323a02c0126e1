# attack: exception_chains
# kind: judge-crash   task: any   naive: run
# attempts: raise with a cycle of causes, two thousand contexts, notes that lie and a message of 2 MB
class Lies(list):
    def __iter__(self):
        raise SystemExit(0)

def add(a, b):
    first = last = Exception("x" * (2 << 20))
    for _ in range(2_000):
        last.__context__ = Exception("more")
        last = last.__context__
    last.__cause__ = first
    first.__notes__ = Lies(["a"])
    raise first

add(0, 0)
