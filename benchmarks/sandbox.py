"""The sandbox beside its alternatives: what isolation costs, when it kills, and whether anything is lost or left.

    python benchmarks/sandbox.py trivial [--rounds 6] [--runs 100]     runs a second, latency, CPU of a trivial program
    python benchmarks/sandbox.py functions [--runs 50]                 20 calls in one program; test code in a second sandbox
    python benchmarks/sandbox.py start                                 how long until the first program can run
    python benchmarks/sandbox.py kill [--runs 10]                      milliseconds past the limit; the judge's memory in a flood
    python benchmarks/sandbox.py soak [--runs 20000] [--hostile 0.01]  every input one result, nothing left behind
    python benchmarks/sandbox.py humaneval [--data FILE]               canonical solutions pass, bodies of `pass` fail

Each takes ``--json FILE`` and ``--levels ns,seccomp``. ``trivial`` alternates between all ways within each round, so that
noise of the machine hits all alike, and takes the median of the rounds; the ways are

- jurat at each level: a warm sandbox, a fresh process for each run, nothing of the machine in reach,
- ``python -I -S -c`` each time: no isolation at all, the price of an interpreter's start,
- bubblewrap around that, where it is installed: namespaces and an empty root, no filter of system calls,
- ``exec`` in a forked process, the way of OpenAI's human-eval: no isolation, names of ``os`` and ``subprocess`` set to None.

*Latency* is that of one run with nothing else under way. *Overhead* is latency less what the program itself takes in a
warm interpreter, which for the trivial program is under 0.1 ms. CPU is that of all processes concerned, the judge's too; bubblewrap
reaps its program itself, out of sight, so that its figure is too low.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import multiprocessing
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from jurat.verifiers.code.cases import parse
from jurat.verifiers.code.running import Bench, results_of
from jurat.verifiers.sandbox import Sandbox
from jurat.verifiers.sandbox.program import Limits, Program

SLOTS = 2
TRIVIAL = "a, b = map(int, input().split())\nprint(a + b)\n"
PLAIN = (sys.executable, "-I", "-S", "-c", TRIVIAL)
Row = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["trivial", "functions", "start", "kill", "soak", "humaneval"])
    parser.add_argument("--levels", default="ns,seccomp", type=lambda text: text.split(","))
    parser.add_argument("--runs", type=int)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--hostile", type=float, default=0.01)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/humaneval/test.jsonl"))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    rows = asyncio.run(globals()[args.part](args))
    print(f"{args.part}: {os.cpu_count()} processors, load {load:.1f} at the start, Python {sys.version.split()[0]}")
    show(rows)
    if args.json:
        args.json.write_text(json.dumps({"part": args.part, "load": load, "rows": rows}, indent=1), encoding="utf-8")


def show(rows: Sequence[Row]) -> None:
    keys = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(key, "")) for key in keys] for row in rows]
    widths = [max(len(key), *(len(row[i]) for row in cells)) for i, key in enumerate(keys)]
    for line in ([key for key in keys], *cells):
        print(
            "  ".join(
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
            )
        )


def _cell(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def open_sandbox(level: str, *, slots: int = SLOTS, preload: Sequence[str] = ()) -> Sandbox:
    return Sandbox(level=level, slots=slots, preload=tuple(preload))


# ---- a trivial program, every way --------------------------------------------------------------------------------


class Jurat:
    def __init__(self, level: str) -> None:
        self.name, self._sandbox = f"jurat, {level}", open_sandbox(level)

    async def once(self, a: int, b: int) -> bytes:
        return (await self._sandbox.run(Program(text=TRIVIAL, stdin=b"%d %d\n" % (a, b)))).stdout

    async def close(self) -> None:
        self._sandbox.close()


class Command:
    """A command for each run, from a pool of as many threads as there are slots."""

    def __init__(self, name: str, command: Sequence[str], env: dict[str, str] | None = None) -> None:
        self.name, self._command, self._env = name, command, env
        self._pool = ThreadPoolExecutor(SLOTS)

    async def once(self, a: int, b: int) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, a, b)

    def _run(self, a: int, b: int) -> bytes:
        done = subprocess.run(self._command, input=b"%d %d\n" % (a, b), capture_output=True, timeout=30, env=self._env)
        return done.stdout

    async def close(self) -> None:
        self._pool.shutdown()


class ForkedExec:
    """A process for each run that executes the program in itself and leaves the result in a managed list."""

    name = "exec in a fork"

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(SLOTS)

    async def once(self, a: int, b: int) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, a, b)

    def _run(self, a: int, b: int) -> bytes:
        fork = multiprocessing.get_context("fork")
        with fork.Manager() as manager:
            result = manager.list()
            child = fork.Process(target=_execute, args=(f"{a} {b}\n", result))
            child.start()
            child.join(timeout=10)
            if child.is_alive():
                child.kill()
            return result[0] if result else b""

    async def close(self) -> None:
        self._pool.shutdown()


def _execute(given: str, result: Any) -> None:
    """In the child: names that harm are taken away, then the text is executed."""
    import builtins

    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    for module, names in (
        (os, "kill system fork remove rename chmod chown unlink rmdir"),
        (shutil, "rmtree move"),
        (subprocess, "Popen"),
    ):
        for name in names.split():
            setattr(module, name, None)
    builtins.exit = builtins.quit = None  # type: ignore[assignment]
    sys.stdin, out = io.StringIO(given), io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(TRIVIAL, {"__name__": "__main__"})  # noqa: S102
    result.append(out.getvalue().encode())


def bubblewrap() -> Command | None:
    found = shutil.which("bwrap")
    if found is None:
        return None
    folders = [
        folder for folder in ("/usr", "/lib", "/lib64", "/bin") if os.path.isdir(folder) and not os.path.islink(folder)
    ]
    folders += [folder for folder in (sys.base_prefix, sys.prefix) if not folder.startswith("/usr")]
    links = [
        part
        for name in ("lib", "lib64", "bin")
        if os.path.islink(f"/{name}")
        for part in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    binds = [part for folder in dict.fromkeys(folders) for part in ("--ro-bind", folder, folder)]
    command = [found, "--unshare-all", "--die-with-parent", "--new-session", *binds, *links, "--dev", "/dev", "--tmpfs", "/tmp",
               "--cap-drop", "ALL", "--chdir", "/tmp", *PLAIN]  # fmt: skip
    way = Command("bubblewrap", command, env={})
    return way if way._run(1, 2) == b"3\n" else None


async def trivial(args: argparse.Namespace) -> list[Row]:
    runs = args.runs or 100
    ways: list[Any] = [Jurat(level) for level in args.levels]
    ways += [Command("python -I -S -c", PLAIN), *filter(None, [bubblewrap()]), ForkedExec()]
    speeds: dict[str, list[float]] = {way.name: [] for way in ways}
    latencies: dict[str, list[float]] = {way.name: [] for way in ways}
    spent: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        assert await way.once(1, 2) == b"3\n", way.name
    for _ in range(args.rounds):
        for way in ways:
            count = runs if not isinstance(way, ForkedExec) else max(10, runs // 4)
            before, began = cpu_seconds(), time.perf_counter()
            await at_once(count, way.once)
            took = time.perf_counter() - began
            speeds[way.name].append(count / took)
            spent[way.name].append((cpu_seconds() - before) / count)
            for turn in range(max(5, count // 5)):
                began = time.perf_counter()
                assert await way.once(turn, 1) == b"%d\n" % (turn + 1), way.name
                latencies[way.name].append(time.perf_counter() - began)
    for way in ways:
        await way.close()
    itself = 1e3 * statistics.median(_alone() for _ in range(200))
    return [
        {
            "way": name, "runs/s": statistics.median(speeds[name]), "best": max(speeds[name]), "worst": min(speeds[name]),
            "p50 ms": 1e3 * quantile(latencies[name], 0.5), "p95 ms": 1e3 * quantile(latencies[name], 0.95),
            "overhead p50": 1e3 * quantile(latencies[name], 0.5) - itself, "overhead p95": 1e3 * quantile(latencies[name], 0.95) - itself,
            "CPU ms/run": 1e3 * statistics.median(spent[name]),
        }
        for name in speeds
    ]  # fmt: skip


async def at_once(count: int, once: Callable[[int, int], Awaitable[bytes]]) -> None:
    """``count`` runs, as many under way as there are slots; each answer is checked."""
    turns = iter(range(count))

    async def work() -> None:
        for turn in turns:
            assert await once(turn, 7) == b"%d\n" % (turn + 7)

    await asyncio.gather(*(work() for _ in range(SLOTS)))


def _alone() -> float:
    """What the program takes in a warm interpreter."""
    began = time.perf_counter()
    code = compile(TRIVIAL, "main.py", "exec")
    exec(code, {"__name__": "__main__", "input": lambda: "1 2", "print": str})  # noqa: S102
    return time.perf_counter() - began


def cpu_seconds() -> float:
    """Of this process, of what it has waited for, and of all that lives below it with what that has waited for."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


