"""Scores completions by the reward spec's verifiers: bounded built-in ones here, all others in killable processes.

One verdict per member and completion, always: a verifier that hangs, dies, prints without end or answers nonsense costs
a verdict of its own and nothing else. Usable from any thread and any event loop; there are no signals.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import functools
import hashlib
import os
import queue
import threading
import time
import traceback
import weakref
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from jurat.platform.canonical import canonical_json
from jurat.platform.errors import ConfigError, RunFailed, nearest
from jurat.platform.identity.rewards import reward_digest
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
LOST = frozenset({"infra", "killed"})
"""Broken tasks of these kinds say nothing of the verifier: they are tried a second time."""


class LocalJudge:
    """The Judge port in this process. Close it when done, or use it as a context manager.

    Cancelling a judgement drops it where it waits in the queue; one that runs is left to end, at its deadline at the
    latest. In a forked child the judge begins anew with worker processes of its own.
    """

    def __init__(
        self,
        part: RewardPart,
        *,
        origins: Sequence[Origin] = (),
        deadline: float | None = None,
        limits: Limits = DEFAULT_LIMITS,
        spares: int = 1,
        cache: int = 100_000,
        inline: bool = True,
    ) -> None:
        """``inline``: the bounded built-in verifiers run in this process; else in the pool's, as all others."""
        self.part = part
        self._may_inline = inline
        self._workers = part.workers
        self._labels = reward.labels(part.members)
        self._origins = list(origins)
        self._deadline = deadline
        self._limits, self._spares = limits, spares
        self._closed = False
        self._begin()
        self._remote: dict[str, Mapping[str, Any]] = {}
        self._specs: dict[str, _Use] = {}
        self._cache = _Cache(cache)
        _JUDGES.add(self)
        self._problem_verifiers: dict[str, VerifierSpec] = {}
        self._in_use: dict[str, VerifierSpec] = {}
        try:
            if self._origins:
                self._remote = {entry["name"]: entry for entry in self._started().describe()}
            for member in part.members:
                if member.use != "problem":
                    self._use(member.use, member.args)
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        """What a forked child must not share with its parent: locks, threads and worker processes."""
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._resolving = threading.RLock()
        self._batches: dict[str, _Batcher] = {}

    def _forked(self) -> None:
        self._begin()
        self._cache.lock = threading.Lock()

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
        own = dict(sorted(own.items()))
        for bound in own.values():
            label = bound.name if bound.name not in out else f"problem:{bound.name}"
            while label in out:
                label += "+"
            out[label] = bound
        self._problem_verifiers, self._in_use = own, out
        return out

    def deadlines(self) -> dict[str, float]:
        """{member: the most seconds that a call of it may take}, of members that run in processes; ``problem`` is the
        slowest verifier of the problems given to ``bind``."""
        of_problems, out = list(self._problem_verifiers.values()), {}
        for label, member in zip(self._labels, self.part.members, strict=True):
            specs = of_problems if member.use == "problem" else [VerifierSpec(name=member.use, args=member.args)]
            found = [use for use in (self._use(spec.name, spec.args) for spec in specs) if use.call is None]
            if found:
                out[label] = max(self._deadline or use.deadline for use in found)
        return out

    @property
    def spec_digest(self) -> str:
        """Identity of the reward as it is judged, the verifiers of the problems given to ``bind`` included."""
        return reward_digest(reward.spec_of(self.part), reward.versions_of(self._in_use or self.bind()))

    def _bound(self, name: str, args: Mapping[str, Any]) -> VerifierSpec:
        use = self._use(name, args)
        if not use.spec.digest:
            use.spec = dataclasses.replace(use.spec, digest=self._describe(use)["digest"])
        return use.spec

    @property
    def described(self) -> Mapping[str, Mapping[str, Any]]:
        """What the child said of each of the user's verifiers, by name."""
        return self._remote

    def identity(self, name: str, args: Mapping[str, Any], *, sources: bool = True) -> Mapping[str, Any]:
        """The parts of a verifier's version digest and its canonical source, as ``versions.describe`` gives them."""
        return self._describe(self._use(name, args), sources=sources)

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
            _cancel(pending)
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

    def judge_many(
        self, pairs: Iterable[tuple[Problem, str] | tuple[Problem, str, Finish]], *, window: int = 256
    ) -> Iterator[tuple[int, Judgement]]:
        """``stream`` without an event loop: (index, judgement) in order of completion, from any thread. The third of a pair,
        where there is one, is why the completion ended."""
        ready: queue.SimpleQueue[tuple[int, dict[str, Verdict]]] = queue.SimpleQueue()
        source, taken, more = iter(pairs), 0, True
        open_: dict[int, dict[str, Verdict | Future[Verdict]]] = {}
        try:
            while more or open_:
                while more and len(open_) < window:
                    try:
                        problem, text, *ended = next(source)
                    except StopIteration:
                        more = False
                        break
                    open_[taken] = pending = self._submit(problem, text, ended[0] if ended else "stop")
                    _Gather(taken, pending, ready)
                    taken += 1
                if open_:
                    index, made = ready.get()
                    del open_[index]
                    yield index, self._combined(made)
        finally:
            for pending in open_.values():
                _cancel(pending)

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
        return self._ask(use, problem, text, finish)

    def _ask(self, use: _Use, problem: Problem, text: str, finish: Finish) -> Verdict | Future[Verdict]:
        if use.put is not None:
            return self._together(use, [self._ask(part, problem, text, finish) for part in use.parts])
        known, fault = self._cache.problem(problem) if use.call is None or self._cache.size else (None, "")
        key = self._cache.key(use, known, text, finish) if use.deterministic and known is not None else None
        if key is not None and (held := self._cache.get(key)) is not None:
            return held
        if use.call is not None:
            verdict = self._inline(use, problem, text, finish)
            self._cache.put(key, verdict)
            return verdict
        if self._closed:
            raise _closed()
        if fault or not isinstance(text, str):
            # Refused here, so that what shares a call with it is not lost.
            bad = (
                Verdict.of("bad_gold", why=fault)
                if fault
                else verdicts.error(f"a completion is text, got {text!r:.80}")
            )
            return dataclasses.replace(bad, verifier=use.spec)
        done: Future[Verdict] = Future()
        item = _Item(use, problem, text, finish, done, key)
        if use.batch:
            self._batches.setdefault(use.key, _Batcher(self)).add(item)
        else:
            self._send([item])
        return done

    def _together(self, use: _Use, asked: Sequence[Verdict | Future[Verdict]]) -> Verdict | Future[Verdict]:
        """The verdict of an ensemble, once all its members have theirs."""

        def put(made: Sequence[Verdict]) -> Verdict:
            assert use.put is not None
            verdict = use.put(made)
            slowest = max(each.seconds for each in made)
            return dataclasses.replace(verdict, seconds=slowest, verifier=use.spec, isolation=use.isolation)

        waiting = [each for each in asked if isinstance(each, Future)]
        if not waiting:
            return put([each for each in asked if isinstance(each, Verdict)])
        whole: Future[Verdict] = Future()
        left, lock = [len(waiting)], threading.Lock()

        def done(_: Future[Verdict]) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if not last:
                return
            if any(each.cancelled() for each in waiting):
                whole.cancel()
            elif not whole.cancelled() and whole.set_running_or_notify_cancel():
                try:
                    made = put([each if isinstance(each, Verdict) else each.result() for each in asked])
                except Exception as fault:  # whoever waits must hear of it
                    made = dataclasses.replace(
                        verdicts.error(f"{use.spec.name} raised {type(fault).__name__}: {fault}"), verifier=use.spec
                    )
                whole.set_result(made)

        def dropped(future: Future[Verdict]) -> None:
            if future.cancelled():
                for each in waiting:
                    each.cancel()

        for each in waiting:
            each.add_done_callback(done)
        whole.add_done_callback(dropped)
        return whole

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
                raise _closed()
            if self._pool is None:
                self._pool = Pool(self._origins, workers=self._workers, spares=self._spares, limits=self._limits)
            return self._pool

    def _send(self, items: list[_Item], attempt: int = 1) -> None:
        """One call of one verifier over ``items`` (one, unless it is batched). Never raises: each gets its verdict."""
        items = [item for item in items if not item.done.cancelled()]
        if not items:
            return
        use = items[0].use
        request = {
            "op": "judge",
            "name": use.spec.name,
            "args": dict(use.spec.args),
            "items": [[verdicts.problem_to_json(i.problem), i.text, i.finish] for i in items],
        }
        try:
            pool = self._started()
            future = pool.submit(Task(request=request, deadline=self._deadline or use.deadline))
        except RunFailed as fault:
            self._settle(items, attempt, Broken(kind="closed", why=fault.what))
            return
        except Exception as fault:
            self._settle(items, attempt, Broken(kind="infra", why=f"the call cannot be sent: {fault!r:.300}"))
            return

        def drop(_: Future[Verdict]) -> None:
            if all(item.done.cancelled() for item in items):
                future.cancel()

        def receive(done: Future[Outcome]) -> None:
            if not done.cancelled():
                self._receive(items, attempt, done.result(), pool)

        future.add_done_callback(receive)
        for item in items:
            item.done.add_done_callback(drop)

    def _receive(self, items: list[_Item], attempt: int, outcome: Outcome, pool: Pool) -> None:
        if isinstance(outcome, Broken) and not self._closed:
            if outcome.kind == "closed" and self._pool is not pool:
                # The pool was replaced, as a verifier was met for the first time; the new one takes over.
                self._send(items, attempt)
                return
            if outcome.kind == "closed":
                self._settle(items, attempt, outcome)
                return
            if outcome.kind in LOST and not any(item.lost for item in items):
                for item in items:
                    item.lost = True
                self._send(items, attempt + 1)
                return
            if len(items) > 1:
                # One of a batch broke the process: each alone, so that it costs its own verdict only.
                for item in items:
                    self._send([item], attempt + 1)
                return
        self._settle(items, attempt, outcome)

    def _settle(self, items: list[_Item], attempt: int, outcome: Outcome) -> None:
        use = items[0].use
        for item, verdict in zip(items, _verdicts(use, outcome, len(items)), strict=True):
            made = dataclasses.replace(verdict, verifier=use.spec, attempt=attempt, isolation=use.isolation)
            self._cache.put(item.key, made)
            if not item.done.cancelled() and item.done.set_running_or_notify_cancel():
                item.done.set_result(made)

    def _use(self, name: str, args: Mapping[str, Any]) -> _Use:
        try:
            key = f"{name}\x1f{canonical_json(dict(args))}" if args else name
        except (TypeError, ValueError) as fault:
            raise ConfigError(
                f"the arguments of verifier {name!r} are no JSON: {fault}", where=f"arguments of verifier {name!r}",
                fix="give numbers that are finite, text, true, false, null, lists and objects",
            ) from None  # fmt: skip
        found = self._specs.get(key)
        if found is None:
            with self._resolving:
                found = self._specs.get(key)
                if found is None:
                    found = self._specs[key] = self._resolve(key, name, args)
        return found

    def _resolve(self, key: str, name: str, args: Mapping[str, Any]) -> _Use:
        spec = VerifierSpec(name=name, args=dict(args))
        if name in catalog.BUILT_IN:
            catalog.check(name, args)
        for used, inner in catalog.parts_of(name, args):
            self._use(used, inner)
        if name in self._remote:
            return _Use.of(key, spec, self._remote[name])
        if name in catalog.BUILT_IN:
            definition = catalog.check(name, args)
            if definition.ready is not None:
                definition.ready(args)
            if self._may_inline and catalog.is_bounded(name, args):
                return _Use.of(key, spec, _entry(definition), call=definition.build(args), built_in=True)
            # one made of a user's verifiers is read where those are loaded
            use = _Use.of(key, spec, _entry(definition), built_in=not self._of_users(name, args))
            if getattr(definition.target, "together", False):
                use.parts = tuple(self._use(used, inner) for used, inner in catalog.parts_of(name, args))
                use.put = definition.build(args).put  # type: ignore[attr-defined]
            return use
        if name in REGISTERED:
            definition = catalog.check(name, args)
            self._add_origin(origin_of(definition))
            if name not in self._remote:
                # Its file does not register it when it is loaded (the call stands inside a function, say).
                self._add_origin(shipped(definition))
            return _Use.of(key, spec, self._remote[name])
        raise unknown("verifier", name, [*catalog.names(), *self._remote], where="verifier")

    def _of_users(self, name: str, args: Mapping[str, Any]) -> bool:
        return name in self._remote or any(self._of_users(used, inner) for used, inner in catalog.parts_of(name, args))

    def _add_origin(self, origin: Origin) -> None:
        """A pool that loads ``origin`` too takes the place of the present one, once it has loaded it."""
        if any((o.kind, o.value) == (origin.kind, origin.value) for o in self._origins):
            return
        origins = [*self._origins, origin]
        new = Pool(origins, workers=self._workers, spares=self._spares, limits=self._limits)
        try:
            remote: dict[str, Mapping[str, Any]] = {entry["name"]: entry for entry in new.describe()}
        except BaseException:
            new.close()
            raise
        with self._lock:
            closed = self._closed
            old = self._pool
            if not closed:
                self._pool, self._origins, self._remote = new, origins, remote
        if closed:
            new.close()
            raise _closed()
        if old is not None:
            old.close()

    def resize(self, workers: int) -> None:
        """From now on so many verifiers run at once in processes."""
        with self._lock:
            self._workers = workers
            if self._pool is not None:
                self._pool.resize(workers)

    def pids(self) -> list[int]:
        """Worker processes alive now, the spare included."""
        return self._pool.pids() if self._pool is not None else []

    def close(self) -> None:
        """Kill the workers; what is unfinished ends as ``infra``. Idempotent."""
        with self._lock:
            pool, self._pool, self._closed = self._pool, None, True
        for batch in list(self._batches.values()):
            batch.flush()
        if pool is not None:
            pool.close()

    def __enter__(self) -> LocalJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_JUDGES: weakref.WeakSet[LocalJudge] = weakref.WeakSet()


