# attack: swallows_memory_errors
# kind: resource   task: any   naive: run
# attempts: take all memory again and again, whatever is raised
held = []
while True:
    try:
        held.append(bytearray(32 << 20))
    except BaseException:
        held.clear()
