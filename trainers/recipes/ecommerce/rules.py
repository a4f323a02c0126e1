"""The policy of a shop, and the rules that its customer service is held to: the verifiers of ``recipe.yaml``.

A row's ``answer`` is no text but the order that the question is about, as in ``promotion 60``: it holds whatever the policy is.
What a good answer says is worked out from it here, so that a change of the policy is a change of this file and of no data.
"""

from __future__ import annotations

import re

import jurat
from jurat.platform.types import Problem, Verdict

RETURN_DAYS = 30
DELIVERY_DAYS = 3
SHIPPING_EUROS = 5
FREE_SHIPPING_FROM = 100
PROMOTION_PERCENT = 10
PROMOTION_FROM = 60
WARRANTY_YEARS = 2

TOPICS = ("returns", "delivery", "shipping", "promotion", "warranty")
_ORDER = re.compile(r"(returns|delivery|shipping|promotion|warranty) ([0-9]{1,4})")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_GREETING = re.compile(r"(?:Hello|Good day|Dear customer)[!,] ")
_CLOSING = re.compile(r"(?:Thank you!|Kind regards\.|Have a nice day!)\Z")
_RUDE = re.compile(r"your (?:own )?fault|should have|obviously|as i said|not my problem|read the (?:rules|page)", re.I)
_PROMISE = re.compile(r"for ever|always|guarantee|free gift|any time|money back|no matter", re.I)


def fact(topic: str, amount: int) -> str:
    """What the policy says of an order: the last day of return, the day of delivery, euros of shipping ("free" for none),
    euros to pay, the last year of warranty. ``amount``: day, euros, or year."""
    match topic:
        case "returns":
            return str(amount + RETURN_DAYS)
        case "delivery":
            return str(amount + DELIVERY_DAYS)
        case "shipping":
            return "free" if amount >= FREE_SHIPPING_FROM else str(SHIPPING_EUROS)
        case "promotion":
            return f"{amount * (100 - PROMOTION_PERCENT * (amount >= PROMOTION_FROM)) / 100:g}"
        case "warranty":
            return str(amount + WARRANTY_YEARS)
    raise ValueError(f"no topic {topic!r}, expected one of {', '.join(TOPICS)}")


@jurat.verifier("order")
def order(problem: Problem, completion: str) -> bool:
    """Of the rows, not of answers: whether what they give is an order that the policy covers."""
    return _ORDER.fullmatch(completion) is not None


@jurat.verifier("policy_facts")
def policy_facts(problem: Problem, completion: str) -> Verdict:
    """Whether the answer states the fact that follows from policy and order, and no other number."""
    asked = _ORDER.fullmatch(problem.reference)
    if asked is None:
        return Verdict.of("abstained", why="the problem gives no order")
    right = fact(asked[1], int(asked[2]))
    said = _NUMBER.findall(completion) + (["free"] if re.search(r"\bfree\b", completion) else [])
    if not said:
        return Verdict.of("no_answer", why="no number", certified=True)
    why = "as_the_policy_says" if said == [right] else f"the policy says {right}"
    return Verdict.of("correct" if said == [right] else "incorrect", read=" ".join(said)[:80], why=why, certified=True)


@jurat.verifier("tone")
def tone(problem: Problem, completion: str) -> bool:
    """Nobody is blamed or lectured."""
    return _RUDE.search(completion) is None


@jurat.verifier("greeting")
def greeting(problem: Problem, completion: str) -> bool:
    """It begins with a greeting, once."""
    return len(_GREETING.findall(completion)) == 1 and _GREETING.match(completion) is not None


@jurat.verifier("closing")
def closing(problem: Problem, completion: str) -> bool:
    """It ends politely."""
    return _CLOSING.search(completion.rstrip()) is not None


@jurat.verifier("promises")
def promises(problem: Problem, completion: str) -> bool:
    """It promises nothing that the policy does not allow."""
    return _PROMISE.search(completion) is None
