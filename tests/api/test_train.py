"""``jurat train``, for real: what it prints, how it ends, how it goes on."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

import jurat as face
from jurat.platform.provenance import folders


def test_json_line_is_all_of_stdout(trained: Any) -> None:
    assert set(trained.told) == {"run", "state", "step", "metrics", "checkpoint"}
    assert (trained.told["run"], trained.told["state"], trained.told["step"]) == ("small-1", "finished", 8)
    assert Path(trained.told["checkpoint"], "policy", "model.safetensors").is_file()
    assert 0 <= trained.told["metrics"]["reward/mean"] <= 1


def test_lines_without_a_terminal(trained: Any) -> None:
    """One line a step, the evaluations, the tables, the commands that show more; no escape codes."""
    assert "\x1b" not in trained.err
    assert len(re.findall(r"^sft \d+/6  loss \d", trained.err, re.M)) == 6
    assert len(re.findall(r"^grpo \d+/8  reward \d\.\d{3} ± \d\.\d{3}  length", trained.err, re.M)) == 8
    assert re.search(r"^held_out: 6 problems x 2 samples +before +after sft +after grpo +change$", trained.err, re.M)
    for row in (
        "accuracy at temperature 1",
        "greedy",
        "pass@2",
        "answer rate",
        "accuracy given an answer",
        "mean length",
    ):
        assert re.search(rf"^{re.escape(row)}.*\d", trained.err, re.M), row
    assert "jurat rollouts small-1 --worst 10" in trained.err
    assert "jurat plot small-1" in trained.err
    assert trained.told["checkpoint"] in trained.err
    assert "Warning" not in trained.err and "no checkpoint before" not in trained.err


def test_a_checkpoint_names_the_one_its_stage_began_from(jurat: Any, trained: Any) -> None:
    shown = jurat("runs", "show", "latest", "--json", "--home", trained.home).json["checkpoints"]
    digests = {c["stage"]: c["digest"] for c in shown}
    assert [(c["stage"], c["parent"]) for c in shown if c["step"]][-1] == ("grpo", digests["sft"])
    named = 1 + sum(c["parent"] == digests["sft"] for c in shown)
    assert jurat("runs", "show", "latest", "--home", trained.home).out.count(digests["sft"][:23]) == named


@pytest.mark.parametrize(
    "words",
    [
        "version", "recipes ls", "recipes show tiny", "recipes show --schema", "models ls", "models fetch tiny-random",
        "runs ls", "runs show latest", "runs verify latest", "runs timeline latest", "runs timeline latest --step 2",
        "rollouts latest --limit 2", "db upgrade", "datasets ls", "datasets show generated",
        "datasets check generated --size 9", "verifiers ls", "verifiers show math", "verifiers diff math number",
        "verify math --gold 1 --answer 1", "audit math --metamorphic --pairs 9", "runs show nowhere",
        "datasets show nosuch.csv", "verify math --gold 1", "runs shwo",
    ],
)  # fmt: skip
def test_json_is_one_document(jurat: Any, trained: Any, words: str) -> None:
    """Of what succeeds and of what fails."""
    done = jurat(*words.split(), "--json", "--home", trained.home)
    assert done.json is not None
    assert (done.code == 0) is not ("error" in done.json)


def test_dry_run_trains_nothing(jurat: Any, small: Path, tmp_path: Path) -> None:
    done = jurat("train", small, "--dry-run", "--json")
    assert done.code == 0
    assert [(stage["stage"], stage["steps"], stage["problems"]["train"]) for stage in done.json["stages"]] == [
        ("sft", 6, 40), ("grpo", 8, 40),
    ]  # fmt: skip
    assert done.json["stages"][1]["samples_per_step"] == 16
    assert done.json["stages"][1]["samples_per_step_at_most"] == 16
    assert not (tmp_path / "home" / "runs").exists()
    told = jurat("train", small, "--dry-run")
    assert "Nothing was trained" in told.out and "grpo, 8 steps" in told.out


def test_dry_run_says_what_the_algorithm_stands_for(jurat: Any, small: Path) -> None:
    dapo = ("train", small, "--set", "stages.1.algorithm=dapo", "--dry-run")
    sft, filled = (stage["filled"] for stage in jurat(*dapo, "--json").json["stages"])
    assert [*sft] == ["algorithm"] and sft["algorithm"]["name"] == "sft"
    part = filled["algorithm"]
    assert (part["advantage"], part["loss"], part["clip_low"], part["clip_high"]) == ("grpo", "clipped", 0.2, 0.28)
    assert (part["aggregation"], part["shaping"]["scale"], part["credit"]["name"]) == ("token-mean", 2.0, "outcome")
    assert (filled["allocation"]["name"], filled["updates_per_step"]) == ("dapo", 4)
    told = jurat(*dapo).out
    assert (
        "filled  algorithm: {name: dapo, advantage: grpo, loss: clipped, clip_low: 0.2, clip_high: 0.28, "
        "aggregation: token-mean, entropy_coef: 0.0, shaping: {scale: 2.0, offset: -1.0, overlong: {cache: 1}}}\n"
        "        allocation: {name: dapo, samples_per_prompt: 4, oversample: 1.5, max_refills: 4}\n"
    ) in told
    assert "        updates_per_step: 4\n" in told and "filled  algorithm: {name: sft}\n" in told


def test_dry_run_counts_pairs_as_pairs_and_claims_no_gold_where_there_is_none(
    jurat: Any, small: Path, tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"prompt": "1+1=", "chosen": "2", "rejected": "3"}\n')
    recipe = tmp_path / "dpo.yaml"
    recipe.write_text(
        "model: tiny-random\nalgorithm: dpo\nprompts_per_step: 4\nsteps: 1\n"
        "data: {train: {source: pairs.jsonl, fields: {question: prompt}}}\n"
    )
    told = jurat("train", recipe, "--dry-run").out
    assert "data    train 1 pairs" in told and "step    4 pairs" in told
    assert "filled  algorithm: {name: dpo, kind: sigmoid, beta: 0.1}\n" in told
    assert "The data has no gold answers to verify." in told and "Every gold" not in told


def test_dry_run_does_not_say_proven_of_cases_without_a_solution(jurat: Any, small: Path, tmp_path: Path) -> None:
    row = {"question": "Print 3.", "answer": {"mode": "stdio", "tests": [{"stdin": "", "stdout": "3"}]}}
    (tmp_path / "p.jsonl").write_text(json.dumps(row) + "\n")
    recipe = tmp_path / "code.yaml"
    recipe.write_text(
        "model: tiny-random\nalgorithm: grpo\nsteps: 1\ndata: {train: {source: p.jsonl, verifier: code}}\n"
        "reward: {members: [{use: problem}]}\n"
    )
    assert "No gold answer was run; rows of cases without a solution, checked for form only: 1." in (
        jurat("train", recipe, "--dry-run").out
    )
    (tmp_path / "p.jsonl").write_text(json.dumps({**row, "solution": "print(3)"}) + "\n")
    assert "Every gold answer passes its own verifier." in jurat("train", recipe, "--dry-run").out


def test_dry_run_counts_the_greedy_sample_of_remax(jurat: Any, small: Path) -> None:
    given = ("--set", "stages.1.algorithm.name=remax", "--set", "stages.1.allocation={samples_per_prompt: 1}")
    stage = jurat("train", small, *given, "--dry-run", "--json").json["stages"][1]
    assert (stage["samples_per_step"], stage["max_new_tokens_per_step"]) == (8, 48)


@pytest.mark.parametrize(
    ("allocation", "most", "fixed"),
    [
        ("{name: neyman, samples_per_prompt: 4, max_samples: 6}", 24, False),
        ("{name: neyman, samples_per_prompt: 4, cost: samples}", 16, True),
        ("{name: dapo, samples_per_prompt: 4, oversample: 1.5, max_refills: 1}", 48, False),
        ("{name: difficulty}", 20, False),
        ("{name: until_mixed, max_samples: 8}", 32, False),
    ],
)
def test_a_number_of_samples_that_is_decided_later_is_a_bound(
    jurat: Any, small: Path, allocation: str, most: int, fixed: bool
) -> None:
    given = ("--set", f"stages.1.allocation={allocation}", "--set", "stages.1.algorithm.name=rloo", "--dry-run")
    stage = jurat("train", small, *given, "--json").json["stages"][1]
    assert (stage["samples_per_step"], stage["samples_per_step_at_most"]) == (most if fixed else None, most)
    assert stage["max_new_tokens_per_step"] == 6 * most
    told = jurat("train", small, *given).out
    assert (f"step    {most} samples, at most" in told) is fixed
    assert (f"step    at most {most} samples, {6 * most} new tokens" in told) is not fixed


def test_interrupt_then_second_process_then_resume(jurat: Any, launch: Any, small: Path, tmp_path: Path) -> None:
    """Ctrl-C makes a checkpoint and exits with 130; while a process has the run another is refused; resume finishes."""
    text = (
        small.read_text()
        .replace("steps: 8", "steps: 60")
        .replace("checkpoint: {every: 4}", "checkpoint: {every: null}")
    )
    small.write_text(text)
    home = tmp_path / "home"
    process = launch("train", small, "--json", "--run-id", "held", "--home", home)
    refused, seen = None, ""
    for line in process.stderr:
        seen += line
        if line.startswith("grpo 2/60"):
            process.send_signal(signal.SIGSTOP)  # it keeps the run; and does not finish while we look
            refused = jurat("train", "--resume", "held", "--home", home, "--json")
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGINT)
    out = process.stdout.read()
    assert process.wait(60) == 130, seen
    told = json.loads(out)
    assert told["state"] == "interrupted"
    assert 2 <= told["step"] < 60
    assert Path(told["checkpoint"]).is_dir()
    assert "jurat train --resume held" in seen
    assert re.findall(r"no checkpoint before step \d+", seen) == ["no checkpoint before step 60"], (
        "not of a short stage"
    )

    assert refused is not None, seen
    assert refused.code == 75
    assert f"held by process {process.pid}" in refused.err
    assert "kill -INT" in refused.err
    assert "this process did not begin (exit code 75: another process has the run)" in refused.err
    assert (refused.json["state"], refused.json["error"]["exit_code"]) == ("fenced", 75)

    done = jurat("train", "--resume", "held", "--home", home, "--json")
    assert done.code == 0, done.err
    assert (done.json["state"], done.json["step"]) == ("finished", 60)
    steps = [int(n) for n in re.findall(r"^grpo (\d+)/60", done.err, re.M)]
    assert steps == list(range(told["step"] + 1, 61))
    assert "before" in done.err, "the table of a resumed run begins with what the first process measured"


def test_interrupted_twice_it_ends_at_once_and_says_so(jurat: Any, launch: Any, small: Path, tmp_path: Path) -> None:
    small.write_text(small.read_text().replace("steps: 8", "steps: 400"))
    home = tmp_path / "home"
    process = launch("train", small, "--run-id", "twice", "--home", home)
    for line in process.stderr:
        if line.startswith("grpo 2/400"):
            process.send_signal(signal.SIGINT)
        if line.startswith("stopping at a checkpoint"):
            process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    (shown,) = jurat("runs", "ls", "--home", home, "--json").json["runs"]
    assert (shown["state"], shown["detail"]) == ("interrupted", "stopped at once")


def test_resume_of_a_finished_run_takes_no_step(jurat: Any, trained: Any) -> None:
    done = jurat("train", "--resume", trained.run, "--home", trained.home)
    assert done.code == 1
    assert "finished" in done.err


def test_a_name_is_taken_once(jurat: Any, trained: Any, small: Path) -> None:
    done = jurat("train", small, "--run-id", trained.run, "--home", trained.home)
    assert done.code == 2
    assert "there is a run 'small-1' already" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "give a recipe, or a run to go on with"),
        (("tiny", "--resume", "x"), "--resume goes on with a run by its own recipe"),
        (("--resume", "x", "--set", "steps=3"), "--resume goes on with a run by its own recipe"),
        (("--resume", "nowhere"), "no run 'nowhere'"),
    ],
)
def test_what_cannot_go_together(jurat: Any, args: tuple[str, ...], said: str) -> None:
    done = jurat("train", *args)
    assert done.code == 2
    assert said in done.err


# ---- what a run leaves -------------------------------------------------------------------------------------------


def test_weights_of_two_runs_are_compared(jurat: Any, trained: Any, tmp_path: Path) -> None:
    """A run with itself, its stages with one another by their folders, and with what it was exported as."""
    same = jurat("models", "compare", trained.run, trained.run, "--home", trained.home, "--exit-code")
    assert same.code == 0 and "tensors, " in same.out and "in both: equal bytes" in same.out
    stages = trained.home / "runs" / trained.run / "checkpoints"
    words = ["models", "compare", stages / "sft/step-000006", stages / "grpo/step-000008", "--exit-code"]
    other = jurat(*words, "--json")
    assert other.code == 1
    assert not other.json["same_bytes"] and 1e-6 < other.json["largest"] < 1 and other.json["different_numbers"] > 1000
    assert f"by {other.json['largest']:.3g} at most (in {other.json['at']})" in jurat(*words).out
    jurat("export", trained.run, "-o", tmp_path / "out", "--home", trained.home)
    rounded = jurat("models", "compare", trained.run, tmp_path / "out", "--home", trained.home, "--json")
    assert rounded.code == 0 and not rounded.json["same_bytes"] and 0 < rounded.json["distance"] < 2**-8
    assert set(map(tuple, rounded.json["dtypes"].values())) == {("float32", "bfloat16")}
    nowhere = jurat("models", "compare", trained.run, "nowhere", "--home", trained.home)
    assert nowhere.code == 2 and "no model 'nowhere'" in nowhere.err


def test_eval_of_a_run(jurat: Any, trained: Any) -> None:
    """The run's own held-out set, prompt and sampling; the same numbers as at its end."""
    done = jurat("eval", trained.run, "held_out", "--samples", 2, "--limit", 6, "--json", "--home", trained.home)
    assert done.code == 0, done.err
    told = done.json
    assert (told["problems"], told["samples"], told["temperature"]) == (6, 2, 1.0)
    assert told["pass_at"]["1"]["low"] <= told["pass_at"]["1"]["value"] <= told["pass_at"]["2"]["value"]
    last = face.Run(trained.run, home=trained.home).evaluations[-1]
    assert told["accuracy"]["value"] == last.accuracy.value
    assert told["greedy"]["value"] == last.greedy.value


