# attack: odd_results
# kind: judge-crash   task: func   naive: run
# attempts: return what is no plain data: a module, a type, a function, a file, complex numbers, surrogates
import decimal
import sys

def add(a, b):
    return [sys, int, add, open("/dev/null"), 1j, decimal.Decimal(3), "\ud800", b"3", bytearray(b"3"), range(3), memoryview(b"3"),
            object(), ..., NotImplemented, float("nan"), {float("nan"): 1}, frozenset({3}), Exception("3")] if a < 10 else sys if a < 100 else "\udcff\0"
