"""SymPy in a child: equal or unknown, never late, never a reason for a crash, nothing left behind."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from jurat.verifiers.math import Policy, compare
from jurat.verifiers.math.symbolic import CALL_SECONDS, Symbolic
from jurat.verifiers.math.tree import Node, mul, num

pytest.importorskip("sympy")

K, INF = Node("sym", "k"), Node("const", "inf")
HALVES = Node("big", "sum", (K, num(0), INF, Node("pow", None, (num(2), Node("neg", None, (K,))))))
HEAVY = Node(
    "big",
    "int",
    (
        Node("sym", "x"),
        num(0),
        num(1),
        Node(
            "pow",
            None,
            (Node("sym", "x"), Node("fn", "sin", (Node("pow", None, (Node("sym", "x"), Node("sym", "x"))),))),
        ),
    ),
)


@pytest.fixture
def sympy_child():
    child = Symbolic()
    assert child.warm(120.0)
    yield child
    child.close()


def eventually(question, seconds: float = 120.0):
    """The first answer that is not None, as on a machine which is busy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (answer := question()) is not None:
            return answer
    return None


def test_it_adds_true_positives_only(sympy_child: Symbolic) -> None:
    assert eventually(lambda: sympy_child.equal(HALVES, num(2))) is True
    assert sympy_child.equal(HALVES, num(3)) is None


def test_a_question_that_takes_too_long_costs_one_child_and_one_answer(sympy_child: Symbolic) -> None:
    assert sympy_child.working is not None
    first = sympy_child.working.process
    assert sympy_child.equal(HEAVY, num(1)) is None
    if sympy_child.working.process is not first:  # it was late, and is gone
        assert first.poll() is not None
    assert eventually(lambda: sympy_child.equal(HALVES, num(2))) is True


def test_a_killed_child_is_replaced(sympy_child: Symbolic) -> None:
    assert sympy_child.working is not None
    os.kill(sympy_child.working.process.pid, signal.SIGKILL)
    assert sympy_child.equal(HALVES, num(2)) in (None, True)
    assert eventually(lambda: sympy_child.equal(HALVES, num(2))) is True


def test_many_threads_get_their_own_answers(sympy_child: Symbolic) -> None:
    answers: dict[int, bool | None] = {}

    def ask(n: int) -> None:
        equal = n % 2 == 0
        answers[n] = sympy_child.equal(mul(num(n + 1), HALVES), num(2 * (n + 1) if equal else 2 * n + 5))

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) == set(range(8))
    assert all(answers[n] is not True for n in range(1, 8, 2))


def test_trees_beyond_the_bound_are_not_sent(sympy_child: Symbolic) -> None:
    large = Node("add", None, tuple(num(n) for n in range(500)))
    before = sympy_child.questions
    assert sympy_child.equal(large, num(1)) is None
    assert sympy_child.questions == before


def test_nothing_is_left_after_closing() -> None:
    child = Symbolic()
    assert child.warm(120.0)
    assert child.working is not None and child.spare is not None
    processes = [child.working.process, child.spare.process]
    child.close()
    assert all(process.poll() is not None for process in processes)


def test_the_policy_switches_it_on() -> None:
    gold, answer = "1", "\\lim_{x\\to0}\\frac{\\sin x}{x}"
    assert compare(gold, answer).status == "undecided"
    verdict = eventually(
        lambda: v if (v := compare(gold, answer, policy=Policy(symbolic=True))).status == "correct" else None
    )
    assert verdict is not None and (verdict.reason, verdict.certified) == ("sympy", False)
    assert compare("2", answer, policy=Policy(symbolic=True)).status != "correct"
    assert CALL_SECONDS <= 0.2