# ---- calls and test code -----------------------------------------------------------------------------------------

CALLS = {
    "mode": "func",
    "entry": "f",
    "tests": [{"args": [n, [n, str(n)]], "expected": [n * n, str(n)]} for n in range(20)],
}
TEST = """
def check(candidate):
    for n in range(20):
        got = candidate(n, [n, str(n)])
        assert got == [n * n, str(n)]
"""
SPLIT = {"mode": "check", "entry": "f", "test": TEST}
SQUARES = "def f(n, more): return [n * n, more[1]]\n"


async def functions(args: argparse.Namespace) -> list[Row]:
    rows = []
    for level in args.levels:
        sandbox = open_sandbox(level)
        for name, cases in (("20 calls, one program", CALLS), ("test code in a second sandbox", SPLIT)):
            parsed, took = parse(json.dumps(cases)), []
            for _ in range(args.runs or 50):
                began = time.perf_counter()
                results = await results_of(_bench(sandbox), SQUARES, parsed)
                took.append(1e3 * (time.perf_counter() - began))
                assert all(result.passed for result in results), results
            rows.append(
                {
                    "what": f"{name}, {level}",
                    "p50 ms": quantile(took, 0.5),
                    "p95 ms": quantile(took, 0.95),
                    "min ms": min(took),
                }
            )
        sandbox.close()
    return rows


