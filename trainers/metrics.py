"""The numbers of a step. Rewards here are those that were judged; the loop adds what the advantages were made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from jurat.platform.types import Batch, Sample, UpdateReport
from jurat.trainers.timeline import lag_metrics, phase_metrics


def step_metrics(batch: Batch, reports: Sequence[UpdateReport]) -> dict[str, float]:
    """Flat names: ``reward/*``, ``verifier/<member>/*``, ``group/*``, ``tokens/*``, ``lag/*``, ``timeline/*``, and
    ``<role>/*`` (means over updates)."""
    groups = batch.groups
    scored = [s for g in groups for s in g.scored]
    rewards = np.array([s.judgement.reward.value for s in scored if s.judgement.reward.value is not None])
    lengths = np.array([s.rollout.num_completion_tokens for s in scored])
    drawn = (*groups, *(group for group, _ in batch.discarded))
    every = [s for g in drawn for s in (*g.scored, *([g.baseline] if g.baseline else []))]
    counts = np.array([len(g.scored) for g in groups])
    out: dict[str, float] = {
        "reward/mean": mean(rewards),
        "reward/std": float(rewards.std()) if len(rewards) else 0.0,
        "reward/undecided": 1 - len(rewards) / len(scored) if scored else 0.0,
        "reward/gated": mean(bool(s.judgement.reward.gate) for s in scored),
        "tokens/mean_length": mean(lengths),
        "tokens/max_length": float(lengths.max(initial=0)),
        "tokens/truncated": mean(np.array([s.rollout.finish == "length" for s in scored])),
        "tokens/sampled": float(lengths.sum()),
        "tokens/generated": float(sum(s.rollout.num_completion_tokens for s in every)),
        "group/count": float(len(groups)),
        "group/discarded": float(len(batch.discarded)),
        "group/refills": float(max((g.allocation.evidence.get("refill", 0) for g in drawn), default=0)),
        "group/samples_min": float(counts.min()) if len(counts) else 0.0,
        "group/samples_max": float(counts.max(initial=0)),
    }
    spreads = []
    for group in groups:
        beside = (
            [group.baseline] if group.baseline is not None else []
        )  # a sample that differs from it has an advantage
        values = [s.judgement.reward.value for s in (*group.scored, *beside) if s.judgement.reward.value is not None]
        spreads.append(len(set(values)) < 2)
    out["group/zero_variance"] = mean(np.array(spreads))
    for name in dict.fromkeys(name for s in scored for name in s.judgement.verdicts):
        verdicts = [s.judgement.verdicts[name] for s in scored if name in s.judgement.verdicts]
        scores = np.array([v.score for v in verdicts if v.score is not None])
        out[f"verifier/{name}/mean"] = mean(scores)
        out[f"verifier/{name}/undecided"] = 1 - len(scores) / len(verdicts)
        apart = [float(v.evidence["disagreement"]) for v in verdicts if "disagreement" in v.evidence]
        if apart:  # an ensemble
            out[f"verifier/{name}/disagreement"] = mean(apart)
            out[f"verifier/{name}/failed"] = mean(any(flag.startswith("without ") for flag in v.flags) for v in verdicts)
        out[f"verifier/{name}/seconds"] = mean(np.array([v.seconds for v in verdicts]))
    for role in dict.fromkeys(report.role for report in reports):
        mine = [report for report in reports if report.role == role]
        for key in dict.fromkeys(key for report in mine for key in report.metrics):
            out[f"{role}/{key}"] = mean(np.array([r.metrics[key] for r in mine if key in r.metrics]))
        out[f"{role}/trained_tokens"] = float(sum(r.tokens for r in mine))
        out[f"{role}/forwarded_tokens"] = float(sum(r.forwarded_tokens for r in mine))
    return out | lag_metrics(batch) | phase_metrics(batch)


def is_timed(name: str) -> bool:
    """Whether a metric of a step goes by the clock: runs that are otherwise equal differ in it."""
    return "seconds" in name or name.startswith(("timeline/", "utilisation/", "queue/"))


def value_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """``critic/*``: means over tokens of its values before the step and of the returns, and the share of the returns'
    variance that it explained, ``1 - var(R - V) / var(R)`` (0 where returns do not vary). Empty without a critic."""
    pairs = [
        (s.values[s.loss_mask], s.returns[s.loss_mask])
        for s in samples
        if s.values is not None and s.returns is not None
    ]
    if not pairs:
        return {}
    values, returns = (np.concatenate(part).astype(np.float64) for part in zip(*pairs, strict=True))
    spread = float(returns.var()) if len(returns) else 0.0
    explained = 1.0 - float((returns - values).var()) / spread if spread > 0 else 0.0
    return {"critic/value": mean(values), "critic/return": mean(returns), "critic/explained_variance": explained}


def mean(values: Iterable[float]) -> float:
    """0 of nothing."""
    found = np.fromiter(values, np.float64)
    return float(found.mean()) if len(found) else 0.0