def test_eval_of_a_model_by_name(jurat: Any, trained: Any) -> None:
    done = jurat(
        "eval",
        "tiny-random",
        "generated:plain",
        "--limit",
        3,
        "--samples",
        2,
        "--max-new-tokens",
        4,
        "--home",
        trained.home,
    )
    assert done.code == 0, done.err
    assert re.search(r"^pass@2 .*\[", done.out, re.M)
    assert "95 % interval" in done.out


def test_export_loads_in_plain_transformers(jurat: Any, trained: Any, tmp_path: Path) -> None:
    out = tmp_path / "model"
    done = jurat("export", trained.run, "-o", out, "--json", "--home", trained.home)
    assert done.code == 0, done.err
    assert done.json["folder"] == str(out)
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    ids = tokenizer("2 + 3", return_tensors="pt").input_ids
    assert model(ids).logits.shape[-1] == 512
    origin, named = json.loads((out / "jurat.json").read_text()), folders.manifest(out)[0]
    back = jurat("lineage", "of", named, "--json", "--home", trained.home).json
    assert origin["run"] == trained.run and origin["checkpoint"] in {node["id"] for node in back["nodes"]}
    again = jurat("export", trained.run, "-o", out, "--home", trained.home)
    assert again.code == 2 and "something in the way" in again.err


