"""Scores completions by the reward spec's verifiers: bounded built-in ones here, all others in killable processes.

One verdict per member and completion, always: a verifier that hangs, dies, prints without end or answers nonsense costs
a verdict of its own and nothing else. Usable from any thread and any event loop; there are no signals.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import hashlib
import queue
import threading
import time
import traceback
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any

from jurat.platform.canonical import canonical_json
from jurat.platform.errors import ConfigError, RunFailed, nearest
from jurat.platform.recipe import Member, RewardPart
from jurat.platform.registry import unknown
from jurat.platform.types import Finish, Judgement, Problem, Verdict, VerifierSpec
from jurat.verifiers import catalog, reward, verdicts
from jurat.verifiers.pool import Answered, Broken, Limits, Origin, Outcome, Pool, Task
from jurat.verifiers.registry import REGISTERED, Definition, Target
from jurat.verifiers.shipping import import_path, origin_of, shipped

DEFAULT_LIMITS = Limits()
ENTRY_POINTS = "jurat.verifiers"
BATCH = 64
"""Completions given to a batched verifier in one call, at most."""
ONCE_MORE = frozenset({"infra"})
"""Broken tasks of these kinds are tried a second time."""


class LocalJudge:
    """The Judge port in this process. Close it when done, or use it as a context manager."""

    def __init__(
        self,
        part: RewardPart,
        *,
        origins: Sequence[Origin] = (),
        deadline: float | None = None,
        limits: Limits = DEFAULT_LIMITS,
        spares: int = 1,
        cache: int = 100_000,
    ) -> None:
        self.part = part
        self._labels = reward.labels(part.members)
        self._origins = list(origins)
        self._deadline = deadline
        self._limits, self._spares = limits, spares
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._remote: dict[str, Mapping[str, Any]] = {}
        self._specs: dict[str, _Use] = {}
        self._cache = _Cache(cache)
        self._batches: dict[str, _Batcher] = {}
        self._problem_verifiers: dict[str, VerifierSpec] = {}
        try:
            if self._origins:
                self._remote = {entry["name"]: entry for entry in self._started().describe()}
            for member in part.members:
                if member.use != "problem":
                    self._use(member.use, member.args)
        except BaseException:
            self.close()
            raise

    # ---- identity ----

    def bind(self, problem_verifiers: Iterable[VerifierSpec] = ()) -> dict[str, VerifierSpec]:
        """Every verifier in use, with its version digest: an entry for each member (by label) and problem's verifier.

        Raises ConfigError for an unknown name, a bad argument, or what cannot be hashed.
        """
        out: dict[str, VerifierSpec] = {}
        own: dict[str, VerifierSpec] = {}
        given = {canonical_json([spec.name, dict(spec.args)]): spec for spec in problem_verifiers}
        for label, member in zip(self._labels, self.part.members, strict=True):
            if member.use != "problem":
                out[label] = self._bound(member.use, member.args)
                continue
            for spec in given.values():
                bound = self._bound(spec.name, {**spec.args, **member.args})
                own[canonical_json([bound.name, dict(bound.args)])] = bound
        for bound in own.values():
            label = bound.name if bound.name not in out else f"problem:{bound.name}"
            while label in out:
                label += "+"
            out[label] = bound
        self._problem_verifiers = own
        return out

    @property
    def spec_digest(self) -> str:
        """Identity of the reward, the verifiers of the problems given to ``bind`` included."""
        bound = {
            label: self._bound(member.use, member.args)
            for label, member in zip(self._labels, self.part.members, strict=True)
            if member.use != "problem"
        }
        return reward.spec_digest(self.part, bound, list(self._problem_verifiers.values()))

    def _bound(self, name: str, args: Mapping[str, Any]) -> VerifierSpec:
        use = self._use(name, args)
        if not use.spec.digest:
            use.spec = dataclasses.replace(use.spec, digest=self._describe(use)["digest"])
        return use.spec

    @property
    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """What the child said of each of the user's verifiers, by name."""
        return self._remote

    def identity(self, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parts of a verifier's version digest and its canonical source, as ``versions.describe`` gives them."""
        return self._describe(self._use(name, args), sources=True)

    def _describe(self, use: _Use, *, sources: bool = False) -> Mapping[str, Any]:
        """The parts of a verifier's identity; a user's code is read in the child alone."""
        if use.entry is None:
            from jurat.verifiers.versions import describe

            return describe(catalog.check(use.spec.name, use.spec.args), use.spec.args, sources=sources)
        request = {"op": "identify", "name": use.spec.name, "args": dict(use.spec.args), "sources": sources}
        outcome = self._started().submit(Task(request=request, deadline=self._limits.start_seconds)).result()
        if isinstance(outcome, Answered) and "result" in outcome.reply:
            found: Mapping[str, Any] = outcome.reply["result"]
            return found
        if isinstance(outcome, Answered) and "refused" in outcome.reply:
            what, where, fix = outcome.reply["refused"]
            raise ConfigError(what, where=where, fix=fix)
        why = (
            outcome.reply.get("error", "") + "\n" + outcome.reply.get("trace", "")
            if isinstance(outcome, Answered)
            else outcome.why
        )
        raise RunFailed(f"the identity of verifier {use.spec.name!r} cannot be found: {why}", where=use.spec.name)

    # ---- judging ----

    async def judge(self, problem: Problem, text: str, *, finish: Finish = "stop") -> Judgement:
        """Verdicts of all members and the reward they make. Never raises for a bad completion or verifier, unless the
        recipe says ``on_undecided: raise``."""
        pending = self._submit(problem, text, finish)
        made = {}
        try:
            for label, item in pending.items():
                made[label] = item if isinstance(item, Verdict) else await asyncio.wrap_future(item)
        except asyncio.CancelledError:
            for item in pending.values():
                if isinstance(item, Future):
                    item.cancel()
            raise
        return self._combined(made)

    async def stream(
        self, pairs: Iterable[tuple[Problem, str]] | AsyncIterable[tuple[Problem, str]], *, window: int = 256
    ) -> AsyncIterator[tuple[int, Judgement]]:
        """(index, judgement) of each pair as it completes; at most ``window`` are read ahead of what was taken."""
        running: dict[asyncio.Task[Judgement], int] = {}
        source = aiter(pairs) if isinstance(pairs, AsyncIterable) else None
        plain = iter(()) if isinstance(pairs, AsyncIterable) else iter(pairs)
        count, more = 0, True
        try:
            while more or running:
                while more and len(running) < window:
                    try:
                        problem, text = await anext(source) if source is not None else next(plain)
                    except (StopIteration, StopAsyncIteration):
                        more = False
                        break
                    running[asyncio.create_task(self.judge(problem, text))] = count
                    count += 1
                if running:
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        yield running.pop(task), task.result()
        finally:
            for task in running:
                task.cancel()

    def judge_many(self, pairs: Iterable[tuple[Problem, str]], *, window: int = 256) -> Iterator[tuple[int, Judgement]]:
        """``stream`` without an event loop: (index, judgement) in order of completion, from any thread."""
        ready: queue.SimpleQueue[tuple[int, dict[str, Verdict]]] = queue.SimpleQueue()
        source, open_, taken, more = iter(pairs), 0, 0, True
        while more or open_:
            while more and open_ < window:
                try:
                    problem, text = next(source)
                except StopIteration:
                    more = False
                    break
                _Gather(taken, self._submit(problem, text, "stop"), ready)
                taken, open_ = taken + 1, open_ + 1
            if open_:
                index, made = ready.get()
                open_ -= 1
                yield index, self._combined(made)

    def verdict(self, problem: Problem, text: str, *, finish: Finish = "stop") -> Verdict:
        """The first member's verdict, waiting for it in this thread."""
        item = self._submit(problem, text, finish)[self._labels[0]]
        return item if isinstance(item, Verdict) else item.result()

    def _combined(self, made: Mapping[str, Verdict]) -> Judgement:
        return Judgement(verdicts=made, reward=reward.combine(self.part, made))

    def _submit(self, problem: Problem, text: str, finish: Finish) -> dict[str, Verdict | Future[Verdict]]:
        out: dict[str, Verdict | Future[Verdict]] = {}
        for label, member in zip(self._labels, self.part.members, strict=True):
            out[label] = self._one(member, problem, text, finish)
        return out

    def _one(self, member: Member, problem: Problem, text: str, finish: Finish) -> Verdict | Future[Verdict]:
        if member.use == "problem":
            use = self._use(problem.verifier.name, {**problem.verifier.args, **member.args})
        else:
            use = self._use(member.use, member.args)
        key = self._cache.key(use, problem, text, finish) if use.deterministic else None
        if key is not None and (held := self._cache.get(key)) is not None:
            return held
        if use.call is not None:
            verdict = self._inline(use, problem, text, finish)
            self._cache.put(key, verdict)
            return verdict
        done: Future[Verdict] = Future()
        item = _Item(use, problem, text, finish, done, key)
        if use.batch:
            self._batches.setdefault(use.key, _Batcher(self)).add(item)
        else:
            self._send([item])
        return done

    def _inline(self, use: _Use, problem: Problem, text: str, finish: Finish) -> Verdict:
        assert use.call is not None
        started = time.perf_counter()
        try:
            raw = use.call(problem, text, finish=finish) if use.wants_finish else use.call(problem, text)
            verdict = raw if isinstance(raw, Verdict) else verdicts.as_verdict(use.spec.name, "outcome", raw)
        except Exception as fault:
            trace = "".join(traceback.format_exception(fault, limit=-6))[-3000:]
            verdict = verdicts.error(f"{use.spec.name} raised {type(fault).__name__}: {fault}", trace=trace)
        return dataclasses.replace(
            verdict, seconds=time.perf_counter() - started, verifier=use.spec, isolation="inline"
        )

    # ---- the pool ----

    def _started(self) -> Pool:
        with self._lock:
            if self._closed:
                raise RunFailed("this judge is closed", where="LocalJudge", fix="build another")
            if self._pool is None:
                self._pool = Pool(self._origins, workers=self.part.workers, spares=self._spares, limits=self._limits)
            return self._pool

    def _send(self, items: list[_Item], attempt: int = 1) -> None:
        """One call of one verifier over ``items`` (one, unless it is batched)."""
        use = items[0].use
        request = {
            "op": "judge",
            "name": use.spec.name,
            "args": dict(use.spec.args),
            "items": [[verdicts.problem_to_json(i.problem), i.text, i.finish] for i in items],
        }
        future = self._started().submit(Task(request=request, deadline=self._deadline or use.deadline))
        future.add_done_callback(lambda done: self._receive(items, attempt, done.result()))

    def _receive(self, items: list[_Item], attempt: int, outcome: Outcome) -> None:
        use = items[0].use
        again = not isinstance(outcome, Answered) and outcome.kind != "closed" and not self._closed
        if again and len(items) > 1:
            # One of a batch broke the process: each alone, so that it costs its own verdict only.
            for item in items:
                self._send([item], attempt + 1)
            return
        if again and isinstance(outcome, Broken) and outcome.kind in ONCE_MORE and attempt == 1:
            self._send(items, attempt + 1)
            return
        for item, verdict in zip(items, _verdicts(use, outcome, len(items)), strict=True):
            made = dataclasses.replace(verdict, verifier=use.spec, attempt=attempt, isolation="process")
            self._cache.put(item.key, made)
            if not item.done.cancelled() and item.done.set_running_or_notify_cancel():
                item.done.set_result(made)

    def _use(self, name: str, args: Mapping[str, Any]) -> _Use:
        key = f"{name}\x1f{canonical_json(dict(args))}" if args else name
        found = self._specs.get(key)
        if found is None:
            found = self._specs[key] = self._resolve(key, name, args)
        return found

    def _resolve(self, key: str, name: str, args: Mapping[str, Any]) -> _Use:
        spec = VerifierSpec(name=name, args=dict(args))
        for used, inner in catalog.parts_of(name, args):
            self._use(used, inner)
        if name in self._remote:
            return _Use.of(key, spec, self._remote[name])
        if name in catalog.BUILT_IN:
            definition = catalog.check(name, args)
            if catalog.is_bounded(name, args):
                return _Use.of(key, spec, _entry(definition), call=definition.build(args), built_in=True)
            return _Use.of(key, spec, _entry(definition), built_in=True)
        if name in REGISTERED:
            definition = catalog.check(name, args)
            self._add_origin(origin_of(definition))
            if name not in self._remote:
                # Its file does not register it when it is loaded (the call stands inside a function, say).
                self._add_origin(shipped(definition))
            return _Use.of(key, spec, self._remote[name])
        raise unknown("verifier", name, [*catalog.names(), *self._remote], where="verifier")

    def _add_origin(self, origin: Origin) -> None:
        with self._lock:
            if any((o.kind, o.value) == (origin.kind, origin.value) for o in self._origins):
                return
            self._origins.append(origin)
            old, self._pool = self._pool, None
        if old is not None:
            old.close()
        self._remote = {entry["name"]: entry for entry in self._started().describe()}

    def pids(self) -> list[int]:
        """Worker processes alive now, the spare included."""
        return self._pool.pids() if self._pool is not None else []

    def close(self) -> None:
        """Kill the workers; what is unfinished ends as ``infra``. Idempotent."""
        with self._lock:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            pool.close()

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def build_judge(
    part: RewardPart,
    *,
    user_files: Sequence[Path | str] = (),
    deadline: float | None = None,
    limits: Limits = DEFAULT_LIMITS,
    spares: int = 1,
    cache: int = 100_000,
) -> LocalJudge:
    """A judge for a recipe's reward. ``user_files`` are Python files, or names of entry points in ``jurat.verifiers``;
    they are loaded in child processes only. ``deadline`` overrides that of each verifier (seconds per call).

    Raises ConfigError for a file that does not load, an unknown verifier (naming the nearest) or a bad argument.
    """
    origins = [origin_named(item) for item in user_files]
    return LocalJudge(part, origins=origins, deadline=deadline, limits=limits, spares=spares, cache=cache)


def origin_named(item: Path | str) -> Origin:
    """A ``.py`` file, or else the name of an installed entry point. Nothing is imported here."""
    path = Path(item)
    if path.suffix == ".py":
        if not path.is_file():
            beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise ConfigError(
                f"no verifier file {path.name!r}.{nearest(path.name, beside)}",
                where=str(path),
                fix="a path in `verifiers:` is relative to the recipe",
            )
        return Origin(kind="file", value=str(path.resolve()))
    known = {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS)}
    if path.name not in known:
        raise ConfigError(
            f"{str(item)!r} is neither a .py file nor an installed entry point.{nearest(path.name, known)}",
            where="verifiers",
            fix=f"write ./{path.name}.py, or install a package with an entry point in the group {ENTRY_POINTS!r}",
        )
    return Origin(kind="module", value=known[path.name].value.partition(":")[0], path=import_path())