def _bench(sandbox: Sandbox, **limits: Any) -> Bench:
    return Bench(runner=sandbox, limits=Limits(**limits), deadline=time.monotonic() + 60)


async def start(args: argparse.Namespace) -> list[Row]:
    """Until the first program has run. The first time in a process a level is also probed and attacked: told apart."""
    rows = []
    for level in args.levels:
        for preload in ((), ("numpy",)):
            took = []
            for _ in range((args.runs or 5) + 1):
                began = time.perf_counter()
                sandbox = open_sandbox(level, slots=1, preload=preload)
                outcome = await sandbox.run(Program(text=TRIVIAL, stdin=b"1 2\n"))
                took.append(1e3 * (time.perf_counter() - began))
                assert outcome.stdout == b"3\n", outcome
                sandbox.close()
            what = f"{level}, {' '.join(preload) or 'nothing'} preloaded"
            rows.append({"what": what, "first ms": took[0], "p50 ms": quantile(took[1:], 0.5), "max ms": max(took[1:])})
    return rows


# ---- the end of a run --------------------------------------------------------------------------------------------

HOSTILE = {
    "sleeps": "import time\ntime.sleep(100)\n",
    "loops": "while True: pass\n",
    "loops in C": "import itertools\nsum(itertools.repeat(1))\n",
    "ignores signals": """
import signal
for s in {*range(1, 65)} - {9, 19, 32, 33}: signal.signal(s, signal.SIG_IGN)
while True: pass
""",
    "prints 1 GB": "import os\nb = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, b)\n",
    "prints for ever": "import os\nb = b'x' * 65536\nwhile True: os.write(2, b)\n",
}  # fmt: skip


async def kill(args: argparse.Namespace) -> list[Row]:
    rows = []
    limit = 0.5
    for level in args.levels:
        sandbox = open_sandbox(level, slots=1)
        await sandbox.run(Program(text="pass"))
        for name, text in HOSTILE.items():
            past, endings, before = [], Counter[str](), memory_peak()
            for _ in range(args.runs or 10):
                began = time.perf_counter()
                outcome = await sandbox.run(Program(text=text), Limits(wall_seconds=limit, cpu_seconds=10))
                past.append(1e3 * (time.perf_counter() - began - limit))
                endings[outcome.ending] += 1
                assert len(outcome.stdout) <= Limits().output_bytes and len(outcome.stderr) <= 66_000
            rows.append({
                "what": f"{name}, {level}", "past the limit p50 ms": quantile(past, 0.5), "max ms": max(past),
                "ending": "+".join(endings), "judge grew MiB": (memory_peak() - before) / 2**20,
            })  # fmt: skip
        sandbox.close()
    return rows


