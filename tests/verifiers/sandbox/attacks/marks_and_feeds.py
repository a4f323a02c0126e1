# attack: marks_and_feeds
# kind: judge-crash   task: any   naive: run
# attempts: byte order marks, form feeds, line ends of all kinds, bidirectional marks

x = 1
def add(a, b):    return 0
# ‮⁦     
print(0)
