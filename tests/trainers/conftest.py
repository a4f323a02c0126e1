"""Reference vectors: ``@pytest.mark.vectors("adv_rloo")`` runs a test on each (case, tolerance) of a file of them."""

import json
import os
from pathlib import Path

import pytest

PARITY = Path(os.environ.get("JURAT_PARITY", Path(__file__).parents[3] / "shared" / "parity"))


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
