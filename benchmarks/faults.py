"""What a run on Ray loses when its processes do: time, and nothing else.

    python benchmarks/faults.py recovery [--only learner,actor.mid_work] [--signals KILL STOP] [--hang 15] [--json OUT]
    python benchmarks/faults.py slow-judge [--steps 12] [--seconds 1.0] [--json OUT]

``recovery`` runs a tiny recipe once for each role, point and signal; the process of that role is hit there, and the run is
compared with one in this process without faults, to the last bit: tokens, rewards, metrics of all steps, digests of the
last checkpoint; the sampler's log-probs but for their rounding. A killed process is missed at once, a stopped one after
``--hang`` seconds without progress, which its time includes. Snapshots are taken every 2 updates, so that a learner comes
back from one and from updates after it.

``slow-judge`` runs a recipe with three judges, then again with one stopped for good and one that works for 20 ms in every
``--seconds``, and prints the share of the time in which sampler and learner wait for the last verdicts of a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from jurat.engine.ray import needs_ray
from jurat.platform.config import override, validate
from jurat.platform.runs.rollouts import read
from jurat.platform.runs.store import Store
from jurat.platform.types import StepReport
from jurat.trainers import launch
from jurat.trainers.metrics import is_timed

RECIPE: Mapping[str, Any] = {
    "model": "tiny-random",
    "data": {"train": {"source": "generated:plain", "levels": [1], "size": 40}},
    "reward": {"members": [{"use": "problem"}, {"use": "fluency"}]},
    "optim": {"lr": 1e-3},
    "sampling": {"max_new_tokens": 6},
    "engine": {"dtype": "float32", "threads": 1, "pools": {"main": {"cpus": 1}}},
    "checkpoint": {"every": 1},
    "steps": 3,
    "prompts_per_step": 4,
    "updates_per_step": 2,
    "allocation": {"samples_per_prompt": 4},
    "seed": 3,
}
ALGORITHMS: Mapping[str, Mapping[str, Any]] = {
    "reference": {"name": "grpo", "kl": {"coef": 0.1}},
    "critic": {"name": "ppo", "critic": {"lr": 1e-3}},
}
RANKS: Mapping[str, Any] = {"engine.ranks": 2, "engine.pools": {"main": {"cpus": 2}}}
"""For the role ``rank``: the second of the learner's two, with which the other, and their actor, are made again."""
"""By the role that needs it; the others are in every run."""
POINTS: Mapping[str, Sequence[str]] = {
    "sampler": ("actor.mid_start", "sampler.mid_decode:8", "actor.before_answer:2", "actor.after_answer:2", "actor.mid_weights:2"),
    "judge": ("actor.mid_start", "actor.asked:2", "actor.mid_work:20", "actor.before_answer:3", "actor.after_answer:3"),
    "reference": ("actor.mid_start", "actor.mid_weights", "actor.asked:2", "actor.mid_work:2", "actor.before_answer:2"),
    "learner": ("actor.mid_work:5", "actor.before_answer:5", "actor.mid_weights:3", "actor.mid_snapshot:2", "learner.mid_save:2"),
    "rank": ("rank.asked:5", "rank.mid_update:2", "rank.mid_weights:3", "rank.mid_save:3", "rank.before_answer:5"),
    "critic": ("actor.mid_start", "actor.mid_work:5", "actor.before_answer:5", "actor.mid_snapshot:2", "learner.mid_save:2"),
}  # fmt: skip
"""Role -> points of platform/faults.py with the visit at which it strikes."""
ROUNDING = 2e-6
"""Of a float32 log-prob: four times the last bit of one below 8."""


@dataclass
class Screen:
    """A Reporter that keeps what it hears."""

    begun: Callable[[], None] = lambda: None
    steps: list[StepReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def start(self, **_: Any) -> None:
        self.begun()

    def step(self, report: StepReport) -> None:
        self.steps.append(report)

    def evaluation(self, _: Any) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)


@dataclass(frozen=True)
class Result:
    """What must not depend on faults."""

    rollouts: tuple[tuple[Any, ...], ...]
    logprobs: Mapping[str, np.ndarray]
    """The sampler's, by rollout. Asked again, a prompt may be prefilled in another batch, whose sums are rounded otherwise."""
    metrics: tuple[Mapping[str, float], ...]
    """By step, seconds left out."""
    state: Mapping[str, str]
    """Digest of each learner's weights and moments at the end."""


