"""Every operation of the OpenAPI document: documented, with an example, and never a 500 whatever it is sent."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import requests

from services import Served

METHODS = ("get", "post", "patch", "delete", "put")


@pytest.fixture(scope="module")
def document(served: Served) -> dict[str, Any]:
    status, _, found = served.ask("GET", "/openapi.json")
    assert status == 200
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, said)
        for path, item in document["paths"].items()
        for method, said in item.items()
        if method in METHODS
    ]


def test_the_document_is_whole(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    listed = {f"{method.upper()} {path}" for method, path, _ in operations(document)}
    golden = Path(__file__).with_name("operations.txt")
    assert sorted(listed) == golden.read_text().splitlines(), (
        "operations changed: v1 only grows; write the new ones into operations.txt"
    )
    for method, path, said in operations(document):
        assert said["summary"] and said["operationId"]
        if not path.startswith("/api/v1"):
            continue
        for status in ("400", "401", "403", "404", "422", "500"):
            assert said["responses"][status]["content"]["application/problem+json"]["examples"], (method, path, status)
        if "application/json" in said.get("requestBody", {}).get("content", {}):
            name = said["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            schema = document["components"]["schemas"][name]
            assert schema["examples"] and schema["additionalProperties"] is False, name


def test_no_operation_takes_a_parameter_that_it_does_not_have(served: Served, document: dict[str, Any]) -> None:
    """A misspelt filter would let everything through."""
    for method, path, _ in operations(document):
        if path.startswith("/api/v1"):
            asked = f"{re.sub('{.*?}', 'x', path)}?no_such_parameter=1"
            kind = {"Content-Type": "application/x-tar"} if path.endswith(":import") else None
            status, _, said = served.ask(method.upper(), asked, headers=kind)
            assert (status, said["errors"][0]["code"]) == (400, "unknown-parameter"), (method, path, said)


def test_the_examples_are_taken(served: Served, document: dict[str, Any]) -> None:
    """Those of bodies, as they stand in the document."""
    assert (
        served.ask("POST", "/api/v1/runs", {**document["components"]["schemas"]["NewRun"]["examples"][0], "id": "ex"})[
            0
        ]
        == 201
    )
    batch = document["components"]["schemas"]["MetricBatch"]["examples"][0]
    assert served.ask("POST", "/api/v1/runs/ex/metrics:batch", batch)[2] == {"stored": 2}
    assert served.ask("POST", "/api/v1/api-keys", document["components"]["schemas"]["NewKey"]["examples"][0])[0] == 201


ONCE = frozenset({"/api/v1/runs/{run}/stream"})
"""Operations whose answer does not end."""


def _fuzzed(each: Served, examples: int) -> dict[int, int]:
    """How many answers there were of each status, to requests that schemathesis makes of the document: valid ones and not."""
    schemathesis = pytest.importorskip("schemathesis", reason="the package schemathesis is not installed")
    schemathesis.serializer.alias("application/x-tar", "application/octet-stream")
    modes = schemathesis.GenerationMode
    described = each.ask("GET", "/openapi.json")[2]
    made = schemathesis.openapi.from_dict(described)
    each.ask("POST", "/api/v1/runs", {"recipe": "tiny", "id": "fuzz"})
    seen: Counter[int] = Counter()

    def send(case: Any) -> None:
        if "run" in (case.path_parameters or {}) and len(str(case.path_parameters["run"])) % 2:
            case.path_parameters["run"] = "fuzz"
        said = case.as_transport_kwargs(base_url=each.url)
        request = requests.Request(**{key: value for key, value in said.items() if key in _OF_REQUEST})
        try:
            prepared = request.prepare()
            answer = session.send(prepared, timeout=20)
        except (ValueError, requests.exceptions.InvalidHeader, UnicodeError):
            return  # HTTP has no form for it
        seen[answer.status_code] += 1
        assert answer.status_code < 500, (case.method, prepared.url, prepared.body, answer.text)
        if answer.status_code >= 400:
            assert answer.headers["content-type"] == "application/problem+json", (prepared.url, answer.text)
            assert not re.search("SELECT|INSERT|Traceback|sqlalchemy", answer.text), (prepared.url, answer.text)

    with requests.Session() as session:
        for found in made.get_all_operations():
            operation = found.ok()
            if operation.path in ONCE:
                continue
            said = described["paths"][operation.path][operation.method]
            typed = re.search("application/json|integer|enum", str([said.get("requestBody"), said.get("parameters")]))
            for mode, share in (
                (modes.POSITIVE, 2),
                *([(modes.NEGATIVE, 1)] if typed else []),
            ):  # any text is a valid name
                bounds = hypothesis.settings(
                    max_examples=max(1, examples * share // 3), deadline=None, database=None, derandomize=True,
                    suppress_health_check=list(hypothesis.HealthCheck), phases=[hypothesis.Phase.generate],
                )  # fmt: skip
                bounds(hypothesis.given(case=operation.as_strategy(generation_mode=mode))(send))()
    return dict(seen)


_OF_REQUEST = frozenset({"method", "url", "headers", "params", "data", "json", "cookies", "files"})


def test_nothing_that_is_sent_is_a_500(each: Served) -> None:
    seen = _fuzzed(each, 3)
    assert seen[200] > 20 and {404, 422} <= seen.keys(), seen


@pytest.mark.soak
def test_nothing_that_is_sent_is_a_500_for_long(each: Served) -> None:
    seen = _fuzzed(each, 300)
    assert seen[200] > 1000 and {201, 400, 404, 409, 422} <= seen.keys(), seen