def _verdicts(use: _Use, outcome: Outcome, count: int) -> list[Verdict]:
    name = use.spec.name
    if isinstance(outcome, Answered):
        reply = outcome.reply
        shared = outcome.seconds / count
        if "result" in reply:
            try:
                made = [verdicts.verdict_from_json(value) for value in reply["result"]]
                if len(made) != count:
                    raise ValueError(f"{len(made)} verdicts for {count} completions")
            except (ValueError, TypeError, AttributeError) as fault:
                made = [verdicts.error(f"{name}: the worker answered {fault}")] * count
            return [dataclasses.replace(v, seconds=shared) for v in made]
        if "refused" in reply:
            why = " ".join(part for part in reply["refused"] if part)
            made = [verdicts.error(f"{name}: {why}")] * count
        else:
            given = {"trace": reply.get("trace", ""), "printed": outcome.printed}
            made = [
                verdicts.error(f"{name} raised {reply.get('error')}", **{k: v for k, v in given.items() if v})
            ] * count
        return [dataclasses.replace(v, seconds=shared) for v in made]
    evidence = {"printed": outcome.printed} if outcome.printed else {}
    if outcome.kind == "timeout":
        blamed: dict[str, Any] = {"score": 0.0, "fault": "policy"} if use.blame == "policy" else {}
        verdict = dataclasses.replace(
            Verdict.of("timeout", why=f"{name} was {outcome.why}", evidence=evidence), **blamed
        )
    elif outcome.kind in ("infra", "closed"):
        verdict = Verdict.of("infra", why=outcome.why)
    else:
        verdict = verdicts.error(f"{name}: {outcome.why}", **evidence)
    return [dataclasses.replace(verdict, seconds=outcome.seconds)] * count


