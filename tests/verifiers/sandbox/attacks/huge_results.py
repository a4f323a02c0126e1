# attack: huge_results
# kind: judge-crash   task: func   naive: run
# attempts: return 50 MB of text, an integer of a million digits, a million small parts
def add(a, b):
    return "x" * (50 << 20) if a < 10 else 1 << 4_000_000 if a < 100 else [[]] * 1_000_000