def memory_peak() -> int:
    """The judge's highest resident size so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


STREWN = (
    "import time\ntime.sleep(100)",
    "while True: pass",
    "b = bytearray(1 << 31)",
    "import os\nos._exit(7)",
    "import ctypes\nctypes.string_at(0)",
    "import os\nos.kill(os.getpid(), 9)",
    "import os\nwhile True: os.write(1, b'x' * 65536)",
    "import os\nos.closerange(0, 99)\nwhile True: pass",
    "import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)",
    "(",
    "import os\nfor n in range(99): os.close(os.open(str(n), os.O_CREAT | os.O_WRONLY))",
    "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
)


async def soak(args: argparse.Namespace) -> list[Row]:
    """Trivial programs with hostile ones strewn in by a fixed rule; what is held is counted after a tenth and at the end."""
    count, rows = args.runs or 20_000, []
    every = max(1, round(1 / args.hostile)) if args.hostile else 0
    for level in args.levels:
        sandbox = open_sandbox(level)
        results: dict[int, str] = {}
        wrong = 0

        async def work(indices: Iterable[int], sandbox: Sandbox = sandbox, results: dict[int, str] = results) -> int:
            bad = 0
            for index in indices:
                if every and index % every == every - 1:
                    text = STREWN[index // every % len(STREWN)]
                    outcome = await sandbox.run(
                        Program(text=text), Limits(wall_seconds=0.3, cpu_seconds=1.0, memory_bytes=1 << 29)
                    )
                    bad += outcome.ending == "infra_error"
                else:
                    outcome = await sandbox.run(Program(text=TRIVIAL, stdin=b"%d 7\n" % index))
                    bad += outcome.stdout != b"%d\n" % (index + 7)
                assert index not in results
                results[index] = outcome.ending
            return bad

        began, turns = time.perf_counter(), iter(range(count))
        first = iter([next(turns) for _ in range(count // 10)])
        wrong += sum(await asyncio.gather(*(work(first) for _ in range(SLOTS))))
        before = held()
        wrong += sum(await asyncio.gather(*(work(turns) for _ in range(SLOTS))))
        after = held()
        took = time.perf_counter() - began
        sandbox.close()
        end = held()
        rows.append({
            "what": level, "inputs": count, "results": len(results), "wrong or infra": wrong, "runs/s": count / took,
            **{f"{key} grew": after[key] - before[key] for key in before}, "processes at the end": end["processes"],
            "endings": json.dumps(Counter(results.values())),
        })  # fmt: skip
    return rows


def held() -> dict[str, int]:
    """What this process and all below it hold."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        "descriptors": sum(process.num_fds() for process in family),
        "memory MiB": sum(process.memory_info().rss for process in family) >> 20,
        "processes": len(family) - 1,
        "mounts": Path("/proc/mounts").read_text(encoding="utf-8").count("\n"),
        "files": sum(len(list(Path(folder).iterdir())) for folder in ("/tmp", "/dev/shm", "/var/tmp")),
    }


# ---- HumanEval ---------------------------------------------------------------------------------------------------


async def humaneval(args: argparse.Namespace) -> list[Row]:
    if not args.data.exists():
        raise SystemExit(f"no file {args.data}: name HumanEval's test.jsonl with --data")
    tasks = [json.loads(line) for line in args.data.read_text(encoding="utf-8").splitlines() if line]
    rows = []
    for level in args.levels:
        sandbox = open_sandbox(level)
        began = time.perf_counter()
        said: dict[str, list[str]] = {}
        for name, body in (("canonical", "canonical_solution"), ("pass", None)):
            said[name] = []
            for task in tasks:
                cases = parse(
                    json.dumps(
                        {"mode": "check", "entry": task["entry_point"], "prompt": task["prompt"], "test": task["test"]}
                    )
                )
                text = task["prompt"] + (task[body] if body else "    pass\n")
                results = await results_of(_bench(sandbox), text, cases)
                if results and all(result.passed for result in results):
                    said[name].append(task["task_id"])
        rows.append({
            "level": level, "tasks": len(tasks), "canonical pass": len(said["canonical"]), "`pass` pass": len(said["pass"]),
            "programs/s, one at a time": 2 * len(tasks) / (time.perf_counter() - began),
            "not as they must": " ".join([*sorted({t["task_id"] for t in tasks} - set(said["canonical"])), *said["pass"]])[:200],
        })  # fmt: skip
        sandbox.close()
    return rows


if __name__ == "__main__":
    main()
