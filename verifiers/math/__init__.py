"""The math verifier: is this answer equal to the gold answer, and how do we know?

    compare("\\\\frac12", "0.5")            # both are bare answers
    judge_text("42", "... \\\\boxed{42}")    # a raw completion; `extract.py` documents where the answer is looked for
    gold_from_solution("... #### 42")      # the gold of a worked solution

A text is made canonical (`canonical.py`), lexed (`lexer.py`, `macros.py`), parsed into a typed tree (`parser.py`,
`statements.py`), gated by type through one conversion table (`convert.py`), and decided by the cheapest method that
can: exact rationals (`exact.py`), residues and expanded polynomials (`modular.py`, `polynomials.py`), balls with a
separation bound (`ball.py`, `separation.py`), random points (`points.py`), and optionally SymPy in a child process (`symbolic.py`). No
text is ever evaluated, nothing is dropped, every stage is bounded by `limits.py`.
"""

from __future__ import annotations

from jurat.verifiers.math.engine import compare, gold_from_solution, judge_text
from jurat.verifiers.math.extract import DEFAULT_ORDER, Extraction, extract
from jurat.verifiers.math.verdict import DEFAULT, MathVerdict, Policy

__all__ = [
    "DEFAULT",
    "DEFAULT_ORDER",
    "Extraction",
    "MathVerdict",
    "Policy",
    "compare",
    "extract",
    "gold_from_solution",
    "judge_text",
]
