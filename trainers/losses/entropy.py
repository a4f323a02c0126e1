"""The exact entropy of a policy's tokens.

No loss calls it: a learner keeps no logits beside their log-probs and gives entropy as a metric without gradient. The
bonus of ``PolicyLoss`` estimates this gradient from the drawn tokens alone; the tests hold it against this function.
"""

from __future__ import annotations

from torch import Tensor


def token_entropy(logits: Tensor) -> Tensor:
    """[..., V] -> [...] nats: ``log sum exp z - sum_v p_v z_v``, with gradient."""
    return logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)
