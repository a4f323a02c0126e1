"""Re-scoring by the command line and over HTTP: exit codes, filters, the page, and what hostile text does to it."""

from __future__ import annotations

import html.parser
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from benches import benchmark
from jurat.api.rescore_page import POLICY, page
from jurat.api.server.service import Settings
from jurat.client import ServiceError
from jurat.platform.runs.store import Store
from services import Served, listening

bench = benchmark("rescore")
HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)">\u202e</pre>&amp;\x1b[2J'


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """192 rollouts of 24 problems, of three steps, whose references and texts are hostile too."""
    folder = tmp_path_factory.mktemp("rescored")
    store = Store.open(None, folder)
    patched = pytest.MonkeyPatch()
    answer = bench.answer
    patched.setattr(bench, "answer", lambda *given: f"{HOSTILE} {answer(*given)}")
    bench.make(store, 192, prompts=8)
    patched.undo()
    store.close()
    return folder


def asked(home: Path, *more: str) -> list[str]:
    return ["rescore", "--home", str(home), "--from", "number@1", "--to", "math", "--runs", "bench", *more]


class _Tags(html.parser.HTMLParser):
    """Names and attributes of every tag."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def test_the_gate_and_the_page(jurat: Any, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    done = jurat(*asked(home, "--where", "step >= 1", "--fail-if", "flip_rate>0.5%", "-o", str(out), "--json"))
    assert done.code == 3 and done.json["gate"]["exit_code"] == 3 and "flip_rate is" in done.json["gate"]["what"]
    report = done.json
    assert report["counts"]["selected"] == report["counts"]["covered"] == 128
    assert {row["stratum"] for row in report["strata"]["step"]} <= {"1-1", "1-2", "2-2", "1", "2"}
    seen = _Tags()
    seen.feed(text := out.read_text("utf-8"))
    assert "alert(1)" in text and "\u202e" not in text and "\x1b" not in text
    tags = {tag for tag, _ in seen.seen}
    assert not tags & {"script", "img", "a", "link", "iframe", "form", "object"}
    assert not any(
        name.startswith("on") or name in ("href", "src", "style") for _, given in seen.seen for name in given
    )
    style = re.search(r"<style>(.*?)</style>", text, re.S)
    assert style is not None and "url(" not in style[1] and "@import" not in style[1]
    assert text.count("<details>") == len(report["worst"]) > 5

    told = jurat("lineage", "of", report["id"], "--home", home)
    assert told.code == 0 and report["id"] in told.out and report["to"]["digest"] in told.out

    done = jurat(*asked(home, "--fail-if", "coverage<1"))
    assert done.code == 0 and "verdict" in done.out and "0 to 1" in done.out and "\x1b[2J" not in done.out
    for words, said in (
        (["--fail-if", "flips>0"], "there is no metric 'flips'"), (["--where", "stepp = 1"], "there is no field"),
        (["-o", "report.pdf"], ".html or .json"), (["--where", "step = 99"], "no rollout of bench"),
    ):  # fmt: skip
        refused = jurat(*asked(home, *words))
        assert refused.code == 2 and said in refused.err, refused.err
    drifted = jurat("rescore", "--home", home, "--from", "number@1", "--to", "sha256:" + "00" * 32, "--runs", "bench")
    assert drifted.code == 2 and "no verifier version" in drifted.err


def test_the_policy_lets_the_style_alone_in() -> None:
    assert POLICY.startswith("default-src 'none'; style-src 'sha256-") and "unsafe" not in POLICY


def _done(served: Served, name: str) -> dict[str, Any]:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = served.client().rescoring(name)
        if found["state"] not in ("queued", "running"):
            return found
        time.sleep(0.05)
    raise AssertionError(found)


def test_over_http(jurat: Any, home: Path) -> None:
    assert jurat(*asked(home, "--sample", "8")).code == 0  # math@1 is registered with it
    with listening(Settings(home=home, slots=0)) as served:
        client = served.client()
        made = client.rescore("number@1", "math@1", ["bench"], filter="step < 2")
        assert made["state"] in ("queued", "running") and made["id"].startswith("x-")
        found = _done(served, made["id"])
        assert (found["state"], found["done"], found["total"]) == ("finished", 128, 128), found
        report = client.rescore_report(made["id"])
        assert report["counts"]["covered"] == 128 and report["verdict"]["word"] == found["verdict"] == "breaking"
        status, headers, body = served.ask("GET", f"/api/v1/rescores/{made['id']}/report?format=html")
        assert status == 200 and headers["content-security-policy"] == POLICY
        assert headers["content-type"].startswith("text/html") and body.decode() == page(report)
        assert made["id"] in [each["id"] for each in client.rescores()]
        for wrong, kind in (
            ({"runs": ["other"]}, "not-found"), ({"filter": "step ="}, "bad-filter"), ({"to_version": "math@9"}, "invalid"),
            ({"to_version": "evil.py::rule"}, "invalid"), ({"sample": 0}, "invalid"),
        ):  # fmt: skip
            body = {"from_version": "number@1", "to_version": "math@1", "runs": ["bench"], **wrong}
            status, _, told = served.ask("POST", "/api/v1/rescores", body)
            assert told["type"] == f"/problems/{kind}", (wrong, told)
        with pytest.raises(ServiceError, match="no such re-scoring"):
            client.rescore_report("x-0")
        walk = client.provenance("rescore", made["id"])
        assert {edge["role"] for edge in walk["edges"]} >= {"from", "to", "rollouts"}
    assert json.dumps(report)
