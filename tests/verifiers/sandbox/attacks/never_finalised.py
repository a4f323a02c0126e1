# attack: never_finalised
# kind: resource   task: any   naive: run
# attempts: an object whose end never ends
class Last:
    def __del__(self):
        while True:
            pass

def add(a, b):
    return Last()

last = Last()
