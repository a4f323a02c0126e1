"""The tables at the end of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from jurat.api.summary import change, evaluation_line, evaluation_table, finals, summary
from jurat.platform.types import Estimate, Evaluation


def estimate(value: float) -> Estimate:
    return Estimate(value=value, low=value - 0.02, high=value + 0.02)


def evaluation(
    step: int, accuracy: float, *, stage: str = "", greedy: bool = True, name: str = "held_out"
) -> Evaluation:
    return Evaluation(
        name=name, stage=stage, step=step, problems=300, samples=8, accuracy=estimate(accuracy),
        pass_at={1: estimate(accuracy), 4: estimate(0.5), 8: estimate(0.75)}, answer_rate=estimate(0.9),
        accuracy_given_answer=estimate(accuracy / 0.9), mean_tokens=9.2 - step / 10, truncated=0.05, undecided=0.0,
        greedy=estimate(accuracy + 0.1) if greedy else None, seconds=3.0, final=greedy,
    )  # fmt: skip


def test_before_and_after() -> None:
    assert evaluation_table([evaluation(0, 0.1), evaluation(45, 0.84)]) == [
        "held_out: 300 problems x 8 samples  before                after                 change",
        "accuracy at temperature 1           0.100 [0.080, 0.120]  0.840 [0.820, 0.860]  +0.740",
        "greedy                              0.200 [0.180, 0.220]  0.940 [0.920, 0.960]  +0.740",
        "pass@8                              0.750 [0.730, 0.770]  0.750 [0.730, 0.770]  +0.000",
        "answer rate                         0.900 [0.880, 0.920]  0.900 [0.880, 0.920]  +0.000",
        "accuracy given an answer            0.111 [0.091, 0.131]  0.933 [0.913, 0.953]  +0.822",
        "mean length, tokens                 9.2                   4.7                   -4.5",
        "cut at the limit                    5.0 %                 5.0 %                 +0.0 %",
    ]


def test_stages_are_columns() -> None:
    rows = [evaluation(0, 0.1, stage="sft"), evaluation(100, 0.3, stage="sft"), evaluation(50, 0.8, stage="grpo")]
    assert evaluation_table(rows)[0].split()[-6:] == ["before", "after", "sft", "after", "grpo", "change"]


def loss(step: int, stage: str, value: float) -> Evaluation:
    """Of a stage whose rows have no answers."""
    return Evaluation(
        name="held_out", stage=stage, step=step, problems=40, samples=0, seconds=0.5, final=True, losses={stage: value}
    )


def test_a_loss_is_told_and_no_accuracy_made_up() -> None:
    assert evaluation_table([loss(0, "dpo", 0.693), loss(9, "dpo", 0.5)]) == [
        "held_out: 40 problems  before  after  change",
        "dpo loss               0.693   0.500  -0.193",
    ]
    assert evaluation_line(loss(9, "dpo", 0.5)) == "held_out at dpo step 9 (40 problems): dpo loss 0.500 (0.5 s)"


def test_losses_and_accuracies_of_stages_stand_in_one_table() -> None:
    rows = [
        replace(evaluation(0, 0.1, stage="sft"), losses={"sft": 2.0}),
        replace(evaluation(100, 0.3, stage="sft"), losses={"sft": 1.5}),
        loss(0, "kto", 0.5),
        loss(20, "kto", 0.25),
    ]
    table = evaluation_table(rows)
    heads = table[0].removeprefix("held_out: 300 problems x 8 samples").split("  ")
    assert [head.strip() for head in heads if head] == ["before", "after sft", "before kto", "after kto", "change"]
    assert table[1].split()[-3:] == ["-", "-", "+0.200"]
    assert [line.split() for line in table[-2:]] == [
        ["sft", "loss", "2.000", "1.500", "-", "-", "-0.500"],
        ["kto", "loss", "-", "-", "0.500", "0.250", "-0.250"],
    ]
    assert evaluation_line(rows[0]).endswith("cut 5.0 %, sft loss 2.000 (3.0 s)")


def test_an_undecided_share_is_told() -> None:
    told = "\n".join(evaluation_table([replace(evaluation(0, 0.1), undecided=0.02)], 0.7))
    assert "undecided" in told and "2.0 %" in told and "accuracy at temperature 0.7" in told
    assert "undecided 2.0 %" in evaluation_line(replace(evaluation(0, 0.1), undecided=0.02))


def test_only_full_evaluations_are_in_the_table() -> None:
    rows = [evaluation(0, 0.1), evaluation(15, 0.3, greedy=False), evaluation(45, 0.8)]
    assert [e.step for e in finals(rows, "held_out")] == [0, 45]
    assert finals(rows, "unseen") == []


def test_change_of_what_is_missing() -> None:
    assert change(None, estimate(0.5), str) == ""
    assert change(0.5, 0.25, lambda x: f"{x:.2f}") == "-0.25"


def test_summary_without_a_record_shows_what_was_seen(tmp_path: Path) -> None:
    """A record that cannot be read hides no result."""
    outcome = SimpleNamespace(
        run="r-1", folder=tmp_path, state="interrupted", step=7, metrics={}, checkpoint="/runs/r-1/step-000007",
        evaluations=(evaluation(0, 0.1), evaluation(0, 0.05, name="unseen")),
    )  # fmt: skip
    told = "\n".join(summary(outcome, home=tmp_path))  # type: ignore[arg-type]
    assert "held_out: 300 problems" in told and "unseen: 300 problems" in told
    assert "r-1 interrupted at step 7" in told
    assert (
        "jurat train --resume r-1" in told
        and "jurat rollouts r-1 --worst 10" in told
        and "/runs/r-1/step-000007" in told
    )
