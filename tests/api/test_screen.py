"""What a run looks like, from recorded reports."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from jurat.api.screen import (
    History,
    LineScreen,
    LiveScreen,
    choose_screen,
    duration,
    panel,
    phases,
    sparkline,
    step_line,
)
from jurat.platform.recipe import Recipe
from jurat.platform.types import Estimate, Evaluation, StepReport
from jurat.trainers.presets import filled

RECIPE = Recipe.model_validate({
    "name": "demo", "model": "smollm2", "data": {"train": {"source": "generated"}}, "sampling": {"max_new_tokens": 16},
})  # fmt: skip
TEACHING = RECIPE.model_copy(
    update={"algorithm": Recipe.model_validate({**RECIPE.model_dump(), "algorithm": {"name": "sft"}}).algorithm}
)


def report(step: int, **more: float) -> StepReport:
    metrics = {
        "reward/mean": 0.1 * step, "reward/std": 0.488, "reward/undecided": 0.0, "tokens/mean_length": 7.42,
        "tokens/max_length": 16.0, "tokens/truncated": 0.031, "tokens/sampled": 480.0, "group/count": 8.0,
        "group/discarded": 0.0, "group/zero_variance": 0.375, "verifier/problem/mean": 0.61,
        "verifier/problem/undecided": 0.0, "policy/loss": 0.5, "policy/grad_norm": 1.234, "policy/entropy": 0.81,
        "policy/logprob_diff_mean": 0.0021, "policy/trained_tokens": 400.0, "policy/forwarded_tokens": 900.0,
        **{key.replace("__", "/"): value for key, value in more.items()},
    }  # fmt: skip
    seconds = {"batch": 2.1, "sample": 1.9, "judge": 0.1, "score": 0.0, "update": 1.8, "publish": 0.1}
    return StepReport(step=step, version=step + 1, metrics=metrics, updates=(), seconds=seconds)


def history(*reports: StepReport, stage: str = "", recipe: Recipe = RECIPE) -> History:
    made = History()
    made.start(run_id="r-1", stage=stage, recipe=recipe, first_step=0, last_step=60)
    for each in reports:
        made.step(each)
    return made


def evaluation(step: int, accuracy: float, *, name: str = "held_out") -> Evaluation:
    e = Estimate(value=accuracy, low=accuracy - 0.05, high=accuracy + 0.05)
    return Evaluation(
        name=name, stage="", step=step, problems=300, samples=8, accuracy=e, pass_at={1: e, 8: e}, answer_rate=e,
        accuracy_given_answer=e, mean_tokens=7.0, truncated=0.1, undecided=0.0, greedy=e, seconds=3.2,
    )  # fmt: skip


def test_step_line() -> None:
    assert step_line(history(report(6))) == (
        "grpo 7/60  reward 0.600 ± 0.488  length 7.4  cut 3 %  no signal 38 %  logprob diff 0.0021  entropy 0.81  "
        "grad norm 1.23  4.0 s/step  253 tokens/s  ETA 3:32"
    )


@pytest.mark.parametrize(("first", "said"), [(0, "steps 1 to 60"), (7, "steps 8 to 60"), (60, "all 60 steps done")])
def test_the_first_line_counts_as_the_others_do(first: int, said: str) -> None:
    screen = LineScreen(out := io.StringIO())
    screen.start(run_id="r", stage="", recipe=RECIPE, first_step=first, last_step=60)
    assert out.getvalue() == f"run r: demo: grpo on smollm2, {said}\n"


def test_step_line_names_undecided_verifiers_and_teaching() -> None:
    unsure = step_line(history(report(0, reward__undecided=0.1, verifier__problem__undecided=0.1)))
    assert "problem 0.610 (undecided 10 %)" in unsure
    taught = step_line(history(report(0), stage="sft", recipe=TEACHING))
    assert taught.startswith("sft 1/60  loss 0.500  entropy") and "reward" not in taught and "tokens/s" not in taught


def test_no_trained_token_shows_no_policy_numbers() -> None:
    """Their means would be 0, as if the policy had no entropy."""
    line = step_line(history(report(0, policy__trained_tokens=0.0)))
    assert "nothing to learn from" in line and "entropy" not in line


def test_of_batches_drawn_ahead_only_the_wait_counts_and_no_speed_is_given() -> None:
    ahead = RECIPE.model_copy(update={"engine": RECIPE.engine.model_copy(update={"max_lag": 2})})
    drawn = replace(report(0), seconds={"batch": 0.5, "sample": 7.0, "judge": 1.0, "update": 1.5})
    line = step_line(history(drawn, recipe=ahead))
    assert "2.0 s/step" in line and "tokens/s" not in line
    assert phases(drawn) == pytest.approx({"sample": 0.4375, "judge": 0.0625, "update": 1.5})


def test_phases_split_the_wait() -> None:
    assert phases(report(0)) == pytest.approx(
        {"sample": 1.9, "judge": 0.1, "update": 1.8, "publish": 0.1, "other": 0.1}
    )


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.063, "63 ms"), (4.12, "4.1 s"), (59.9, "59.9 s"), (151, "2:31"), (3751, "1:02:31")]
)
def test_duration(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0], 10) == "▁▅█"
    assert sparkline([0, 0, 1, 1], 2) == "▁█"
    assert sparkline([0.3] * 4, 3) == "▄▄▄"
    assert sparkline([], 5) == sparkline([1.0], 0) == ""
    assert len(sparkline([float(i % 7) for i in range(1000)], 40)) == 40


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_panel_fits_and_says_everything(width: int) -> None:
    told = history(*(report(i, verifier__length__mean=0.9, verifier__length__undecided=0.02) for i in range(12)))
    told.evaluations += [evaluation(0, 0.1), evaluation(12, 0.44)]
    lines = [line.plain for line in panel(told, width, running=1.0, elapsed=93.0)]
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    assert "step 12/60" in text
    if width == 120:
        for expected in (
            "ETA 3:12", "reward      1.100 ± 0.488", "▁", "best 1.100", "length      0.900  undecided 2 %",
            "without signal 38 %", "7.4 an answer  longest 16 of 16  cut 3 %", "253 tokens/s sampled",
            "logprob diff 0.0021  entropy 0.81  grad norm 1.23", "500 tokens/s trained",
            "sample 1.9 s", "accuracy 0.100 → 0.440 [0.390, 0.490] at step 12",
        ):  # fmt: skip
            assert expected in text, text


def test_panel_of_losses() -> None:
    none = dict.fromkeys(("accuracy", "answer_rate", "accuracy_given_answer", "mean_tokens", "truncated", "greedy"))
    told = history(report(0))
    told.evaluations += [
        replace(evaluation(step, 0.1), **none, samples=0, pass_at={}, losses={"dpo": value})  # type: ignore[arg-type]
        for step, value in ((0, 0.693), (12, 0.5))
    ]
    text = "\n".join(line.plain for line in panel(told, 120, running=1.0, elapsed=93.0))
    assert "dpo loss 0.693 → 0.500 at step 12" in text and "accuracy" not in text


def test_panel_before_the_first_step() -> None:
    assert "starting" in panel(History(), 80, running=1.0, elapsed=2.0)[0].plain
    assert "measuring or sampling" in panel(history(), 120, running=1.0, elapsed=2.0)[0].plain


def drive(screen: Any) -> None:
    with screen:
        screen.note("loading \x1b[2J")
        screen.start(run_id="r-1", stage="sft\x1b]0;x\x07", recipe=RECIPE, first_step=0, last_step=60)
        screen.evaluation(evaluation(0, 0.1))
        screen.step(report(0))
        screen.start(run_id="r-1", stage="grpo", recipe=RECIPE, first_step=0, last_step=60)
        screen.step(report(0, **{"verifier__\x1b[31mred__mean": 0.5, "verifier__\x1b[31mred__undecided": 0.5}))
        screen.note("warning: careful")
        assert screen.progress()["run"] == "r-1" and screen.progress()["step"] == 1
        assert screen.progress()["metrics"]["reward/mean"] == 0.0


def test_lines_hold_no_escape_code_whatever_is_told() -> None:
    out = io.StringIO()
    drive(LineScreen(out))
    assert "\x1b" not in out.getvalue() and "\x07" not in out.getvalue()
    assert "loading \\x1b[2J" in out.getvalue()
    assert re.search(
        r"^held_out at step 0 \(300 problems\): accuracy 0.100 \[0.050, 0.150\], greedy 0.100, pass@8",
        out.getvalue(),
        re.M,
    )


def test_live_screen_obeys_nothing_it_is_told() -> None:
    out = io.StringIO()
    drive(LiveScreen(Console(file=out, force_terminal=True, width=100, color_system="standard", markup=False)))
    said = out.getvalue()
    assert "\x1b[2J" not in said and "\x1b]0" not in said and "\x07" not in said
    assert "\\x1b[31mred" in said
    assert "step 1/60" in said and "warning: careful" in said


def test_live_only_where_a_person_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(choose_screen(as_json=False, stream=Terminal()), LiveScreen)
    assert isinstance(choose_screen(as_json=True, stream=Terminal()), LineScreen)
    assert isinstance(choose_screen(as_json=False, stream=io.StringIO()), LineScreen)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(choose_screen(as_json=False, stream=Terminal()), LineScreen)


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    drive(LiveScreen(Console(file=out, force_terminal=True, width=100, markup=False)))
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", out.getvalue())


def test_a_step_without_groups_says_that_nothing_was_learnt() -> None:
    dapo = RECIPE.model_copy(
        update={"allocation": Recipe.model_validate({**RECIPE.model_dump(), "allocation": {"name": "dapo"}}).allocation}
    )
    none = report(1, reward__mean=0.0, group__count=0.0, group__discarded=60.0)
    said = step_line(history(report(0), none, recipe=dapo))
    assert said.startswith("grpo 2/60  no group was mixed: nothing learnt  60 discarded  ") and "reward" not in said
    assert "no group was kept: nothing learnt" in step_line(history(none))
    assert "no signal 38 %  discarded 7  " in step_line(history(report(0, group__discarded=7.0), recipe=dapo))
    shown = "\n".join(str(line) for line in panel(history(none, recipe=dapo), 100, running=0.0, elapsed=0.0))
    assert "no group was mixed" in shown and "±" not in shown


def test_no_signal_is_not_said_where_groups_are_not_compared() -> None:
    for name, said in (("remax", True), ("ppo", False), ("reinforce_pp", False)):
        recipe = filled(Recipe.model_validate({**RECIPE.model_dump(exclude_unset=True), "algorithm": {"name": name}}))
        assert ("no signal" in step_line(history(report(0), recipe=recipe))) is said