def _after_fork() -> None:
    for judge in list(_JUDGES):
        judge._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _closed() -> RunFailed:
    return RunFailed("this judge is closed", where="LocalJudge", fix="build another")


def _cancel(pending: Mapping[str, Verdict | Future[Verdict]]) -> None:
    for item in pending.values():
        if isinstance(item, Future):
            item.cancel()


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
        _check_file(path)
        return Origin(kind="file", value=str(path.resolve()))
    known = {entry.name: entry for entry in metadata.entry_points(group=ENTRY_POINTS)}
    if path.name not in known:
        raise ConfigError(
            f"{str(item)!r} is neither a .py file nor an installed entry point.{nearest(path.name, known)}",
            where="verifiers",
            fix=f"write ./{path.name}.py, or install a package with an entry point in the group {ENTRY_POINTS!r}",
        )
    return Origin(kind="module", value=known[path.name].value.partition(":")[0], path=import_path())


def _check_file(path: Path) -> None:
    if path.is_file():
        return
    if path.is_dir():
        raise ConfigError(f"{path.name!r} is a folder, not a file", where=str(path), fix="name a .py file in it")
    if path.is_symlink():
        raise ConfigError(f"{path.name!r} is a link that leads to no file", where=str(path), fix="name the file itself")
    if path.exists():
        raise ConfigError(f"{path.name!r} is not a regular file", where=str(path), fix="name a .py file")
    beside = [p.name for p in path.parent.glob("*.py") if p.is_file()] if path.parent.is_dir() else []
    raise ConfigError(
        f"no verifier file {path.name!r}.{nearest(path.name, beside)}",
        where=str(path),
        fix="a path in `verifiers:` is relative to the recipe",
    )


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
    elif outcome.kind == "killed":
        verdict = Verdict.of("infra", why=f"{name}: {outcome.why}, which this pool did not send", evidence=evidence)
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
    isolation: Literal["process", "sandbox"] = "process"
    parts: tuple[_Use, ...] = ()
    put: Callable[[Sequence[Verdict]], Verdict] | None = None
    """Of an ensemble: its members are asked apart, and this makes one verdict of theirs."""

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
            isolation=entry.get("isolation", "process") if built_in else "process",
        )  # fmt: skip


