"""The curve: what is read from the record, and that a file comes out whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jurat.api import plot


def test_curve_as_recorded(trained: Any) -> None:
    """Stages lie one after the other on one axis; each evaluation at its step."""
    curve, name = plot.read("small", trained.home)
    assert name == trained.run
    assert list(curve.stages) == [("sft", 0, 6), ("grpo", 6, 14)]
    assert list(curve.loss[0]) == [1, 2, 3, 4, 5, 6]
    assert list(curve.reward[0]) == list(curve.length[0]) == [7, 8, 9, 10, 11, 12, 13, 14]
    assert curve.reward[1][-1] == trained.told["metrics"]["reward/mean"]
    assert [step for step, _ in curve.evaluations] == [0, 4, 6, 10, 14]
    assert "SFT then GRPO" in curve.title


@pytest.mark.parametrize(("suffix", "begins"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")])
def test_formats(jurat: Any, trained: Any, tmp_path: Path, suffix: str, begins: bytes) -> None:
    out = tmp_path / f"curve{suffix}"
    done = jurat("plot", trained.run, "-o", out, "--json", "--home", trained.home)
    assert done.code == 0, done.err
    assert done.json == {"run": trained.run, "file": str(out), "steps": 14}
    assert out.read_bytes().startswith(begins)
    assert [path.name for path in tmp_path.glob("*curve*")] == [out.name], "no draft is left"


def test_labels(jurat: Any, trained: Any, tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        assert jurat("plot", trained.run, "-o", tmp_path / "c.svg", "--home", trained.home).code == 0
    text = (tmp_path / "c.svg").read_text()
    for label in (
        "mean reward",
        "accuracy, 95 % interval",
        "mean length, tokens",
        "step, all stages",
        "held out",
        "greedy",
        "sft",
        "grpo",
    ):
        assert label in text, label


def test_smooth_is_a_mean_of_neighbours() -> None:
    assert plot.smooth([2.0] * 9).tolist() == [2.0] * 9
    values = np.arange(100.0)
    assert np.allclose(plot.smooth(values)[10:90], values[10:90])
    assert plot.smooth([0.0, 3.0]).tolist() == [1.5, 1.5]


def test_what_cannot_be_drawn(jurat: Any, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = jurat("plot", trained.run, "-o", "curve.gif", "--home", trained.home)
    assert bad.code == 2 and ".gif" in bad.err and ".png, .svg, .pdf" in bad.err
    nowhere = jurat("plot", trained.run, "-o", tmp_path / "none" / "c.png", "--home", trained.home)
    assert nowhere.code == 2 and "no such folder" in nowhere.err
    unknown = jurat("plot", "smal-2", "--home", trained.home)
    assert unknown.code == 2 and "Did you mean 'small-1'?" in unknown.err
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    absent = jurat("plot", trained.run, "-o", tmp_path / "c.png", "--home", trained.home)
    assert absent.code == 2 and "make setup, or pip install -e '.[plot]' in the checkout" in absent.err
