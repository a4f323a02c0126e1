"""The child: loads verifiers, then reads one task, writes one reply, until its input ends.

Run as ``python -P -m jurat.verifiers.pool.worker REQUESTS REPLIES``; both are descriptors. The first frame read is the
set-up, the first frame written says what was loaded. Standard output and error are the parent's, which counts them.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import importlib.util
import inspect
import os
import resource
import signal
import sys
import time
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jurat.platform.errors import ConfigError, JuratError
from jurat.platform.types import Problem, Verdict
from jurat.verifiers import catalog, verdicts
from jurat.verifiers.pool.frames import read_blocking, write_blocking
from jurat.verifiers.pool.pool import LOADING
from jurat.verifiers.registry import REGISTERED, Definition, Target

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _SIGKILL = 1, 36, 9
_GUARD_SECONDS = 1.0
"""For which what a dead worker left is killed, as it may multiply meanwhile."""
_TRACE = 3_000
"""Characters kept of a traceback."""


def main() -> None:
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    if sys.platform == "linux":
        _guard(requests, replies)
    for fd in (requests, replies):
        os.set_inheritable(fd, False)
    _die_with_parent()
    setup = read_blocking(requests)
    if setup is None:
        return
    try:
        for origin in setup["origins"]:
            load(origin)
    except BaseException as fault:
        write_blocking(replies, {"failed": _failure(fault, origin["value"]), "origin": origin})
        return
    os.environ.pop(LOADING, None)
    _limit_memory(setup["memory_bytes"])
    write_blocking(replies, {"ready": [_described(REGISTERED[name]) for name in REGISTERED], "pid": os.getpid()})
    worker = Worker()
    home = os.getpid()
    while (request := read_blocking(requests)) is not None:
        reply = worker.answer(request)
        if os.getpid() != home:
            # A verifier forked and came back in the copy: only the original may answer.
            os._exit(70)
        write_blocking(replies, reply)


def _guard(*pipes: int) -> None:
    """Fork: the child returns and works; this process only waits, so that what the child leaves behind when it dies
    becomes its own and is killed, a session of its own or not. It ends as the child did.

    What escapes: processes of a verifier that kills its guard too. That takes intent; see ``pool.py`` on hostile code.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    awaited = (signal.SIGCHLD, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    worker = os.fork()
    if worker == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, awaited)
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for fd in (0, 1, 2, *pipes):
        os.close(fd)
    ended: int | None = None
    while ended is None:
        if signal.sigwait(awaited) == signal.SIGTERM:
            os.kill(worker, signal.SIGKILL)
        ended = dict(_reaped()).get(worker)
    give_up = time.monotonic() + _GUARD_SECONDS
    while (left := _children()) and time.monotonic() < give_up:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for _ in _reaped():
            pass
        time.sleep(0.001)
    if os.WIFSIGNALED(ended):
        number = os.WTERMSIG(ended)
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(ended) if os.WIFEXITED(ended) else 70)


def _reaped() -> Iterator[tuple[int, int]]:
    """(pid, status) of each child that has ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def _die_with_parent() -> None:
    """Linux: die when the parent dies, and adopt orphans so that they are seen and killed with this process."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _limit_memory(extra: int) -> None:
    """Address space: what is mapped after loading, and ``extra`` bytes for the work. The hard limit stays: a sandbox has
    its own for the programs that it runs, which may be larger."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        wanted = mapped + extra if hard == resource.RLIM_INFINITY else min(mapped + extra, hard)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


def _failure(fault: BaseException, value: str) -> list[str]:
    """What, where and fix for a user's code that does not load; the place is in that code if the fault is."""
    if isinstance(fault, JuratError):
        return [fault.what, fault.where or value, fault.fix]
    where, fix = value, f"run `python {value}` to see the whole traceback"
    if isinstance(fault, SyntaxError):
        where = f"{fault.filename or value}:{fault.lineno or 1}"
        return [f"{type(fault).__name__}: {fault.msg}", where, "mend the syntax: it is not Python as it stands"]
    frames = traceback.extract_tb(fault.__traceback__)
    own = [frame for frame in frames if frame.filename == value]
    if own:
        where = f"{value}:{own[-1].lineno}"
    if not isinstance(fault, Exception):
        fix = 'put what runs, and does not define, under `if __name__ == "__main__":`'
    return [f"{type(fault).__name__}: {fault}"[:500], where, fix]


# ---- loading -----------------------------------------------------------------------------------------------------


def load(origin: dict[str, Any]) -> None:
    """Import a user's verifiers, a file or an installed module, which registers them in this process."""
    before = set(REGISTERED)
    for folder in origin.get("path", ()):
        if folder not in sys.path:
            sys.path.append(folder)
    kind, value = origin["kind"], origin["value"]
    if kind == "module":
        importlib.import_module(value)
    elif kind == "file":
        load_file(Path(value))
    else:
        raise ConfigError(f"origin kind {kind!r}", where="worker")
    if not set(REGISTERED) - before and not origin.get("silent"):
        raise ConfigError(
            f"{value} registers no verifier", where=str(value), fix='decorate a function with @jurat.verifier("name")'
        )


