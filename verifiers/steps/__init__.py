"""Verdicts on the steps of a solution: where it is cut (`split.py`), what each step claims (`claims.py`), whether that is so
(`arithmetic.py`, `equations.py`), and the verifier made of them (`equation_steps.py`).

Everything is decided by the exact engine of `verifiers/math`, under its bounds: no text is evaluated, nothing is timed.
"""
