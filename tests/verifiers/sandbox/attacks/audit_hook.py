# attack: audit_hook
# kind: judge-crash   task: any   naive: run
# attempts: an audit hook that fails whatever the harness does next
import sys

def add(a, b):
    return 0

def refuse(*_):
    raise SystemExit(0)

sys.addaudithook(refuse)
