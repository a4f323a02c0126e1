"""Steps of ``generated:chain``, each checked exactly against what the question asks next."""

import re

import jurat

EQUATION = re.compile(r"(\d{1,6})([-+*])(\d{1,6})=(-?\d{1,6})")
ASKED = re.compile(r"([-+*]?)(\d+)")
BEGUN = re.compile(r"(\d{1,6}([-+*](\d{1,6}(=-?)?)?)?)?")
"""What a step that the length limit cut may look like: an equation without its result."""


@jurat.verifier("chain_steps", version="1", kind="steps", deadline=1.0)
def chain_steps(problem: jurat.Problem, completion: str, prefix: bool = False, chance: float = 1.0) -> jurat.Verdict:
    """Each text between semicolons is a step: right if it goes on from the number before it by the operation that is asked
    next, and its result is true. So a step that nobody asked for is wrong, be it true: none can be padded.

    A step without a result that ends the text is not checked. With ``prefix`` the score of a step is the chance that the solution
    will be right after it, as ``credit: shaped`` wants it: 0 if it or one before it is wrong, else ``chance`` to the power of the
    steps that are left. Without, each is judged by what it makes of the number before it.
    """
    (_, last), *asked = ASKED.findall(problem.messages[-1].content)
    steps, at, clean = [], 0, True
    pieces = completion.split(";")
    for place, piece in enumerate(pieces[:64]):
        start, at = at, at + len(piece) + 1
        found = EQUATION.fullmatch(piece)
        if found is None and place == len(pieces) - 1 and BEGUN.fullmatch(piece):
            if piece:
                steps.append(jurat.Step(start=start, end=at - 1, status="abstained", score=None, why="no result yet"))
            break
        right, why = False, "no equation"
        if found is not None:
            a, sign, b, said = found.groups()
            true = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
            wanted = (last, *asked[place]) if place < len(asked) else ()
            right = wanted == (a, sign, b) and true == int(said)
            why = (
                "right"
                if right
                else f"is {true}"
                if true != int(said)
                else f"asked {''.join(wanted) or 'nothing more'}"
            )
            last = said
        clean = clean and right
        score = (clean * chance ** max(0, len(asked) - place - 1)) if prefix else float(right)
        steps.append(
            jurat.Step(
                start=start,
                end=at - 1,
                score=float(score),
                why=why,
                status="correct" if score == 1 else "partial" if score else "incorrect",
            )
        )
    known = [step.score for step in steps if step.score is not None]
    if not known:
        return jurat.Verdict.of("no_answer", why="no step to check", steps=tuple(steps))
    return jurat.Verdict.of("correct" if min(known) else "incorrect", why="lowest step", steps=tuple(steps))
