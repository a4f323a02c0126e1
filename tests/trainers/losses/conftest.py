"""Reference vectors are [rows, columns] with masks; here they become a Microbatch: one segment a row, a prompt token first."""

import json
import os
from pathlib import Path

import pytest
import torch

from jurat.platform.types import Microbatch
from jurat.trainers.aggregation import AGGREGATIONS

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[4] / "shared" / "parity"))


class Rows:
    """Rows of tokens and what the tests do with them."""

    @staticmethod
    def load(name):
        """(cases, tolerance of a case) of a file of reference vectors."""
        path = PARITY / f"{name}.json"
        if not path.exists():
            pytest.skip(f"no reference vectors at {PARITY} (set JURAT_PARITY)")
        document = json.loads(path.read_text())

        def tolerance(case):
            return document["tolerance"]["float32" if "float32" in str(case.get("dtype")) else "float64"]

        return document["cases"], tolerance

    @staticmethod
    def tensor(values, case):
        """Of the case's dtype (that of the computation where it says so); NaN and infinities are strings."""
        dtype = torch.float32 if "float32" in str(case.get("dtype")) else torch.float64

        def number(value):
            return [number(v) for v in value] if isinstance(value, list) else float(value)

        return torch.tensor(number(values), dtype=dtype)

    @staticmethod
    def flat(rows):
        """[R, C] -> [R * (C + 1)], a 0 before each row."""
        return torch.nn.functional.pad(rows, (1, 0)).flatten()

    @staticmethod
    def unflat(values, rows):
        return values.view(len(rows), -1)[:, 1:]

    @classmethod
    def microbatch(cls, mask, mode="token-mean", constant=1, eps=0.0, **columns):
        """Columns [R, C] off the mask are 0, as in training; [R] is spread over its row."""
        options = {"eps": eps} if mode == "seq-mean-token-mean" else {}
        made = AGGREGATIONS[mode](list(mask.numpy()), range(len(mask)), constant, **options)
        weights = torch.stack([torch.from_numpy(row) for row in made])
        columns = {"sampler_logprobs": torch.zeros_like(mask), "advantages": torch.zeros_like(mask), **columns}
        columns = {
            name: cls.flat(torch.where(mask > 0, c if c.dim() == 2 else c[:, None], 0)) for name, c in columns.items()
        }
        length = mask.shape[1] + 1
        return Microbatch(
            tokens=torch.zeros(len(mask) * length, dtype=torch.int64),
            offsets=torch.arange(len(mask) + 1) * length,
            loss_mask=cls.flat(mask) > 0,
            weights=cls.flat(weights),
            **columns,
        )

    @classmethod
    def run(cls, objective, current, mb):
        """(loss, gradient [R, C], metrics) of log-probs [R, C]."""
        leaf = current.clone().requires_grad_()
        loss, metrics = objective(cls.flat(leaf), mb)
        (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.detach(), gradient, metrics

    @staticmethod
    def close(got, wanted, tolerance, what):
        """|got - wanted| <= tolerance * (1 + |wanted|), the vectors' own rule."""
        torch.testing.assert_close(
            torch.as_tensor(got, dtype=torch.float64),
            torch.as_tensor(wanted, dtype=torch.float64),
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text: f"{what}: {text}",
        )


@pytest.fixture(scope="session")
def rows():
    return Rows
