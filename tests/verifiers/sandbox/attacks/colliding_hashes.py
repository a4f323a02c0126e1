# attack: colliding_hashes
# kind: resource   task: any   naive: run
# attempts: a million keys of one hash
keys = {}
for step in range(10**6):
    keys[step * (2**61 - 1)] = 0