@dataclasses.dataclass(eq=False)
class _Use:
    """A verifier with arguments, as this judge runs it."""

    key: str
    spec: VerifierSpec
    deadline: float
    batch: bool
    deterministic: bool
    blame: str
    wants_finish: bool
    call: Target | None
    entry: Mapping[str, Any] | None
    """What the child said of a user's verifier; None for a built-in one."""

    @classmethod
    def of(
        cls,
        key: str,
        spec: VerifierSpec,
        entry: Mapping[str, Any],
        *,
        call: Target | None = None,
        built_in: bool = False,
    ) -> _Use:
        return cls(
            key=key, spec=spec, deadline=entry["deadline"], batch=entry["batch"], deterministic=entry["deterministic"],
            blame=entry["blame"], wants_finish=entry["wants_finish"], call=call, entry=None if built_in else entry,
        )  # fmt: skip


def _entry(d: Definition) -> dict[str, Any]:
    return {
        "name": d.name, "deadline": d.deadline, "batch": d.batch, "deterministic": d.deterministic, "blame": d.blame,
        "wants_finish": d.wants_finish,
    }  # fmt: skip


@dataclasses.dataclass(eq=False, slots=True)
class _Item:
    use: _Use
    problem: Problem
    text: str
    finish: Finish
    done: Future[Verdict]
    key: bytes | None


