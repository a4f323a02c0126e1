"""Where the time of a batch's samples went, by phase, and how old the policies were that drew them."""

from __future__ import annotations

import time
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
