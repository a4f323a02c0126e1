# benign: generators_and_context
# must pass: a generator as a helper, dataclasses, enum, match, walrus, f-strings
import dataclasses
import enum

class Kind(enum.Enum):
    A = 1

@dataclasses.dataclass(order=True)
class Point:
    x: int
    y: int = 0

def f(n):
    def up():
        yield from range(n)
    match list(up()):
        case [0, 1, *rest] if (k := len(rest)) > 1:
            return {"k": k, "kind": Kind.A.name, "top": max(Point(i) for i in up()).x, "text": f"{k:>3}"}
        case _:
            return None