class _Gather:
    """Collects the verdicts of one completion and puts them on a queue when all are there."""

    def __init__(
        self,
        index: int,
        pending: Mapping[str, Verdict | Future[Verdict]],
        ready: queue.SimpleQueue[tuple[int, dict[str, Verdict]]],
    ) -> None:
        self._index, self._ready = index, ready
        self._made: dict[str, Verdict] = {}
        self._order = tuple(pending)
        self._left = len(pending)
        self._lock = threading.Lock()
        for label, item in pending.items():
            if isinstance(item, Verdict):
                self._add(label, item)
            else:
                item.add_done_callback(lambda done, label=label: self._add(label, done.result()))  # type: ignore[misc]

    def _add(self, label: str, verdict: Verdict) -> None:
        with self._lock:
            self._made[label] = verdict
            self._left -= 1
            last = self._left == 0
        if last:
            self._ready.put((self._index, {label: self._made[label] for label in self._order}))


class _Batcher:
    """Collects completions for a batched verifier; full batches go at once, the rest after 2 ms."""

    def __init__(self, judge: LocalJudge) -> None:
        self._judge = judge
        self._held: list[_Item] = []
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def add(self, item: _Item) -> None:
        with self._lock:
            self._held.append(item)
            if len(self._held) < BATCH:
                if self._timer is None:
                    self._timer = threading.Timer(0.002, self._late)
                    self._timer.daemon = True
                    self._timer.start()
                return
            items, self._held = self._held, []
        self._judge._send(items)

    def _late(self) -> None:
        with self._lock:
            items, self._held = self._held, []
            self._timer = None
        if items:
            self._judge._send(items)


