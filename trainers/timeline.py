"""Where the time of a step goes: of its samples by phase, of sampler and learner by what they waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from jurat.platform.types import PHASES, Batch, Group, Scored


def waited(batch: Batch) -> Batch:
    """A batch that is taken now: how long each of its samples lay ready."""
    now = time.perf_counter()

    def one(scored: Scored) -> Scored:
        if not scored.ready:
            return scored
        return replace(scored, seconds={**scored.seconds, "wait": now - scored.ready})

    def group(of: Group) -> Group:
        return replace(
            of,
            scored=tuple(one(scored) for scored in of.scored),
            baseline=None if of.baseline is None else one(of.baseline),
        )

    return replace(
        batch,
        groups=tuple(group(each) for each in batch.groups),
        discarded=tuple((group(each), why) for each, why in batch.discarded),
    )


def phase_metrics(batch: Batch) -> dict[str, float]:
    """``timeline/<phase>_mean`` and ``_p95`` in seconds, over all samples drawn; empty where none was."""
    groups = (*batch.groups, *(group for group, _ in batch.discarded))
    timed = [s.seconds for g in groups for s in (*g.scored, *([g.baseline] if g.baseline else [])) if s.seconds]
    out: dict[str, float] = {}
    for phase in PHASES if timed else ():
        values = np.array([seconds.get(phase, 0.0) for seconds in timed])
        out[f"timeline/{phase}_mean"] = float(values.mean())
        out[f"timeline/{phase}_p95"] = float(np.quantile(values, 0.95))
    return out


def idle_metrics(laps: Mapping[str, float], busy: float | None) -> dict[str, float]:
    """``idle/learner`` and ``idle/sampler``: shares of a step's wall time in which they had nothing to do.

    ``laps`` are the loop's phases: the learner waits in ``wait`` and ``publish``. ``busy`` are the seconds of the step in
    which something was asked of the sampler; None where there is none.
    """
    wall = sum(laps.values())
    if busy is None or wall <= 0.0:
        return {}
    waits = laps.get("wait", 0.0) + laps.get("publish", 0.0)
    return {"idle/learner": waits / wall, "idle/sampler": max(0.0, 1.0 - busy / wall)}


def lag_metrics(batch: Batch) -> dict[str, float]:
    """How many versions behind the policy of the step its tokens were drawn: ``lag/mean`` over tokens, ``lag/max``, and
    ``lag/stale``, the share of tokens by an older version. Empty where nothing was sampled."""
    spans = [span for g in batch.groups for s in g.scored for span in s.rollout.spans if span.version >= 0]
    if not spans:
        return {}
    lags = np.array([batch.step - span.version for span in spans], dtype=np.float64)
    tokens = np.array([span.end - span.start for span in spans], dtype=np.float64)
    total = max(1.0, float(tokens.sum()))
    return {
        "lag/mean": float(lags @ tokens) / total,
        "lag/max": float(lags.max()),
        "lag/stale": float(tokens[lags > 0].sum()) / total,
    }