def train(changes: Mapping[str, Any], screen: Screen) -> Result:
    """Run the recipe with ``changes`` in a folder of its own."""
    with TemporaryDirectory() as scratch:
        home = Path(scratch)
        recipe = validate(override(dict(RECIPE), dict(changes)), where="benchmarks/faults.py")
        outcome = launch.train(recipe, home=home, base=home, reporter=screen, run_id="r")
        files = json.loads((Path(outcome.checkpoint) / "manifest.json").read_text())["files"]
        store = Store.open(None, home)
        records = read(store, store.run("r"), limit=None).records
        store.close()
    rollouts = [
        (
            r.step,
            r.scored.rollout.id,
            r.scored.rollout.tokens.tolist(),
            r.scored.judgement.reward.value,
        )
        for r in records
    ]
    logprobs = {r.scored.rollout.id: r.scored.rollout.sampler_logprobs for r in records}
    metrics = [{k: v for k, v in step.metrics.items() if not is_timed(k)} for step in screen.steps]
    state = {name: digest for name, digest in files.items() if name.endswith(".safetensors")}
    return Result(tuple(sorted(rollouts)), logprobs, tuple(metrics), state)


@cache
def clean(role: str) -> Result:
    """The run that ``role`` takes part in, in this process, without faults."""
    return train(_with(role), Screen())


def _with(role: str) -> dict[str, Any]:
    """What a run needs that ``role`` takes part in."""
    return {"algorithm": ALGORITHMS.get(role, {"name": "grpo"}), **(RANKS if role == "rank" else {})}


@dataclass(frozen=True)
class Row:
    role: str
    point: str
    signal: str
    seconds: float | None
    """From the loss to the new process's readiness; None: the point was not reached."""
    differs: tuple[str, ...]
    """What of tokens, rewards, metrics and final state is not that of the clean run to the last bit, nor the sampler's
    log-probs but for rounding."""
    lost: int
    doubled: int
    """Samples against the clean run."""

    @property
    def good(self) -> bool:
        return self.seconds is not None and not (self.differs or self.lost or self.doubled)


def hit(role: str, point: str, number: str, *, hang_seconds: float) -> Row:
    """Run with ``number`` (KILL, STOP) sent at ``point`` (``name:visit``) to the process of ``role``."""
    from jurat.engine.ray.adapters import RemoteLearner

    expected, screen = clean(role), Screen()
    name, _, visit = point.partition(":")
    at, noted = ("learner@rank1", "learner") if role == "rank" else (role, role)
    os.environ["JURAT_FAULT"] = f"{at}@{name}:{visit or 1}:{number}"
    kept, RemoteLearner.REPLAYED = RemoteLearner.REPLAYED, 2
    try:
        found = train({**_with(role), "engine.home": "ray", "engine.hang_seconds": hang_seconds}, screen)
    finally:
        RemoteLearner.REPLAYED = kept
        del os.environ["JURAT_FAULT"]
    taken = rf"the {noted} \(process \d+\) .*took over after ([\d.]+) s"
    seconds = [float(said[1]) for note in screen.notes if (said := re.search(taken, note))]
    counts, wanted = (Counter(row[1] for row in each.rollouts) for each in (found, expected))
    return Row(
        role, point, number, max(seconds, default=None), tuple(differences(found, expected)),
        lost=(wanted - counts).total(), doubled=(counts - wanted).total(),
    )  # fmt: skip


def differences(found: Result, expected: Result) -> Iterator[str]:
    """Where the two are not equal, in words; for log-probs, where they are apart by more than ROUNDING."""
    for got, want in zip(found.rollouts, expected.rollouts, strict=False):
        if got != want:
            yield f"rollout {want[1]} of step {want[0]}"
    for step, (now, then) in enumerate(zip(found.metrics, expected.metrics, strict=False)):
        for name in sorted(now.keys() | then.keys()):
            if now.get(name) != then.get(name):
                yield f"{name} of step {step}: {now.get(name)}, not {then.get(name)}"
    for name in sorted(found.state.keys() | expected.state.keys()):
        if found.state.get(name) != expected.state.get(name):
            yield name
    for name in sorted(found.logprobs.keys() & expected.logprobs.keys()):
        apart = np.abs(found.logprobs[name] - expected.logprobs[name]).max()
        if apart > ROUNDING:
            yield f"log-probs of {name} by {apart:.1e}"
    if len(found.rollouts) != len(expected.rollouts) or len(found.metrics) != len(expected.metrics):
        yield f"{len(found.metrics)} steps, {len(found.rollouts)} rollouts"