def _entry(d: Definition) -> dict[str, Any]:
    return {
        "name": d.name, "deadline": d.deadline, "batch": d.batch, "deterministic": d.deterministic, "blame": d.blame,
        "wants_finish": d.wants_finish, "isolation": d.isolation,
    }  # fmt: skip


@dataclasses.dataclass(eq=False, slots=True)
class _Item:
    use: _Use
    problem: Problem
    text: str
    finish: Finish
    done: Future[Verdict]
    key: bytes | None
    lost: bool = False
    """It was sent again already after its process was killed or none started."""


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
                item.add_done_callback(functools.partial(self._done, label))

    def _done(self, label: str, done: Future[Verdict]) -> None:
        if not done.cancelled():
            self._add(label, done.result())

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
                    self._timer = threading.Timer(0.002, self.flush)
                    self._timer.daemon = True
                    self._timer.start()
                return
            items, self._held = self._held, []
        self._judge._send(items)

    def flush(self) -> None:
        """Send what is held."""
        with self._lock:
            items, self._held = self._held, []
            self._timer = None
        if items:
            self._judge._send(items)


class _Cache:
    """Verdicts by (verifier, problem, completion), least recently used first out. Only decided ones are kept."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._held: collections.OrderedDict[bytes, Verdict] = collections.OrderedDict()
        self._problems: collections.OrderedDict[int, tuple[Problem, bytes | None, str]] = collections.OrderedDict()
        self.lock = threading.Lock()
        self.hits = 0

    def key(self, use: _Use, known: bytes, text: str, finish: Finish) -> bytes | None:
        if not self.size:
            return None
        made = hashlib.blake2b(known, digest_size=20)
        made.update(f"{use.spec.digest}\x1f{use.key}\x1f{finish}\x1f".encode("utf-8", "surrogatepass"))
        made.update(text.encode("utf-8", "surrogatepass"))
        return made.digest()

    def problem(self, problem: Problem) -> tuple[bytes | None, str]:
        """The digest of a problem, or None and what of it JSON cannot hold."""
        with self.lock:
            held = self._problems.get(id(problem))
            if held is not None and held[0] is problem:
                return held[1], held[2]
        made, fault = None, ""
        try:
            whole = canonical_json(verdicts.problem_to_json(problem)).encode("utf-8", "surrogatepass")
            made = hashlib.blake2b(whole, digest_size=20).digest()
        except (TypeError, ValueError, RecursionError, AttributeError) as error:
            fault = f"the problem cannot be sent to a verifier's process: {error}"[:500]
        with self.lock:
            self._problems[id(problem)] = (problem, made, fault)
            while len(self._problems) > 4096:
                self._problems.popitem(last=False)
        return made, fault

    def get(self, key: bytes) -> Verdict | None:
        with self.lock:
            held = self._held.get(key)
            if held is not None:
                self._held.move_to_end(key)
                self.hits += 1
            return held

    def put(self, key: bytes | None, verdict: Verdict) -> None:
        if key is None or verdict.score is None or verdict.status in ("timeout", "error"):
            return
        if verdict.status == "limit" or "limit" in verdict.flags:  # another time it may be faster
            return
        with self.lock:
            self._held[key] = verdict
            while len(self._held) > self.size:
                self._held.popitem(last=False)
