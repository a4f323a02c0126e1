"""Real processes killed at named points and random moments, resumed: equal to the run that was never interrupted.

Equal means: the same weights bit for bit, and the same rollouts (ids, tokens, rewards) in the record, each once.
"""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = """
model: tiny-random
data:
  train: {source: "generated:plain", levels: [1], size: 40}
  held_out: {source: "generated:plain", levels: [1], size: 8, split: held_out}
optim: {lr: 1.0e-3}
sampling: {max_new_tokens: 6}
engine: {dtype: float32, threads: 1}
evaluate: {problems: 4, final_problems: 4, samples: 2}
checkpoint: {every: 2, keep: 2}
prompts_per_step: 4
allocation: {samples_per_prompt: 4}
stages:
  - {name: sft, steps: 3, algorithm: {name: sft}}
  - {name: grpo, steps: 5, algorithm: {name: grpo}, updates_per_step: 2}
"""

NAMED = [
    "rollouts.mid_write:2",
    "ledger.mid_commit:3",
    "sampler.mid_decode:30",
    "loop.between_update_and_publish:5",
    "checkpoint.mid_write:3",
    "checkpoint.before_rename:3",
    "checkpoint.after_rename:3",
]

QUICK = ("rollouts.mid_write:2", "loop.between_update_and_publish:5", "checkpoint.before_rename:3")
"""The points of `make test`; `make soak` takes all, and ten random moments."""


def command(home: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "jurat", "--home", str(home), "train", *arguments]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **extra}


def start(home: Path, recipe: Path, **extra: str) -> subprocess.Popen:
    return subprocess.Popen(
        command(home, str(recipe), "--run-id", "k"),
        env=environment(**extra),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(home: Path, recipe: Path) -> str:
    """Resume, or begin again if the run was killed before it was recorded; returns what it said."""
    done = subprocess.run(
        command(home, "--resume", "k"), env=environment(), capture_output=True, text=True, timeout=120
    )
    if done.returncode == 2 and "no run" in done.stderr:
        done = subprocess.run(
            command(home, str(recipe), "--run-id", "k"), env=environment(), capture_output=True, text=True, timeout=120
        )
    ended = "is finished" in done.stderr  # killed between its last word and its exit
    assert done.returncode == 0 or ended, done.stderr
    return done.stderr


def result(home: Path) -> tuple[str, list[tuple]]:
    """(sha256 of the final weights, every canonical rollout)."""
    from jurat.platform.runs.rollouts import read
    from jurat.platform.runs.store import Store

    folder = home / "runs" / "k" / "checkpoints" / "grpo" / "step-000005" / "policy"
    weights = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        weights.update(file.read_bytes())
    store = Store.open(None, home)
    page = read(store, store.run("k"), limit=None)
    store.close()
    assert page.faults == ()
    kept = [
        (
            r.stage,
            r.step,
            r.scored.rollout.id,
            r.scored.rollout.visit,
            tuple(r.scored.rollout.tokens.tolist()),
            r.scored.judgement.reward.value,
            r.advantage,
            r.advantages,
        )
        for r in page.records
    ]
    assert all((row[-2] is None) == (row[0] == "sft") for row in kept)
    return weights.hexdigest(), sorted(kept)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, recipe) -> tuple[str, list[tuple]]:
    home = tmp_path_factory.mktemp("whole")
    process = start(home, recipe)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    weights, rows = result(home)
    assert len(rows) == 3 * 4 + 5 * 16
    assert len({row[2] for row in rows}) == len(rows)
    return weights, rows


@pytest.mark.parametrize(
    "fault", [fault if fault in QUICK else pytest.param(fault, marks=pytest.mark.soak) for fault in NAMED]
)
def test_killed_at_a_named_point(fault, recipe, uninterrupted, tmp_path):
    process = start(tmp_path, recipe, JURAT_FAULT=fault)
    _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, said
    finish(tmp_path, recipe)
    assert result(tmp_path) == uninterrupted


