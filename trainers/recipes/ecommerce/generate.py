"""Writes ``train.jsonl`` and ``held_out.jsonl`` beside this file, by its own rules: ``python generate.py [SEED]``.

``solution`` is what agents wrote, warts and all: SFT learns the manner of it, and its mistakes. ``chosen`` is right and polite,
``rejected`` breaks a rule or two. No question is in both files.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from rules import TOPICS, fact  # type: ignore[import-not-found]  # of this folder, wherever it was copied to

THINGS = (
    "mug",
    "lamp",
    "bag",
    "pen",
    "box",
    "book",
    "hat",
    "toy",
    "cup",
    "belt",
    "ring",
    "desk",
    "shoe",
    "ball",
    "map",
    "clock",
)
AMOUNTS = {
    "returns": range(1, 11), "delivery": range(1, 11), "shipping": range(20, 220, 20), "promotion": range(20, 220, 20),
    "warranty": range(2018, 2028),
}  # fmt: skip
QUESTIONS = {
    "returns": ("My {thing} came on day {n}. Until which day can I return it?", "The {thing} came on day {n}. When must it be back?"),
    "delivery": ("I ordered a {thing} on day {n}. When will it come?", "On day {n} I ordered a {thing}. Which day will it come?"),
    "shipping": ("A {thing} for {n} euros. How much is shipping?", "What is shipping of a {thing} for {n} euros?"),
    "promotion": ("A {thing} for {n} euros. How much do I pay with the promotion?",
                  "Promotion: what is my total of a {thing} for {n} euros?"),
    "warranty": ("I bought a {thing} in {n}. Until when is the warranty?", "Bought in {n}: a {thing}. When does warranty end?"),
}  # fmt: skip
ANSWERS = {
    "returns": ("You can return it until day {said}.", "Day {said} is the last day to return it."),
    "delivery": ("It will come by day {said}.", "You will have it on day {said}."),
    "shipping": ("Shipping is {said} euros.", "You pay {said} euros of shipping."),
    "promotion": ("You pay {said} euros.", "The total is {said} euros."),
    "warranty": ("The warranty is until {said}.", "It has warranty until {said}."),
}
FREE = ("Shipping is free.", "You get free shipping.")
GREETINGS = ("Hello! ", "Good day! ", "Dear customer, ")
CLOSINGS = (" Thank you!", " Kind regards.", " Have a nice day!")
RUDE = (" That is your fault.", " You should have asked.", " Obviously.")
PROMISES = (" You always get a gift.", " We guarantee it.", " Any time is fine.")
FLAWS = ("fact", "tone", "greeting", "closing", "promise")
WARTS = {"fact": 0.15, "tone": 0.3, "greeting": 0.2, "closing": 0.25, "promise": 0.15}
"""How often agents' own answers had each flaw."""


def letter(topic: str, amount: int, flaws: set[str], rng: random.Random) -> str:
    """An answer with these flaws, in words drawn from the templates."""
    said = fact(topic, amount)
    if "fact" in flaws:
        others = {fact(topic, other) for other in AMOUNTS[topic]} | {str(amount)}
        said = rng.choice(sorted(others - {said}))
    body = rng.choice(FREE if said == "free" else ANSWERS[topic]).format(said=said)
    greeting = "" if "greeting" in flaws else rng.choice(GREETINGS)
    closing = "" if "closing" in flaws else rng.choice(CLOSINGS)
    added = "".join(rng.choice(words) for flaw, words in (("tone", RUDE), ("promise", PROMISES)) if flaw in flaws)
    return greeting + body + added + closing


def rows(seed: int, size: int) -> Iterator[dict[str, str]]:
    """``size`` different questions with the order that each is about, agents' answer, and a pair."""
    rng = random.Random(seed)
    every = [
        (topic, amount, words.format(thing=thing, n=amount))
        for topic in TOPICS for amount in AMOUNTS[topic] for thing in THINGS for words in QUESTIONS[topic]
    ]  # fmt: skip
    share = {topic: [each for each in every if each[0] == topic] for topic in TOPICS}
    for at in range(size):
        pool = share[TOPICS[at % len(TOPICS)]]
        topic, amount, question = pool.pop(rng.randrange(len(pool)))
        warts = {flaw for flaw in FLAWS if rng.random() < WARTS[flaw]}
        bad = {flaw for flaw in FLAWS if rng.random() < WARTS[flaw]} or {rng.choice(FLAWS)}
        yield {
            "question": question,
            "answer": f"{topic} {amount}",
            "solution": letter(topic, amount, warts, rng),
            "chosen": letter(topic, amount, set(), rng),
            "rejected": letter(topic, amount, bad, rng),
        }


def write(folder: Path, seed: int = 0, *, train: int = 1200, held_out: int = 100) -> None:
    """The two files, equal for equal seeds and rules."""
    lines = [json.dumps(row) + "\n" for row in rows(seed, train + held_out)]
    (folder / "held_out.jsonl").write_text("".join(lines[:held_out]))
    (folder / "train.jsonl").write_text("".join(lines[held_out:]))


if __name__ == "__main__":
    write(Path(__file__).parent, *map(int, sys.argv[1:2]))
