"""Reference vectors: ``@pytest.mark.vectors("adv_rloo")`` runs a test on each (case, tolerance) of a file of them. And whole
runs, which a test may interrupt and resume."""

import json
import os
from pathlib import Path

import pytest

from screens import Screen

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))


@pytest.fixture(scope="session")
def launched():
    """``launched(home, recipe, stop=3)`` and ``launched(home, resume=RUN)`` -> (Outcome, Screen)."""
    from jurat.platform.config import validate
    from jurat.trainers import launch

    def run(home, recipe=None, *, stop=None, **how):
        screen = Screen(stop)
        made = None if recipe is None else validate(recipe, where="test")
        return launch.train(made, home=home, base=home, reporter=screen, **how), screen

    return run


def pytest_generate_tests(metafunc):
    marker = metafunc.definition.get_closest_marker("vectors")
    if marker is not None:
        metafunc.parametrize(("case", "tolerance"), [case for file in marker.args for case in cases(file)])


def cases(file):
    path = PARITY / f"{file}.json"
    if not path.exists():
        reason = f"no reference vectors at {PARITY} (set JURAT_PARITY)"
        return [pytest.param(None, None, marks=pytest.mark.skip(reason=reason), id=file)]
    document = json.loads(path.read_text())
    tolerances = document["tolerance"]
    return [
        pytest.param(
            case,
            tolerances["float32" if "float32" in str(case.get("dtype")) else "float64"],
            id=f"{file}:{case['id']}",
        )
        for case in document["cases"]
    ]
