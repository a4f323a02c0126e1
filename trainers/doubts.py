"""Verifiers are asked again while a run goes on: the canary cases, and a thousandth of what they judged, in a fresh process.

A round comes every ``EVERY`` steps, and later where rounds would take more than ``SHARE`` of the time; it runs
in a thread, and the work in a process that is ended with it. What a version says now and did not say before is an event of the
run: ``canary_drift``, or ``nondeterministic`` if it contradicts itself, and then it does not count as deterministic any more.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

from jurat.platform.db.clock import now
from jurat.platform.errors import FencedOut, JuratError
from jurat.platform.provenance import versions
from jurat.platform.provenance.records import Observation, VerifierFacts
from jurat.platform.runs import events, leases
from jurat.platform.runs.records import Lease
from jurat.platform.runs.store import Store
from jurat.platform.types import (
    Batch,
    Evaluation,
    Finish,
    Problem,
    Rollout,
    StepReport,
    Verdict,
)

log = logging.getLogger(__name__)

EVERY = 50
"""Steps between two rounds."""
SHARE = 0.01
"""Of the time, at most."""
SAMPLED = 0.001
"""Of the rollouts; which ones is a matter of their ids."""
MAX_WAITING = 256
CLOSE_SECONDS = 30.0
UNSURE = frozenset({"timeout", "limit", "error", "infra"})
"""Statuses that may differ another time."""


class Asked(Protocol):
    """Verifiers in a process of their own."""

    def canaries(self, facts: VerifierFacts) -> Observation: ...

    def verdict(self, problem: Problem, text: str, *, finish: Finish) -> Verdict:
        """Of the problem's own verifier."""


class Doubts:
    """One stage's. ``ask`` makes the process; ``facts``: the versions that may be asked. Close it at the end."""

    def __init__(
        self,
        ask: Callable[[], AbstractContextManager[Asked]],
        facts: Sequence[VerifierFacts],
        *,
        store: Store,
        lease: Lease,
        environment: str,
        note: Callable[[str], None],
    ) -> None:
        self._ask, self._store, self._lease, self._environment = ask, store, lease, environment
        self._facts = {each.digest: each for each in facts}
        self._note = note
        self._waiting: list[tuple[Rollout, Verdict]] = []
        self._step, self._asked_at, self._next = 0, 0, 0.0
        self._said: set[tuple[str, str]] = set()
        self._thread: threading.Thread | None = None

    def seen(self, batch: Batch) -> None:
        """Keep what is to be judged again."""
        for group in batch.groups:
            for scored in group.scored:
                if zlib.crc32(scored.rollout.id.encode()) < SAMPLED * 2**32 and len(self._waiting) < MAX_WAITING:
                    given = scored.judgement.verdicts.values()
                    self._waiting += [(scored.rollout, one) for one in given if _sure(one) and self._known(one)]

    def _known(self, verdict: Verdict) -> bool:
        return verdict.verifier is not None and verdict.verifier.digest in self._facts

    def stepped(self, report: StepReport) -> None:
        """A step is over: begin a round if one is due."""
        self._step, step = self._step + 1, report.step
        due = self._step - self._asked_at >= EVERY and time.monotonic() >= self._next
        if due and self._facts and (self._thread is None or not self._thread.is_alive()):
            self._begin(step)

    def _begin(self, step: int) -> None:
        self._asked_at, taken, self._waiting = self._step, self._waiting, []
        self._thread = threading.Thread(target=self._round, args=(step, taken), name="doubts", daemon=True)
        self._thread.start()

    def evaluated(self, result: Evaluation) -> None:
        """Nothing that is asked again."""

    def close(self) -> None:
        """What waits is judged again now."""
        until = time.monotonic() + CLOSE_SECONDS
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
        if self._waiting and self._facts and (self._thread is None or not self._thread.is_alive()):
            self._begin(-1)
            assert self._thread is not None
            self._thread.join(max(0.0, until - time.monotonic()))

    # ---- the thread ----

    def _round(self, step: int, taken: Sequence[tuple[Rollout, Verdict]]) -> None:
        began = time.monotonic()
        try:
            with self._ask() as asked:
                same = {digest for digest, facts in self._facts.items() if self._canaries(asked, facts, step)}
                for rollout, before in taken:  # what drifted is another's fault, and is said
                    if before.verifier is not None and before.verifier.digest in same:
                        self._again(asked, rollout, before, step)
        except FencedOut as error:
            log.info("%s", error)
        except JuratError as error:
            log.warning("verifiers could not be asked again: %s", error)
        except Exception:
            log.exception("verifiers could not be asked again")
        self._next = time.monotonic() + (time.monotonic() - began) / SHARE

    def _canaries(self, asked: Asked, facts: VerifierFacts, step: int) -> bool:
        """Whether it says what it said before."""
        seen = asked.canaries(facts)
        lines = self._store.read(lambda c: versions.changed_behaviour(c, seen))
        if not lines:
            self._store.write(
                lambda c: versions.observe(c, seen, environment=self._environment, run_id=self._lease.run)
            )
            return True
        once_more = {case: said for case, *said in asked.canaries(facts).vector}
        wavering = [case for case, *said in seen.vector if case in once_more and once_more[case] != said]
        told = {"cases": lines[:20], "changed": len(lines)}
        self._tell("nondeterministic" if wavering else "canary_drift", facts, step, told)
        return False

    def _again(self, asked: Asked, rollout: Rollout, before: Verdict, step: int) -> None:
        assert before.verifier is not None
        problem = replace(rollout.problem, verifier=before.verifier)
        found = asked.verdict(problem, rollout.text, finish=rollout.finish)
        if _sure(found) and (found.status, found.score) != (before.status, before.score):
            told = {"rollout": rollout.id, "before": _said(before), "now": _said(found)}
            self._tell("nondeterministic", self._facts[before.verifier.digest], step, told)

    def _tell(self, kind: str, facts: VerifierFacts, step: int, what: Mapping[str, Any]) -> None:
        """Once a version and kind in this stage."""
        if (kind, facts.digest) in self._said:
            return
        self._said.add((kind, facts.digest))
        payload = {"verifier": facts.name, "digest": facts.digest, **({"step": step} if step >= 0 else {}), **what}

        def write(connection: Any) -> None:
            leases.fence(connection, self._lease.run_pk, self._lease.epoch)
            events.add(connection, self._lease.run_pk, kind, payload, at=now(connection))
            if kind == "nondeterministic":
                versions.doubt(connection, facts.digest)

        self._store.write(write)
        says = (
            "contradicts itself"
            if kind == "nondeterministic"
            else "says something else of its canary cases than before"
        )
        self._note(f"alarm: verifier {facts.name} {says}; jurat runs show {self._lease.run}")


def _sure(verdict: Verdict) -> bool:
    return verdict.status not in UNSURE and "limit" not in verdict.flags and verdict.fault not in ("verifier", "infra")


def _said(verdict: Verdict) -> str:
    return str(verdict.status) if verdict.score is None else f"{verdict.status} {verdict.score:g}"