def test_face(trained: Any, tmp_path: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``jurat.train`` in Python is the same; its handle reads metrics, rollouts and checkpoint from the record."""
    run = face.train(
        small, {"stages.0.steps": 1, "stages.1.steps": 2, "evaluate.final_problems": 2}, home=tmp_path / "home"
    )
    assert run.state == "finished"
    assert run.recipe.stages[1].steps == 2
    assert [step for _, step, _ in run.history("reward/mean", stage="grpo")] == [0, 1]
    assert run.metrics["reward/mean"] == run.history("reward/mean")[-1][2]
    worst = run.rollouts(worst=3)
    assert len(worst) == 3
    assert run.checkpoint.name == "step-000002"
    assert "grpo 2/2" in capsys.readouterr().err
    assert face.Run("latest", home=tmp_path / "home").id == run.id
    with pytest.raises(Exception, match="give a recipe or a run"):
        face.train()


async def test_face_inside_an_event_loop(small: Path, tmp_path: Path) -> None:
    """As in a notebook."""
    run = face.train(small, {"stages.0.steps": 1, "stages.1.steps": 1, "evaluate.final_problems": 1}, home=tmp_path)
    assert run.state == "finished"


def test_resume_from_a_database_of_ones_own(jurat: Any, small: Path, tmp_path: Path) -> None:
    """A run recorded elsewhere is found by --database, by resume, plot and the handle in Python."""
    url = f"sqlite:///{tmp_path / 'mine.db'}"
    given = ("--set", f"tracking.database={url}", "--set", "stages.0.steps=1", "--set", "stages.1.steps=1")
    first = jurat("train", small, "--run-id", "mine", "--json", *given)
    assert first.code == 0, first.err
    assert "held_out: 6 problems" in first.err and "before" in first.err
    assert jurat("train", "--resume", "mine").code == 2
    again = jurat("train", "--resume", "mine", "--database", url)
    assert again.code == 1 and "finished" in again.err
    assert jurat("plot", "mine", "-o", tmp_path / "c.svg", "--database", url).code == 0
    assert face.Run("mine", home=tmp_path / "home", database=url).state == "finished"


def test_a_model_or_a_name_that_cannot_be_is_refused_before_a_run_is_recorded(
    jurat: Any, trained: Any, small: Path
) -> None:
    """Paths are the recipe's; the error says where was looked."""
    taken = jurat("train", small, "--run-id", "small-1", "--home", trained.home)
    assert taken.code == 2 and "there is a run 'small-1' already" in taken.err
    small.write_text(small.read_text().replace("tiny-random", "./nowhere"))
    for words in (("train", small, "--run-id", "small-9"), ("train", small, "--dry-run"), ("estimate", small)):
        told = jurat(*words, "--home", trained.home)
        assert told.code == 2 and "no model './nowhere'" in told.err
        assert f"no folder at {small.parent / 'nowhere'} or " in told.err
    assert [run["run"] for run in jurat("runs", "ls", "--json", "--home", trained.home).json["runs"]] == ["small-1"]


def test_dry_run_says_what_neyman_may_spend(jurat: Any, small: Path) -> None:
    part = "stages.1.allocation={name: neyman, samples_per_prompt: 4}"
    stage = jurat("train", small, "--set", part, "--dry-run", "--json").json["stages"][1]
    assert (stage["samples_per_step_budget"], stage["samples_per_step_at_most"]) == (16, 128)
    told = jurat("train", small, "--set", part, "--dry-run").out
    assert "step    at most 128 samples, 768 new tokens; the budget is about 16 samples\n" in told


def test_packages_that_vllm_names_and_that_break_transformers_are_told(tmp_path, monkeypatch):
    import sys

    from jurat.api.cli_train import needs_engine
    from jurat.platform.errors import ConfigError

    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").touch()
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(ConfigError, match="torchvision::nms does not exist") as refused:
        needs_engine()
    assert refused.value.fix.startswith("pip uninstall -y torchvision torchaudio torchcodec")