class _Cache:
    """Verdicts by (verifier, problem, completion), least recently used first out. Only decided ones are kept."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: collections.OrderedDict[bytes, Verdict] = collections.OrderedDict()
        self._problems: collections.OrderedDict[int, tuple[Problem, bytes]] = collections.OrderedDict()
        self._lock = threading.Lock()
        self.hits = 0

    def key(self, use: _Use, problem: Problem, text: str, finish: Finish) -> bytes | None:
        if not self._size:
            return None
        made = hashlib.blake2b(self._problem(problem), digest_size=20)
        made.update(f"{use.spec.digest}\x1f{use.key}\x1f{finish}\x1f".encode("utf-8", "surrogatepass"))
        made.update(text.encode("utf-8", "surrogatepass"))
        return made.digest()

    def _problem(self, problem: Problem) -> bytes:
        with self._lock:
            held = self._problems.get(id(problem))
            if held is not None and held[0] is problem:
                return held[1]
        whole = canonical_json(verdicts.problem_to_json(problem)).encode("utf-8", "surrogatepass")
        made = hashlib.blake2b(whole, digest_size=20).digest()
        with self._lock:
            self._problems[id(problem)] = (problem, made)
            while len(self._problems) > 4096:
                self._problems.popitem(last=False)
        return made

    def get(self, key: bytes) -> Verdict | None:
        with self._lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                self.hits += 1
            return held

    def put(self, key: bytes | None, verdict: Verdict) -> None:
        if key is None or verdict.score is None or verdict.status in ("timeout", "error", "limit"):
            return
        with self._lock:
            self._held[key] = verdict
            while len(self._held) > self._size:
                self._held.popitem(last=False)