def load_file(path: Path) -> types.ModuleType:
    """The module in ``path`` under a name of its own; its folder is importable, its ``__main__`` block does not run."""
    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules and path.stem.isidentifier() else f"jurat_user_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", where=str(path), fix="name it something.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _described(definition: Definition) -> dict[str, Any]:
    return {
        "name": definition.name, "version": definition.version, "kind": definition.kind, "batch": definition.batch,
        "deadline": definition.deadline, "deterministic": definition.deterministic, "deps": list(definition.deps),
        "blame": definition.blame, "wants_finish": definition.wants_finish,
        "doc": (inspect.getdoc(definition.target) or "").split("\n")[0],
    }  # fmt: skip


# ---- working -----------------------------------------------------------------------------------------------------


class Worker:
    """Holds the built verifiers of this process and answers requests."""

    def __init__(self) -> None:
        self._built: dict[str, tuple[Definition, Target]] = {}
        self._loop = asyncio.new_event_loop()
        self._allowed: set[int] = set()
        self._tasks = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """One reply to one request; never raises."""
        out: dict[str, Any] = {"id": request["id"]}
        started = time.perf_counter()
        try:
            out["result"] = getattr(self, f"_{request['op']}")(request)
        except JuratError as fault:
            out["refused"] = [fault.what, fault.where, fault.fix]
        except MemoryError as fault:
            out["error"], out["retire"] = f"MemoryError: {fault}", True
        except BaseException as fault:
            out["error"] = f"{type(fault).__name__}: {fault}"[:500]
            out["trace"] = _short_trace(fault)
            out["retire"] = not isinstance(fault, Exception)
        out["seconds"] = time.perf_counter() - started
        self._tasks += 1
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        if self._left_behind():
            out["stray"] = True
        if self._tasks % 16 == 0:
            out["rss"] = _resident()
        return out

    def _judge(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        definition, call = self._verifier(request["name"], request["args"])
        problems = [verdicts.problem_from_json(item[0]) for item in request["items"]]
        texts = [item[1] for item in request["items"]]
        ends = [item[2] for item in request["items"]]
        more: dict[str, Any] = {}
        if definition.wants_finish:
            more["finish"] = ends if definition.batch else ends[0]
        if definition.batch:
            made = self._run(call, problems, texts, more)
            return [verdicts.verdict_to_json(v) for v in spread(definition, made, len(texts))]
        made = self._run(call, problems[0], texts[0], more)
        return [verdicts.verdict_to_json(verdicts.as_verdict(definition.name, definition.kind, made))]

    def _run(self, call: Target, problem: Problem | list[Problem], text: str | list[str], more: dict[str, Any]) -> Any:
        made = call(problem, text, **more)
        if inspect.isawaitable(made):

            async def awaited() -> Any:
                return await made

            return self._loop.run_until_complete(awaited())
        return made

    def _identify(self, request: dict[str, Any]) -> dict[str, Any]:
        from jurat.verifiers.versions import describe

        definition = catalog.check(request["name"], request["args"])
        return describe(definition, request["args"], sources=request["sources"])

    def _verifier(self, name: str, args: dict[str, Any]) -> tuple[Definition, Target]:
        key = repr((name, sorted(args.items())))
        if key not in self._built:
            definition = catalog.check(name, args)
            self._built[key] = (definition, definition.build(args))
            self._allowed = _children()
        return self._built[key]

    def _left_behind(self) -> bool:
        """True if a process that this task started is still there, running or not waited for."""
        if hasattr(os, "waitid"):
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return False
        return any(not _is_helper(pid) for pid in _children() - self._allowed)


def spread(definition: Definition, made: Any, count: int) -> list[Verdict]:
    """A verdict for each completion from what a batched verifier made; a wrong count is an error for all of them."""
    if hasattr(made, "tolist") and not isinstance(made, (str, bytes)):
        made = made.tolist()
    if not isinstance(made, (list, tuple)):
        wrong = verdicts.error(f"{definition.name} returned {type(made).__name__}, expected a list of {count} results")
        return [wrong] * count
    if len(made) != count:
        wrong = verdicts.error(f"{definition.name} returned {len(made)} results for {count} completions")
        return [wrong] * count
    return [verdicts.as_verdict(definition.name, definition.kind, item) for item in made]


def _short_trace(fault: BaseException) -> str:
    return "".join(traceback.format_exception(fault, limit=-6))[-_TRACE:]


def _children() -> set[int]:
    """Children of this process, orphans of their children among them."""
    try:
        lists = [task / "children" for task in Path("/proc/self/task").iterdir()]
        return {int(pid) for path in lists for pid in path.read_text().split()}
    except OSError:
        import psutil

        return {child.pid for child in psutil.Process().children()}


def _is_helper(pid: int) -> bool:
    """True for what a verifier keeps between tasks, bounds and kills itself: the child for SymPy, a sandbox's zygote."""
    import psutil

    try:
        return any(word.endswith(("/sympy_child.py", "/sandbox/zygote.py")) for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def _resident() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
