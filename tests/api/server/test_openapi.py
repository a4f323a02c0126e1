"""Every operation of the OpenAPI document: documented, with an example, and never a 500 whatever it is sent."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

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


def _any(rng: random.Random, depth: int = 0) -> Any:
    simple: list[Any] = [
        None,
        True,
        0,
        -1,
        1 << 62,
        0.5,
        -1e300,
        "",
        "x",
        "NaN",
        "\x00",
        "é\u2028\U0001f600",
        "'; DROP TABLE run; --",
        "../x",
        "a" * 300,
        "sha256:" + "0" * 64,
    ]
    kind = rng.randrange(8 if depth < 3 else 6)
    if kind < 6:
        return rng.choice(simple)
    if kind == 6:
        return [_any(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {str(_any(rng, 9))[:20]: _any(rng, depth + 1) for _ in range(rng.randrange(4))}


def _of_schema(rng: random.Random, schema: dict[str, Any], document: dict[str, Any], depth: int = 0) -> Any:
    """Mostly what the schema says, sometimes not."""
    if rng.random() < 0.12 or depth > 4:
        return _any(rng)
    if "$ref" in schema:
        return _of_schema(rng, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document, depth)
    if "anyOf" in schema:
        return _of_schema(rng, rng.choice(schema["anyOf"]), document, depth)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object":
        made = {
            key: _of_schema(rng, each, document, depth + 1)
            for key, each in schema.get("properties", {}).items()
            if rng.random() < 0.7 or key in schema.get("required", ())
        }
        return {
            **made,
            **(
                {rng.choice(["k", "optim", "steps", "a.b"]): _any(rng)}
                if "additionalProperties" in schema and schema["additionalProperties"] is not False
                else {}
            ),
        }
    if kind == "array":
        return [_of_schema(rng, schema.get("items", {}), document, depth + 1) for _ in range(rng.randrange(3))]
    if kind in ("integer", "number"):
        return rng.choice([schema.get("minimum", 0), schema.get("maximum", 7), 1, 3, rng.randrange(-5, 2000)])
    if kind == "boolean":
        return rng.random() < 0.5
    return rng.choice(
        [
            "tiny",
            "fuzz",
            "state = queued",
            "created desc",
            "id",
            "reward/mean",
            "sha256:" + "0" * 64,
            "0-0-0",
            "prompt",
            str(_any(rng, 9)),
        ]
    )


def test_nothing_that_is_sent_is_a_500(served: Served, document: dict[str, Any]) -> None:
    """Five hundred requests made from the document, and from what is not in it."""
    from urllib.parse import quote, urlencode

    rng = random.Random(20261130)
    served.ask("POST", "/api/v1/runs", {"recipe": "tiny", "id": "fuzz"})
    every = [each for each in operations(document) if not each[1].endswith("/stream")]
    seen: dict[int, int] = {}
    for turn in range(500):
        method, path, said = every[turn % len(every)]
        query: dict[str, Any] = {}
        headers = (
            {"If-Match": rng.choice(['"1"', "*", '"9"', "x"]), "Idempotency-Key": f"k{rng.randrange(20)}"}
            if rng.random() < 0.8
            else {}
        )
        for parameter in said.get("parameters", ()):
            value = _of_schema(rng, parameter["schema"], document)
            if parameter["in"] == "path":
                named = "fuzz" if parameter["name"] == "run" and rng.random() < 0.8 else str(value) or "x"
                path = path.replace("{" + parameter["name"] + "}", quote(named, safe=""))
            elif value is not None and rng.random() < 0.6:
                query[parameter["name"]] = value if isinstance(value, (int, float, str)) else json.dumps(value)
        path = re.sub(r"\{[^}]*\}", "x", path) + (f"?{urlencode(query, errors='replace')}" if query else "")
        body = None
        if "application/json" in said.get("requestBody", {}).get("content", {}):
            body = _of_schema(rng, said["requestBody"]["content"]["application/json"]["schema"], document)
        try:
            raw = None if body is None else json.dumps(body).encode()
        except ValueError:
            continue
        status, told, answer = served.ask(method.upper(), path, raw=raw, headers=headers)
        seen[status] = seen.get(status, 0) + 1
        assert status < 500, (method, path, body, answer)
        if status >= 400:
            assert (
                told["content-type"] == "application/problem+json"
                and "SELECT" not in str(answer)
                and "Traceback" not in str(answer)
            ), (path, answer)
    assert seen[200] > 50 and {400, 404, 422} <= seen.keys(), seen
