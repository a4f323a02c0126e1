"""Verdicts: statuses, reasons, certificates, conversions that can be switched off, and the same verdict wherever it
is asked for."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading

import pytest

from jurat.verifiers.math import Extraction, Policy, compare, extract, gold_from_solution, judge_text
from jurat.verifiers.math.convert import NAMES, TABLE
from jurat.verifiers.math.engine import GoldError, cache_info, clear_caches

PAIRS = [
    ("12", "12", "correct", "canonical_equal", True),
    ("\\frac12", "0.5", "correct", "rational_exact", True),
    ("\\frac12", "0.51", "incorrect", "rational_exact", True),
    ("\\sqrt8", "2\\sqrt2", "correct", "separation_bound_", True),
    ("e^{-50}", "e^{-60}", "incorrect", "ball_disjoint_64", True),
    ("\\pi", "\\frac{355}{113}", "incorrect", "ball_disjoint_64", True),
    ("262537412640768744", "e^{\\pi\\sqrt{163}}", "incorrect", "ball_disjoint_192", True),
    ("x^2-1", "(x-1)(x+1)", "correct", "rational_function_exact", True),
    ("x^2-1", "(x-1)^2", "incorrect", "rational_function_modular", True),
    ("(x+1)^{100000}", "(1+x)^{99999}(x+1)", "correct", "schwartz_zippel_120", False),
    ("\\sin 2x", "2\\sin x\\cos x", "correct", "identity_numeric_", False),
    ("\\sin x", "\\cos x", "incorrect", "point_disjoint", True),
    ("\\ln 8", "3\\ln 2", "correct", "numeric_512", False),
    ("[1,2]\\cup[2,3]", "[1,3]", "correct", "interval_algebra", True),
    ("2x+y=1", "4x+2y=2", "correct", "equation_proportional", False),
    ("5 cm", "5 m", "incorrect", "unit_mismatch", True),
    ("\\text{yes}", "Yes", "correct", "text_equal", True),
    ("(B)", "B", "correct", "choice", True),
    ("5", "\\foo{5}", "unparseable", "unknown_macro:\\foo", False),
    ("5", "(5", "unparseable", "", False),
    ("5", "", "unparseable", "empty", False),
    ("5", "9" * 5000, "too_large", "length", False),
    ("\\foo", "5", "bad_gold", "gold:unknown_macro:\\foo", False),
    ("", "5", "bad_gold", "gold:empty", False),
    ("\\frac10", "\\frac10", "bad_gold", "gold:undefined", False),
    ("5", "\\frac50", "incorrect", "undefined", False),
    ("1", "\\lim_{x\\to0}\\frac{\\sin x}{x}", "undecided", "no_method", False),
]


@pytest.mark.parametrize(("gold", "answer", "status", "reason", "certified"), PAIRS)
def test_reason_and_certificate(gold: str, answer: str, status: str, reason: str, certified: bool) -> None:
    verdict = compare(gold, answer)
    assert verdict.status == status
    assert verdict.reason.startswith(reason)
    if certified:
        assert verdict.certified


def test_every_conversion_can_be_switched_off() -> None:
    examples = {
        "assignment_value": ("5", "x=5"), "percent_value": ("0.5", "50\\%"), "unit_dropped": ("5", "5\\text{ cm}"),
        "plus_minus": ("2,-2", "\\pm2"),
        "degree_dropped": ("30", "30^\\circ"), "relation_set": ("x>2", "(2,\\infty)"), "base_value": ("5", "101_2"),
        "long_decimal": ("\\frac13", "0.33333333333333"),
        "ratio_fraction": ("\\frac34", "3:4"), "singleton_set": ("5", "\\{5\\}"), "chain_value": ("12", "7+5=12"),
        "equation_roots": ("x^2=4", "x=2,x=-2"),
        "unit_converted": ("5\\text{ m}", "500\\text{ cm}"), "ordinal": ("4", "4th"),
        "ellipsis": ("1,2,\\ldots,5", "1,2,3,\\ldots,5"),
    }  # fmt: skip
    assert len(NAMES) == len(TABLE)
    for name, (gold, answer) in examples.items():
        on = compare(gold, answer)
        assert on.status == "correct", (name, on)
        assert name in on.conversions, (name, on)
        assert compare(gold, answer, policy=Policy(off=frozenset((name,)))).status != "correct", name


def test_flags_can_be_refused() -> None:
    verdict = compare("120", "5!")
    assert (verdict.status, verdict.flags) == ("correct", ("unevaluated",))
    assert compare("120", "5!", policy=Policy(reject_flags=frozenset(("unevaluated",)))).status == "incorrect"
    strict = Policy(reject_flags=frozenset(("multiple_boxes",)))
    text = "\\boxed{1}. No: it has to be something else. In fact we get \\boxed{2}."
    assert judge_text("2", text).flags == ("multiple_boxes",)
    assert judge_text("2", text, policy=strict).status == "incorrect"


def test_uncertified_agreement_is_undecided_if_the_policy_says_so() -> None:
    assert compare("\\ln 8", "3\\ln 2", policy=Policy(accept_uncertified=False)).status == "undecided"
    assert compare("\\sqrt8", "2\\sqrt2", policy=Policy(accept_uncertified=False)).status == "correct"


def test_symmetric_conversions_are_symmetric() -> None:
    for gold, answer in [
        ("x=5", "5"),
        ("50\\%", "0.5"),
        ("(2,\\infty)", "x>2"),
        ("\\{1,2\\}", "1,2"),
        ("3:4", "\\frac34"),
        ("m\\ge\\sqrt2", "m\\in[\\sqrt2,\\infty)"),
    ]:
        assert compare(gold, answer).status == compare(answer, gold).status == "correct"


def test_gold_from_solution() -> None:
    assert gold_from_solution("3*4 = <<3*4=12>>12\n#### 1,200\n") == "1,200"
    assert gold_from_solution("so $\\boxed{\\frac{1}{2}}$ and done") == "\\frac{1}{2}"
    with pytest.raises(GoldError, match="no gold answer"):
        gold_from_solution("nothing here")
    with pytest.raises(GoldError, match="empty"):
        gold_from_solution("#### ")


def test_extraction_is_configurable_and_tells_where() -> None:
    text = "<answer>3</answer> and \\boxed{4}\n#### 5"
    for markers, expected in [
        (("tags",), "3"),
        (("boxed",), "4"),
        (("hashes",), "5"),
        (("tags", "boxed", "hashes"), "5"),
    ]:
        found = extract(text, Extraction(markers=markers))
        assert found is not None and found.text == expected
        assert expected in text[found.start : found.end]
    assert extract("the answer: 7", Extraction(order=("last",))) is None
    with pytest.raises(ValueError, match="unknown extraction rule 'box'"):
        Extraction(markers=("box",))


def test_span_of_the_judged_text() -> None:
    text = "<think>\\boxed{1}</think> So \\boxed{12}."
    verdict = judge_text("12", text)
    assert verdict.extracted == "12" and verdict.span is not None
    assert text[slice(*verdict.span)] == "\\boxed{12}"


def test_the_same_verdict_in_any_thread_task_or_process() -> None:
    pairs = [(gold, answer) for gold, answer, *_ in PAIRS]
    expected = [(v.status, v.reason, v.certified) for v in (compare(*p) for p in pairs)]

    def ask() -> list[tuple[str, str, bool]]:
        return [(v.status, v.reason, v.certified) for v in (compare(*p) for p in pairs)]

    results: list[list[tuple[str, str, bool]]] = []
    clear_caches()
    threads = [threading.Thread(target=lambda: results.append(ask())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def tasks() -> None:
        results.extend(await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(2))))
        results.append(ask())

    clear_caches()
    asyncio.run(tasks())
    assert len(results) == 7 and all(result == expected for result in results)
    code = (
        "import json, sys\nfrom jurat.verifiers.math import compare\n"
        "print(json.dumps([[(v := compare(*p)).status, v.reason, v.certified] for p in json.load(sys.stdin)]))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(pairs), capture_output=True, text=True, check=True
    ).stdout
    assert [tuple(row) for row in json.loads(out)] == expected


def test_verdicts_are_cached_but_undecided_ones_are_not() -> None:
    clear_caches()
    before = cache_info()
    compare("11", "11")
    compare("11", "11")
    compare("1", "\\lim_{x\\to0}\\frac{\\sin x}{x}")
    compare("1", "\\lim_{x\\to0}\\frac{\\sin x}{x}")
    after = cache_info()
    assert after["verdict_hits"] - before["verdict_hits"] == 1
    assert after["verdict_misses"] - before["verdict_misses"] == 3


def test_importing_brings_neither_torch_nor_sympy() -> None:
    heavy = ("torch", "sympy", "mpmath", "numpy", "transformers")
    code = f"import sys, jurat.verifiers.math\nprint([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"