@contextmanager
def cluster(cpus: int) -> Iterator[None]:
    """A Ray cluster of this machine for all runs."""
    needs_ray()
    import ray

    ray.init(address="local", num_cpus=cpus, include_dashboard=False, log_to_driver=False, logging_level="FATAL")
    try:
        yield
    finally:
        ray.shutdown()


def recovery(args: argparse.Namespace) -> list[Row]:
    only = args.only.split(",") if args.only else []
    asked = [(role, point) for role, points in POINTS.items() for point in points]
    asked = [each for each in asked if all(part in (each[0], *each[1].split(":")[:1]) for part in only)]
    rows = []
    print("| role | point | signal | recovered in s | final state | samples lost, doubled |\n|---|---|---|---|---|---|")
    with cluster(4):
        for role, point in asked:
            for number in args.signals:
                row = hit(role, point, number, hang_seconds=args.hang)
                rows.append(row)
                took = "not reached" if row.seconds is None else f"{row.seconds:.1f}"
                same = "; ".join(row.differs) or "equal"
                print(f"| {role} | `{point}` | {number} | {took} | {same} | {row.lost}, {row.doubled} |", flush=True)
    return rows


# ---- judges --------------------------------------------------------------------------------------------------------


CROWD = {
    "algorithm": {"name": "grpo"}, "sampling.max_new_tokens": 48, "prompts_per_step": 16,
    "allocation.samples_per_prompt": 8, "checkpoint.every": None, "engine.home": "ray", "engine.judges": 3,
    "engine.pools": {"main": {"cpus": 1}, "judges": {"cpus": 1}}, "engine.placement": {"judge": "judges"},
}  # fmt: skip


def processes(kind: str) -> list[psutil.Process]:
    """Of an actor class, below this process."""
    return [p for p in psutil.Process().children(recursive=True) if p.name().startswith(f"ray::{kind}")]


def waiting(steps: Sequence[StepReport]) -> tuple[float, float]:
    """(seconds of all steps, of them those after a batch's last token and before its last verdict)."""
    whole = sum(step.seconds[phase] for step in steps for phase in ("batch", "score", "update", "publish"))
    return whole, sum(step.seconds["judge"] for step in steps)


def slow_judge(args: argparse.Namespace) -> Mapping[str, Any]:
    ended = threading.Event()
    threads: list[threading.Thread] = []

    def throttle(judge: psutil.Process) -> None:
        with suppress(psutil.NoSuchProcess):  # the run ended
            while not ended.is_set():
                judge.suspend()
                time.sleep(args.seconds)
                judge.resume()
                time.sleep(0.02)

    def spoil() -> None:
        hung, slow, _ = processes("JudgeActor")
        hung.send_signal(signal.SIGSTOP)
        threads.append(threading.Thread(target=throttle, args=[slow], daemon=True))
        threads[-1].start()

    found: dict[str, Any] = {}
    with cluster(4):
        for name, begun in (("clean", lambda: None), ("one hung, one slow", spoil)):
            screen = Screen(begun)
            ended.clear()
            try:
                train({**CROWD, "steps": args.steps}, screen)
            finally:
                ended.set()
                for thread in threads:
                    thread.join()
            whole, wait = waiting(screen.steps)
            tails = [round(step.seconds["judge"], 3) for step in screen.steps]
            found[name] = {"seconds": whole, "waited": wait, "share": wait / whole, "waited_by_step": tails}
            print(f"{name}: {whole:.1f} s, of them {wait:.2f} s for the last verdicts of a batch: {wait / whole:.1%}")
    found["caused"] = found["one hung, one slow"]["share"] - found["clean"]["share"]
    print(f"idle share of sampler and learner that it caused: {found['caused']:.1%}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("recovery")
    one.add_argument("--only", default="", help="a role, a point or both: learner,actor.mid_work")
    one.add_argument("--signals", nargs="+", default=["KILL", "STOP"], choices=["KILL", "STOP"])
    one.add_argument("--hang", type=float, default=15.0)
    two = commands.add_parser("slow-judge")
    two.add_argument("--steps", type=int, default=12)
    two.add_argument("--seconds", type=float, default=1.0)
    for each in (one, two):
        each.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.command == "recovery":
        rows = recovery(args)
        told: Any = [vars(row) for row in rows]
        bad = [row for row in rows if not row.good]
    else:
        told, bad = slow_judge(args), []
    if args.json:
        args.json.write_text(json.dumps(told, indent=2) + "\n")
    if bad:
        raise SystemExit(f"{len(bad)} of {len(rows)} runs are not as they should be")


if __name__ == "__main__":
    main()
