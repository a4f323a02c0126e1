"""``jurat.verify``: one verdict, now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.types import Verdict
from jurat.verifiers import catalog
from jurat.verifiers.judge import LocalJudge, origin_named
from jurat.verifiers.verdicts import problem_of


def verify(
    name: str,
    /,
    *,
    gold: str,
    answer: str | None = None,
    completion: str | None = None,
    prompt: str = "",
    user_files: Sequence[Path | str] = (),
    args: Mapping[str, Any] | None = None,
    **more: Any,
) -> Verdict:
    """The verdict of verifier ``name`` on one answer. Example: ``verify("math", gold="1/2", answer="0.5").score == 1``.

    Give ``answer`` (a bare answer) or ``completion`` (a whole text, from which the verifier reads the answer). More
    keyword arguments are the verifier's own; those whose name is taken here go into ``args``. ``user_files`` are loaded
    in a child process.
    Raises ConfigError for an unknown name or argument.
    """
    if (answer is None) == (completion is None):
        raise ConfigError(
            "verify needs either answer= or completion=", where=f"verify({name!r})",
            fix="answer is a bare answer, completion a whole text that ends in one",
        )  # fmt: skip
    text = answer if completion is None else completion
    for noun, given in (("name", name), ("gold", gold), ("answer or completion", text), ("prompt", prompt)):
        if not isinstance(given, str):
            raise ConfigError(f"{noun} is text, got {given!r:.80}", where=f"verify({name!r:.80})", fix="give a str")
    assert text is not None
    own = {**(args or {}), **more}
    if completion is None and name in catalog.BUILT_IN and "form" in catalog.find(name).parameters:
        own.setdefault("form", "answer")
    part = RewardPart(members=(Member(use=name, args=own),))
    origins = [origin_named(item) for item in user_files]
    with LocalJudge(part, origins=origins, spares=0, cache=0) as judge:
        return judge.verdict(problem_of(gold, prompt=prompt, verifier=name), text)
