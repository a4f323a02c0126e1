"""Properties: arithmetic equals the standard library's, no text raises, and a bound proves what it promises."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from jurat.verifiers.math import compare, judge_text
from jurat.verifiers.math.backend import parts
from jurat.verifiers.math.exact import rational
from jurat.verifiers.math.limits import Steps, TooLarge, Undefined
from jurat.verifiers.math.reading import read

STATUSES = {"correct", "incorrect", "no_answer", "unparseable", "too_large", "bad_gold", "undecided"}
PIECES = [
    "1", "2", "x", "0.5", "\\frac{1}{2}", "\\sqrt", "(", ")", "[", "]", "{", "}", "\\{", "\\}", "+", "-", "^", "_",
    "=", "<", ",", " or ", "\\pm", "|", "!", "%", "\\circ", "\\text{ cm}", "\\sin", "\\log", "\\sum_{k=1}^{3}",
    "\\begin{pmatrix}", "\\end{pmatrix}", "&", "\\\\", "\\cup", "\\infty", "\\le", ":", "...", "$", "is", "apples",
    "\\overline{3}", "'", "\\int_0^1", "dx", "10^{10^{10}}",
]  # fmt: skip


@st.composite
def arithmetic(draw: st.DrawFn, depth: int = 4) -> tuple[str, Fraction]:
    """LaTeX and the value that Python gives it."""
    if depth == 0 or draw(st.booleans()):
        n = draw(st.integers(-99, 99))
        return f"({n})", Fraction(n)
    (a, x), (b, y) = draw(arithmetic(depth - 1)), draw(arithmetic(depth - 1))
    operator = draw(st.sampled_from("+-*/^"))
    if operator == "/":
        return (f"\\frac{{{a}}}{{{b}}}", x / y) if y else (f"({a}+{b})", x + y)
    if operator == "^":
        n = draw(st.integers(0, 3))
        return f"({a})^{{{n}}}", x**n
    sign = "\\cdot" if operator == "*" else operator
    return f"({a}{sign}{b})", {"+": x + y, "-": x - y, "*": x * y}[operator]


@given(arithmetic())
def test_exact_values_are_those_of_the_standard_library(case: tuple[str, Fraction]) -> None:
    text, value = case
    node = read(text).node
    assert node is not None
    found = rational(node, Steps())
    assert found is not None and Fraction(*parts(found)) == value
    gold = f"{value.numerator}/{value.denominator}"
    assert compare(gold, text).status == "correct"
    assert compare(f"{value.numerator + 1}/{value.denominator}", text).status == "incorrect"


@given(
    st.lists(st.sampled_from(PIECES), max_size=14).map("".join),
    st.sampled_from(["12", "x^2", "(1,2)", "x>1", "\\sqrt2", "50\\%", "\\text{yes}"]),
)
def test_no_text_raises(text: str, gold: str) -> None:
    assert compare(gold, text).status in STATUSES
    assert judge_text(gold, text).status in STATUSES
    assert compare(text, gold).status in STATUSES


@given(st.text(max_size=60))
def test_no_unicode_raises(text: str) -> None:
    assert compare("12", text).status in STATUSES
    assert judge_text("12", text).status in STATUSES


@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8).map("".join))
def test_what_can_be_read_equals_itself(text: str) -> None:
    verdict = compare(text, text)
    assert verdict.status in ("correct", "bad_gold"), (text, verdict)


@given(st.integers(2, 200), st.integers(2, 200))
def test_sums_of_two_roots(a: int, b: int) -> None:
    gold = f"\\sqrt{{{a}}}+\\sqrt{{{b}}}"
    right = compare(gold, f"\\sqrt{{{a + b}+2\\sqrt{{{a * b}}}}}")
    assert right.status == "correct" and right.certified
    assert compare(gold, f"\\sqrt{{{a + b + 1}+2\\sqrt{{{a * b}}}}}").status == "incorrect"


def test_bounds_are_errors_of_their_own() -> None:
    assert issubclass(TooLarge, Exception) and issubclass(Undefined, Exception)
    assert compare("1", "2^{2^{2^{2^{2^{2^{2}}}}}}").status in ("incorrect", "too_large", "undecided")