def test_stopped_process_holds_the_run_and_goes_on(recipe, uninterrupted, tmp_path):
    """SIGSTOP: a second process is refused with the holder's pid; after SIGCONT the run ends as if nothing had been."""
    process = start(tmp_path, recipe, JURAT_FAULT="loop.between_update_and_publish:5:STOP")
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    second = subprocess.run(
        command(tmp_path, "--resume", "k"), env=environment(), capture_output=True, text=True, timeout=120
    )
    assert second.returncode == 75, second.stderr
    assert str(process.pid) in second.stderr
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    assert result(tmp_path) == uninterrupted


def test_interrupted_once_it_checkpoints_and_resumes_equal(recipe, uninterrupted, tmp_path):
    process = start(tmp_path, recipe, JURAT_FAULT="loop.between_update_and_publish:5:INT")
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "stopping at a checkpoint" in said
    finish(tmp_path, recipe)
    assert result(tmp_path) == uninterrupted


def killed_at_random(recipe: Path, uninterrupted, home: Path, seed: int) -> None:
    moments = random.Random(seed)
    for _ in range(2):
        home.mkdir(exist_ok=True)
        process = (
            start(home, recipe)
            if not (home / "runs" / "k").exists()
            else subprocess.Popen(
                command(home, "--resume", "k"), env=environment(), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        )
        try:
            process.wait(timeout=moments.uniform(1.0, 7.0))
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        if process.returncode == 0:  # it ended before its moment came
            break
    else:
        finish(home, recipe)
    assert result(home) == uninterrupted


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_random_moments(seed, recipe, uninterrupted, tmp_path):
    killed_at_random(recipe, uninterrupted, tmp_path / "home", seed)


LAG = """
model: tiny-random
data:
  train: {source: "generated:plain", levels: [1], size: 40}
optim: {lr: 1.0e-3}
sampling: {max_new_tokens: 12}
engine: {dtype: float32, threads: 1, max_lag: 2}
checkpoint: {every: 2, keep: 2}
prompts_per_step: 4
steps: 6
allocation: {samples_per_prompt: 4}
"""


@pytest.mark.parametrize(
    "fault",
    [
        "loop.between_update_and_publish:4",
        *(
            pytest.param(fault, marks=pytest.mark.soak)
            for fault in ("sampler.mid_decode:20", "checkpoint.before_rename:2", "rollouts.mid_write:3")
        ),
    ],
)
def test_killed_with_batches_in_flight(fault, tmp_path):
    """With a lag numbers depend on speed; still each sample is trained once, and its spans say by whom it was drawn."""
    from jurat.platform.runs.rollouts import read
    from jurat.platform.runs.store import Store

    recipe = tmp_path / "lag.yaml"
    recipe.write_text(LAG)
    process = start(tmp_path, recipe, JURAT_FAULT=fault)
    _, said = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, said
    finish(tmp_path, recipe)
    store = Store.open(None, tmp_path)
    page = read(store, store.run("k"), limit=None)
    store.close()
    assert page.faults == ()
    rollouts = [(row.step, row.scored.rollout) for row in page.records]
    assert sorted(step for step, _ in rollouts) == [step for step in range(6) for _ in range(16)]
    assert len({(r.problem.id, r.visit, r.index) for _, r in rollouts}) == 6 * 16
    for step, rollout in rollouts:
        assert [*range(rollout.num_completion_tokens)] == [t for s in rollout.spans for t in range(s.start, s.end)]
        assert all(max(0, step - 2) <= span.version <= step for span in rollout.spans)
    assert any(span.version < step for step, rollout in rollouts for span in rollout.spans)


def test_the_json_line_of_a_finished_run(recipe, tmp_path):
    done = subprocess.run(
        command(tmp_path, str(recipe), "--run-id", "k", "--json"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    line = json.loads(done.stdout)
    assert (line["run"], line["state"], line["step"]) == ("k", "finished", 5)
    assert Path(line["checkpoint"]).name == "step-000005"
