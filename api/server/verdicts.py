"""Verdicts over HTTP: by a registered version, if what is installed here is that version."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from jurat.api.server.problems import Problem
from jurat.platform.canonical import canonical_json
from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError
from jurat.platform.runs.store import Store

KEPT = 8
"""Judges that stay, each with its workers."""


class Judges:
    """One judge for each version that was asked for. Safe to use from several threads."""

    def __init__(self, user_files: Sequence[str] = ()) -> None:
        self._files = tuple(user_files)
        self._lock = threading.Lock()
        self._judges: OrderedDict[str, tuple[Any, str, threading.Lock]] = OrderedDict()

    def judge(self, store: Store, digest: str, items: Sequence[tuple[str, str, str]]) -> list[dict[str, Any]]:
        """The verdict of each (gold, completion, prompt), in order. Raises Problem."""
        from jurat.verifiers.verdicts import problem_of

        name, args = version_of(store, digest)
        judge, found, lock = self._judge(name, args)
        if found != digest:
            raise Problem(
                "reward-drift",
                f"{name} is installed here as version {found[:19]}..., not as the one that was asked for",
            )
        with lock:
            made = [
                judge.verdict(problem_of(gold, prompt=prompt, verifier=name), completion)
                for gold, completion, prompt in items
            ]
        return [told(verdict) for verdict in made]

    def _judge(self, name: str, args: Mapping[str, Any]) -> tuple[Any, str, threading.Lock]:
        from jurat.platform.recipe import Member, RewardPart
        from jurat.verifiers.judge import LocalJudge, origin_named

        key = canonical_json([name, dict(args)])
        with self._lock:
            if key in self._judges:
                self._judges.move_to_end(key)
                return self._judges[key]
            part = RewardPart(members=(Member(use=name, args=dict(args)),))
            try:
                judge = LocalJudge(part, origins=[origin_named(file) for file in self._files], spares=0, cache=0)
                bound = judge.bind()
            except ConfigError as error:
                raise Problem("reward-drift", f"{name} cannot be run here: {error.what}") from None
            made = (judge, next(iter(bound.values())).digest, threading.Lock())
            self._judges[key] = made
            if len(self._judges) > KEPT:
                _, (old, _, busy) = self._judges.popitem(last=False)
                with busy:
                    old.close()
            return made

    def close(self) -> None:
        with self._lock:
            for judge, _, _ in self._judges.values():
                judge.close()
            self._judges.clear()


def version_of(store: Store, digest: str) -> tuple[str, dict[str, Any]]:
    """(name, arguments) of a registered version. Raises Problem for one that is unknown or quarantined."""
    v, r, n = t.verifier_version.c, t.verifier_release.c, t.verifier.c
    query = (
        sa.select(n.name, v.args, v.status, v.status_reason)
        .select_from(
            t.verifier_version.join(t.verifier_release, r.version_digest == v.digest).join(
                t.verifier, n.pk == r.verifier_pk
            )
        )
        .where(v.digest == digest)
        .order_by(n.name)
    )
    row = store.read(lambda connection: connection.execute(query).first())
    if row is None:
        raise Problem("not-found", "no version of that digest is registered")
    if row.status == "quarantined":
        raise Problem(
            "quarantined-verifier",
            f"{row.name} of that digest was quarantined: {row.status_reason or 'no reason given'}",
        )
    return row.name, dict(row.args or {})


def told(verdict: Any) -> dict[str, Any]:
    from jurat.platform.db.tables import plain

    return {
        "status": verdict.status, "score": verdict.score, "fault": verdict.fault, "read": plain(verdict.read),
        "why": plain(verdict.why),
        "certified": verdict.certified, "flags": plain(verdict.flags), "seconds": verdict.seconds,
        "evidence": plain(verdict.evidence),
        "isolation": verdict.isolation,
        "steps": [{"start": s.start, "end": s.end, "status": s.status, "score": s.score,
        "why": plain(s.why)} for s in verdict.steps],
    }  # fmt: skip
