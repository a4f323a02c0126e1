"""What people and programs may try over HTTP, and what happens: the rows of the abuse table that a request can reach."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jurat.api.server import bodies, guard, launching
from jurat.api.server.problems import KINDS, Problem
from jurat.api.server.service import Settings, is_loopback
from jurat.client import ServiceError
from jurat.platform import access
from jurat.platform.errors import ConfigError
from jurat.platform.runs import leases
from services import Served, listening

RUNS = "/api/v1/runs"


def kind(reply: tuple[int, dict[str, str], Any]) -> tuple[int, str]:
    assert reply[1]["content-type"] == "application/problem+json", reply
    assert set(reply[2]) == {"type", "title", "status", "detail", "instance", "request_id", "errors"}
    assert reply[2]["status"] == reply[0] and reply[2]["request_id"] == reply[1]["x-request-id"]
    return reply[0], reply[2]["type"].removeprefix("/problems/")


# ---- 1: names that are paths -------------------------------------------------------------------------------------

PATHS = [
    "..", ".", "../x", "..%2f..%2fetc%2fpasswd", "%2e%2e%2f", "%252e%252e%252f", "..\\..\\x", "%5c..%5c", "/etc/passwd",
    "//etc", "C:\\x", "c:/x", "\\\\host\\x",
    "file:///etc/passwd", "x%00y", "x\x00y", "x#y", "x%3fy", "x;y", "x y", "x\ny", "x\r\nSet-Cookie: a=b", "~root", "~",
    "-x", "--home=/", "$HOME", "`id`", "${x}", "a" * 65,
    "a" * 300, ".hidden", "x/../y", "x/./y", "x//y", "．．／x", "‮x", "x​y", "xⅰ", "é", "latest", "", " ", "%", "%zz",
    "x%", "CON:", "x|y", "x*", "x?", "<x>", '"x"', "'x'", "x,y",
    "_x", "(x)", "{x}", "[x]", "x&y", "x=y", "@x", "!x",
]  # fmt: skip


def test_no_name_is_a_path(served: Served) -> None:
    """A quarter of the names in each place of each route, every name in a quarter of the places."""
    _name_paths(served, share=4)


@pytest.mark.soak
def test_no_name_is_a_path_anywhere(served: Served) -> None:
    _name_paths(served, share=1)


def _name_paths(served: Served, share: int) -> None:
    """None is found, and none is told from another that is not there."""
    assert len(PATHS) >= 60
    operations = [
        (method.upper(), path, place)
        for path, item in served.ask("GET", "/openapi.json")[2]["paths"].items()
        for method in item
        for place in re.findall(r"\{(\w+)\}", path)
    ]
    assert len(operations) >= 35
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)) as kept:
        for turn, name in enumerate(PATHS):
            quoted = "".join(f"%{byte:02x}" for byte in name.encode()) or "%20"
            for method, path, place in operations[turn % share :: share]:
                target = path.replace(f"{{{place}}}", quoted)
                target = target.replace("{kind}", "run") if "/provenance/" in target else target
                kept.request(method, re.sub(r"\{\w+\}", "absent", target), headers={"If-Match": "*"})
                answer = kept.getresponse()
                told = answer.read()
                assert answer.status in (400, 404, 405, 415, 422), (method, target, told)
                assert str(served.service.settings.home).encode() not in told and b"root:x:" not in told, (target, told)
    for name in PATHS:
        for field in ({"id": name}, {"recipe": name}):
            assert kind(served.ask("POST", RUNS, {"recipe": "tiny", **field})) == (422, "invalid"), name
        assert kind(served.ask("POST", "/api/v1/models", {"name": "m", "files": {name: "x"}}))[0] == 422, name
    assert sorted(path.name for path in served.service.settings.home.iterdir() if path.is_dir()) == ["runs"]
    assert list(served.service.store.runs_folder.iterdir()) == []


# ---- 3, 5: code, files and addresses in a launch -----------------------------------------------------------------


@pytest.mark.parametrize(
    "config",
    [
        {"verifiers": ["./rules.py"]}, {"verifiers": ["os:system"]}, {"engine": {"ray": "10.0.0.1:6379"}},
        {"engine.ray": "auto"},
        {"engine.vllm_url": "http://169.254.169.254/latest"}, {"engine": {"home": "ray"}},
        {"tracking": {"database": "postgresql://evil/x"}},
        {"tracking.database": "sqlite:////tmp/x.db"}, {"model": "/etc"}, {"model": "../../models/x"},
        {"model": "owner/name"}, {"model": "~root"},
        {"model": "smollm2"}, {"data.train.source": "/etc/passwd"}, {"data": {"train": {"source": "../secret.jsonl"}}},
        {"data.train.source": "gsm8k"},
        {"data.train.source": "http://127.0.0.1:8642/x"}, {"data.train.source": "file:///etc/passwd"},
        {"data.train.source": "openai/gsm8k"},
        {"data.train.source": "rows.jsonl"}, {"data.train.source": "generated:x;rm"},
        {"reward.members": [{"use": "./x.py"}]}, {"reward.members": [{"use": "pkg.mod:f/../g"}]},
        {"reward.members": [{"use": "math", "args": {"model": "/models/x"}}]}, {"__class__": 1},
        {"stages": "__import__('os')"}, {"_target_": "os.system"},
        {"env": {"LD_PRELOAD": "x"}}, {"PYTHONPATH": "/tmp"}, {"optim": {"lr": "!!python/object/apply:os.system [id]"}},
        {"name": "x"}, {"a..b": 1}, {"": 1},
        {"steps": {"__init__": {"__globals__": 1}}}, {"stages.0.name": "../x"}, {"stages.99999999999.steps": 1},
        {"steps.x.y": 1}, {"optim": []}, {"steps": "many"}, {"nope": 1},
    ],
)  # fmt: skip
def test_a_launch_names_no_code_file_or_address(served: Served, config: dict[str, Any]) -> None:
    reply = served.ask("POST", RUNS, {"recipe": "tiny", "config": config})
    assert kind(reply) == (422, "invalid")
    assert str(served.service.settings.home) not in json.dumps(reply[2]) and "/trainers/recipes" not in json.dumps(
        reply[2]
    )


ADDRESSES = [
    "http://169.254.169.254/latest/meta-data", "http://[::ffff:169.254.169.254]/", "http://127.0.0.1:{port}/api/v1/runs",
    "http://localhost/", "http://0/", "http://0x7f000001/", "http://2130706433/", "http://017700000001/", "http://127.1/",
    "http://[::1]/", "http://[::]/", "https://evil.example/x", "HTTP://EVIL.EXAMPLE/", "http:/evil.example", "//evil.example/x",
    "\\\\evil.example\\x", "ftp://evil.example/x", "file:///etc/passwd", "file:/etc/passwd", "file://localhost/etc/passwd",
    "gopher://127.0.0.1:6379/_x", "dict://127.0.0.1:11211/", "ldap://127.0.0.1/", "jar:http://x!/y", "data:text/plain,x",
    "hf://datasets/x/y", "s3://bucket/x", "gs://bucket/x", "git+ssh://x@y/z", "http://user@evil.example", "evil.example:80/x",
    "postgresql://evil/x", "https://\u2485\u2487.evil",
]  # fmt: skip


@pytest.mark.parametrize(
    "key", ["data.train.source", "data.held_out.source", "model", "engine.vllm_url", "reward.members.0.use"]
)
def test_no_address_is_fetched(served: Served, key: str) -> None:
    """Of anything that a launch may name, and of a data set that is registered: that is a name, and nobody calls it."""
    assert len(ADDRESSES) >= 30
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        for address in ADDRESSES:
            given = address.format(port=listener.getsockname()[1]) if "{port}" in address else address
            for config in ({key: given}, {"stages.1.name": given}):
                assert kind(served.ask("POST", RUNS, {"recipe": "tiny", "config": config})) == (422, "invalid"), given
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_what_else_a_launch_may_not_hold(served: Served) -> None:
    digest = "sha256:" + "0" * 64
    for more in ({"command": ["sh"]}, {"env": {}}, {"reward_spec": "latest"}, {"reward_spec": digest},
    {"verifiers": {"math": digest}}, {"verifiers": {"math": "os:system"}},
                 {"tags": {"": "x"}}, {"tags": {"k": "v" * 501}}, {"tags": {f"k{i}": "" for i in range(65)}},
                 {"max_restarts": -1}, {"max_runtime": 0}, {"priority": 10**6},
                 {"recipe": 5}, {"config": []}):  # fmt: skip
        assert kind(served.ask("POST", RUNS, {"recipe": "tiny", **more})) == (422, "invalid"), more
    assert served.ask("GET", RUNS)[2]["runs"] == []
    told = served.ask("POST", RUNS, {"recipe": "tiny", "config": {"prompt.suffix": " Answer / with .. a number."}})
    assert told[0] == 201  # a prompt is a free text


def test_recipes_of_the_operator_win_and_stay_in_their_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text('model: tiny-random\ndata: {train: {source: "generated:plain"}}\n')
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "other.yaml").write_text("")
    found = launching.registered([tmp_path, tmp_path / "absent"])
    assert found["mine"] == (tmp_path / "mine.yaml", tmp_path) and "other" not in found and "tiny" in found


# ---- 7, 13: texts that are markup, lines or keys -----------------------------------------------------------------


def test_hostile_texts_come_back_as_texts_and_nothing_else(served: Served) -> None:
    payloads = [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "\u2028\u2029",
        "\u202e\u200b\x1b[31m",
        "a\r\nSet-Cookie: x=y",
        "=cmd|' /C calc'!A0",
        "\x00\x07",
        "𝔘\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
    ]
    tags = {f"k{place}{text[:20]}": text for place, text in enumerate(payloads)}
    status, headers, run = served.ask("POST", RUNS, {"recipe": "tiny", "tags": tags})
    assert (
        status == 201
        and headers["content-type"] == "application/json"
        and headers["x-content-type-options"] == "nosniff"
    )
    assert "default-src 'none'" in headers["content-security-policy"] and "set-cookie" not in headers
    assert run["tags"]["k0<script>alert(1)</sc"] == payloads[0] and len(run["tags"]) == len(payloads)
    assert served.ask("GET", "/api/v1/runs/%3Cscript%3E")[1]["content-type"] == "application/problem+json"
    client = served.client()
    client.log(run["id"], 0, {"<b>x</b>\r\n": 1.0})
    message = [m for m in (next(served.client().stream(run["id"], after="0--1--1")),) if m.kind == "metrics"]
    assert message[0].data["values"] == {"<b>x</b>\r\n": 1.0}


# ---- 8: bodies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"), (b"{", "line 1"), (b"nul", "line 1"), (b'{"a":1}x', "line 1"), (b"\xff\xfe", "not UTF-8"),
        (b'{"a":1,"a":2}', "'a' is there twice"),
        (b'{"a":NaN}', 'a string, "NaN"'), (b"[Infinity]", "string"), (b"[-Infinity]", "string"),
        (b"[1e999]", "too large"), (b"[9223372036854775808]", "64 bits"),
        (b"[" + b"9" * 5000 + b"]", "64 bits"), (b"[" * 33 + b"]" * 33, "32 deep"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "32 deep"), (b"[" * 200_000, "32 deep"),
        (json.dumps({f"k{i}": 0 for i in range(10_001)}).encode(), "10000 keys"), ("\ufeff{}".encode(), "line 1"),
    ],
)  # fmt: skip
def test_json_is_strict(served: Served, data: bytes, said: str) -> None:
    with pytest.raises(Problem, match=re.escape(said)):
        bodies.parse(data)
    if data:
        assert kind(served.ask("POST", RUNS, raw=data)) == (400, "bad-json")


def test_json_that_is_fine_is_read() -> None:
    assert bodies.parse(b'{"a":[1,-0.5,"[[[[{{{{\\"[[",null,true,9223372036854775807]}') == {
        "a": [1, -0.5, '[[[[{{{{"[[', None, True, (1 << 63) - 1]
    }
    assert bodies.parse(b"[" * 32 + b"]" * 32)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False,
allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20))  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_json_is_read_as_the_library_reads_it(value: Any) -> None:
    data = json.dumps(value).encode()
    assert bodies.parse(data) == json.loads(data)


def test_bodies_are_bounded_before_they_are_read(served: Served) -> None:
    before = psutil.Process().memory_info().rss
    with socket.create_connection(
        ("127.0.0.1", served.port), timeout=20
    ) as raw:  # the answer comes though nothing of the body did
        raw.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 31457280\r\n\r\n"
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:  # no length is given
        raw.sendall(
            b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
        try:
            for _ in range(40):
                raw.sendall(chunk)
        except OSError:
            pass  # the service has hung up
        try:
            assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")
        except ConnectionError:
            pass
    bomb = gzip.compress(b"[" + b" " * (64 << 20) + b"]")
    assert kind(served.ask("POST", RUNS, raw=bomb, headers={"Content-Encoding": "gzip"})) == (413, "too-large")
    assert kind(served.ask("POST", RUNS, raw=b"garbage", headers={"Content-Encoding": "gzip"})) == (400, "bad-request")
    assert kind(served.ask("POST", RUNS, raw=gzip.compress(b"{}")[:-3], headers={"Content-Encoding": "gzip"})) == (
        400,
        "bad-request",
    )
    assert kind(served.ask("POST", RUNS, raw=b"{}", headers={"Content-Encoding": "br"})) == (
        415,
        "unsupported-media-type",
    )
    assert (
        served.ask("POST", RUNS, raw=gzip.compress(b'{"recipe":"tiny"}'), headers={"Content-Encoding": "gzip"})[0]
        == 201
    )
    assert psutil.Process().memory_info().rss - before < 100 << 20


async def test_a_slow_body_is_given_up() -> None:
    import asyncio

    async def never() -> dict[str, Any]:
        await asyncio.sleep(60)
        return {}

    with pytest.raises(Problem, match=r"more than 0\.05 s"):
        await bodies.read_body({"headers": []}, never, seconds=0.05)


def test_only_json_is_read(served: Served) -> None:
    for kind_of in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert kind(served.ask("POST", RUNS, raw=b'{"recipe":"tiny"}', headers={"Content-Type": kind_of})) == (
            415,
            "unsupported-media-type",
        )
    assert (
        served.ask("POST", RUNS, raw=b'{"recipe":"tiny"}', headers={"Content-Type": "application/json; charset=utf-8"})[
            0
        ]
        == 201
    )


def test_headers_are_bounded(served: Served) -> None:
    assert kind(served.ask("GET", RUNS, headers={"X-Long": "x" * 40_000})) == (431, "headers-too-large")
    assert kind(served.ask("GET", RUNS, headers={f"X-{i}": "x" for i in range(120)})) == (431, "headers-too-large")


def test_memory_stays_flat_whatever_is_sent(served: Served) -> None:
    """Bodies that are large, deep, wide or hollow, three rounds of them: what the first two took is all that is taken."""
    bodies_ = [
        (b"[" * 4_000_000, {}), (json.dumps({f"k{i}": 0 for i in range(50_000)}).encode(), {}),
        (b"[" + b"9" * 4_000_000 + b"]", {}), (b'{"a":"' + b"x" * 4_000_000 + b'"}', {}),
        (gzip.compress(b"[" + b" " * (32 << 20) + b"]"), {"Content-Encoding": "gzip"}),
        (b"\x00" * 4_000_000, {}), (b'"' + b'\\"' * 500_000 + b"[" * 40 + b"\\", {}),
        (b'{"rows":[' + b'{"name":"x","step":0,"value":1},' * 20_000 + b"{}]}", {}),
    ]  # fmt: skip
    process, taken = psutil.Process(), []
    for turn in range(3 * len(bodies_)):
        data, headers = bodies_[turn % len(bodies_)]
        assert 400 <= served.ask("POST", f"{RUNS}/absent/metrics:batch", raw=data, headers=headers)[0] < 500
        taken.append(process.memory_info().rss)
    assert max(taken[-len(bodies_) :]) - max(taken[: -len(bodies_)]) < 32 << 20, taken


# ---- 8, 12: many requests ----------------------------------------------------------------------------------------


def test_a_key_has_its_rate_and_its_number_at_once() -> None:
    at = [0.0]
    rates = guard.Rates(2.0, 3, clock=lambda: at[0])
    leave = []
    for _ in range(3):
        left, refused, _ = rates.enter("a")
        leave.append(left)
        assert refused is None
    refused, first = rates.enter("a")[1:]
    assert refused is not None and "go on" in refused.detail and first
    assert rates.enter("a")[2] is False and rates.enter("b")[1] is None  # told once a minute; others have their own
    for left in leave:
        left()
    for _ in range(5):
        left, refused, _ = rates.enter("a")
        assert refused is None
        left()
    refused = rates.enter("a")[1]
    assert refused is not None and "too many requests" in refused.detail and refused.headers["Retry-After"] == "1"
    at[0] += 1.0
    assert [rates.enter("a")[1] is None for _ in range(3)] == [True, True, False]


def test_too_many_requests_wait_and_are_noted_once(tmp_path: Path) -> None:
    import sqlalchemy as sa

    from jurat.platform.db import tables as t
    from jurat.platform.runs.store import Store

    store = Store.open(None, tmp_path)
    one, two = (store.write(lambda c, n=name: access.make_key(c, n, ["runs:read"]))[1] for name in "ab")
    store.close()
    with listening(Settings(home=tmp_path, rate=0.01, at_once=2)) as made:
        made.service.rates = guard.Rates(0.01, 2)
        made.service.rates._most = 3.0
        mine = {"Authorization": f"Bearer {one}"}
        answers = [made.ask("GET", RUNS, headers=mine) for _ in range(6)]
        assert [reply[0] for reply in answers] == [200] * 3 + [429] * 3
        assert kind(answers[-1]) == (429, "too-many-requests") and int(answers[-1][1]["retry-after"]) > 10
        assert made.ask("GET", RUNS, headers={"Authorization": f"Bearer {two}"})[0] == 200
        made.service.writer.call(lambda c: None)
        kept = made.service.store.read(lambda c: c.execute(sa.select(t.audit.c.outcome)).scalars().all())
        assert kept.count("too-many-requests") == 1
        made.service.rates = guard.Rates(100.0, 2)
        doors, busy = threading.Barrier(3), []
        whole = made.service.store.run

        def slow(named: str) -> Any:
            with contextlib.suppress(threading.BrokenBarrierError):
                doors.wait(10)
            return whole(named)

        made.service.store.run = slow  # type: ignore[method-assign]
        listeners = [
            threading.Thread(target=lambda: busy.append(made.ask("GET", f"{RUNS}/x", headers=mine)[0]))
            for _ in range(2)
        ]
        [thread.start() for thread in listeners]
        while doors.n_waiting < 2:
            assert all(thread.is_alive() for thread in listeners)
        assert kind(made.ask("GET", RUNS, headers=mine)) == (429, "too-many-requests")
        doors.abort()
        [thread.join() for thread in listeners]
        assert (
            busy == [404, 404] and made.ask("GET", f"{RUNS}/x", headers=mine)[0] == 404
        )  # those that ended count no more


# ---- 4: pickles --------------------------------------------------------------------------------------------------


def test_what_would_run_when_it_is_loaded_is_not_loaded(served: Served, tmp_path: Path) -> None:
    """As a body, as a recipe, inside a bundle: kept as bytes or refused, and never looked into."""
    from jurat.platform.config import load_recipe
    from jurat.platform.provenance import bundle
    from jurat.platform.provenance.verify import verify
    from jurat.platform.recipe import Recipe
    from jurat.platform.runs.store import Store

    mark = tmp_path / "it ran"
    evil = f"cposix\nsystem\n(S'touch \"{mark}\"'\ntR.".encode()  # a pickle of os.system("touch ...")
    for raw in (evil, b"\x93NUMPY" + evil, json.dumps(base64.b64encode(evil).decode()).encode()):
        assert 400 <= served.ask("POST", RUNS, raw=raw)[0] < 500
    (tmp_path / "r.yaml").write_text(f"name: !!python/object/apply:os.system ['touch \"{mark}\"']\n")
    with pytest.raises(ConfigError, match="not YAML"):
        load_recipe(tmp_path / "r.yaml")
    store = Store.open(None, tmp_path / "home")
    value = {"name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}}}
    run = store.create_run(
        recipe=Recipe.model_validate(value), recipe_digest="", reward_digest="", meta={}, run_id="evil"
    )
    store.set_state(run, "cancelled")
    for name in ("checkpoints/main/step-1/model.pt", "optimizer.pkl", "array.npy"):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_bytes(evil)
    bundle.export(store, store.run("evil"), tmp_path / "a.tar")
    store.close()
    served.client().import_bundle(tmp_path / "a.tar")
    there = served.service.store.run("evil")
    assert (there.folder / "optimizer.pkl").read_bytes() == evil and verify(served.service.store, there).faults == ()
    assert (
        served.ask("POST", f"{RUNS}/evil:verify")[2]["whole"] and served.ask("GET", f"{RUNS}/evil/rollouts")[0] == 200
    )
    assert not mark.exists()


# ---- 6: programs that want out -----------------------------------------------------------------------------------


def test_a_program_that_is_judged_stays_inside(served: Served, tmp_path: Path) -> None:
    from jurat.platform.provenance import versions
    from jurat.platform.provenance.records import VerifierFacts
    from jurat.platform.recipe import Member, RewardPart
    from jurat.verifiers.judge import LocalJudge

    with LocalJudge(RewardPart(members=(Member(use="code", args={"seconds": 2.0}),)), spares=0, cache=0) as judge:
        bound = next(iter(judge.bind().values()))
        said = judge.identity("code", bound.args, sources=False)
    facts = VerifierFacts(label="code", name="code", digest=bound.digest, args=bound.args, kind=said["kind"],
                          **{key: said[key] for key in ("version", "code", "config", "deps", "weights", "abi")})  # fmt: skip
    served.service.store.write(lambda c: versions.register(c, facts))
    gold = json.dumps({"mode": "stdio", "tests": [{"stdin": "1 2\n", "stdout": "3\n"}]})
    mark = tmp_path / "it got out"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        here = f"('127.0.0.1', {listener.getsockname()[1]})"
        programs = [
            "print(sum(map(int, input().split())))",
            f"open({str(mark)!r}, 'w').write('x')",
            f"import socket; socket.create_connection({here}).send(b'x')",
            f"import socket; socket.create_connection(('127.0.0.1', {served.port})).send(b'DELETE / HTTP/1.0')",
            "import os\nwhile True: os.fork()",
            "import os, signal; os.kill(os.getppid(), 9); os.kill(-1, 9)",
            "x = bytearray(1 << 40)",
            "while True: print('x' * 1_000_000)",
            f"import subprocess; subprocess.run(['touch', {str(mark)!r}])",
            f"print(open({str(served.service.settings.home / 'secret')!r}, 'rb').read())",
            "import os; print(open('/proc/1/environ').read(), os.environ)",
        ]
        items = [{"gold": gold, "completion": f"```python\n{each}\n```"} for each in programs]
        verdicts = served.client().verify(bound.digest, items)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert [verdict["status"] == "correct" for verdict in verdicts] == [True] + [False] * (len(programs) - 1), verdicts
    assert all(verdict["isolation"] == "sandbox" and verdict["score"] in (0.0, 1.0) for verdict in verdicts), verdicts
    secret = (served.service.settings.home / "secret").read_bytes()
    assert not mark.exists() and repr(secret)[2:20] not in json.dumps(verdicts)
    assert served.ask("GET", "/healthz")[0] == 200


# ---- 11: other sites ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "localhost:{port}"}, 200), ({"Host": "127.0.0.1:{port}"}, 200), ({"Host": "[::1]:{port}"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "evil.example"}, 421), ({"Host": "127.0.0.1.evil.example"}, 421),
        ({"Host": "localhost@evil.example"}, 421), ({"Host": "evil.example#localhost"}, 421),
        ({"Host": "0.0.0.0"}, 421), ({"Host": "localhost:x"}, 421), ({"Host": "localhost/x"}, 421), ({"Host": ""}, 421),
        ({"Origin": "http://127.0.0.1:{port}"}, 200), ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403), ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "https://127.0.0.1:{port}"}, 403), ({"Origin": "http://localhost:{port}"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403), ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200), ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
    ],
)  # fmt: skip
def test_other_sites_are_kept_out(served: Served, headers: dict[str, str], expected: int) -> None:
    sent = {name: value.format(port=served.port) for name, value in headers.items()}
    for path in (RUNS, "/healthz", f"{RUNS}/x/stream", "/openapi.json"):
        status = served.ask("GET", path, headers=sent)[0]
        assert (status if expected != 200 else 200 if status != 421 and status != 403 else status) == expected, path
    if expected != 200 or "navigate" in headers.values():
        assert served.ask("POST", RUNS, {"recipe": "tiny"}, headers=sent)[0] in (403, 421)
    assert not any(name.startswith("access-control") for name in served.ask("GET", RUNS, headers=sent)[1])


@pytest.mark.parametrize(
    ("host", "expected"),
    [("10.1.2.3:{port}", 200), ("[fd00::1]:{port}", 200), ("127.0.0.1", 200), ("names.example", 200),
     ("evil.example", 421), ("10.1.2.3.evil.example", 421), ("10.1", 421), ("167838211", 421), ("0x0a010203", 421),
     ("localhost", 200), ("0.0.0.0", 200)],
)  # fmt: skip
def test_addresses_alone_where_it_listens_on_all(everywhere: Served, host: str, expected: int) -> None:
    """A name can be rebound to this machine, an address cannot."""
    assert everywhere.ask("GET", RUNS, headers={"Host": host.format(port=everywhere.port)})[0] == expected


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    home = tmp_path_factory.mktemp("everywhere")
    with listening(Settings(home=home, host="0.0.0.0", host_names=("names.example",), open_to_all=True)) as made:
        yield made


def test_tags_are_compared_as_rfc_9110_says(served: Served) -> None:
    run = served.ask("POST", RUNS, {"recipe": "tiny"})[2]["id"]
    path, version = f"{RUNS}/{run}", 1
    for tag, expected in ((None, 428), ("1", 412), ('W/"1"', 412), ('"9"', 412), ("", 412), ('"1', 412), ("x" * 300, 412),
                            ('"1"', 200), ('"7", "2"', 200), ("*", 200)):  # fmt: skip
        headers = {} if tag is None else {"If-Match": tag}
        reply = served.ask("PATCH", path, {"priority": version}, headers)
        assert reply[0] == expected, tag
        version += expected == 200
        if expected == 412:
            assert reply[1]["etag"] == f'"{version}"'
    for tag, expected in ((f'"{version}"', 304), (f'W/"{version}"', 304), ('"0"', 200), ("*", 304), ("x", 200)):
        assert served.ask("GET", path, headers={"If-None-Match": tag})[0] == expected, tag
    assert served.ask("DELETE", path)[0] == 428 and served.ask("DELETE", path, headers={"If-Match": '"0"'})[0] == 412


def test_hosts_are_read_exactly() -> None:
    assert [guard.host_of(h) for h in ("A.b:1", "[::1]:80", "::1", "a b", "a:99999", "u@h", "")] == [
        "a.b",
        "[::1]",
        "",
        "a b",
        "",
        "",
        "",
    ]
    assert [
        is_loopback(h)
        for h in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "::", "10.0.0.1", "localhost.evil", "")
    ] == [True] * 4 + [False] * 5


# ---- 12: keys ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    """A service with keys: {scope: key}."""
    home = tmp_path_factory.mktemp("locked")
    from jurat.platform.runs.store import Store

    store = Store.open(None, home)
    keys = {scope: store.write(lambda c, scope=scope: access.make_key(c, scope, [scope]))[1] for scope in access.SCOPES}  # type: ignore[misc]
    keys["expired"] = store.write(lambda c: access.make_key(c, "x", ["admin"], seconds=-1))[1]
    store.close()
    with listening(Settings(home=home)) as made:
        yield made, keys


def test_nothing_of_a_body_is_read_without_a_key(locked: tuple[Served, dict[str, str]]) -> None:
    served, keys = locked
    head = f"POST {RUNS}/x/metrics:batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:
        raw.sendall(f"{head}\r\n".encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 401 ")
    assert kind(served.ask("POST", "/nowhere", raw=b"[")) == (401, "unauthenticated")
    mine = {"Authorization": f"Bearer {keys['runs:write']}"}
    assert kind(served.ask("POST", f"{RUNS}/x/metrics:batch", raw=b"[", headers=mine)) == (400, "bad-json")


LISTS = [(name, f"{RUNS}/x/metrics:batch") for name in ("rows", "names", "steps", "values")]
LISTS += [("ops", f"{RUNS}/x/facts"), ("items", "/api/v1/verify"), ("scopes", "/api/v1/api-keys")]


@pytest.mark.parametrize(("place", "path"), LISTS)
def test_a_long_list_ends_at_its_first_fault(served: Served, place: str, path: str) -> None:
    for item in ("1", '"a"', "{}"):
        status, _, said = served.ask("POST", path, raw=f'{{"{place}":[{",".join([item] * 20_000)}]}}'.encode())
        at_fault = {tuple(each["pointer"].split("/")[:3]) for each in said["errors"]}
        assert status == 422 and sum(where[1] == place for where in at_fault) == 1, said["errors"]


def test_each_scope_opens_its_own_doors(locked: tuple[Served, dict[str, str]]) -> None:
    served, keys = locked
    doors = [
        ("runs:read", "GET", RUNS, None, 200), ("runs:write", "PATCH", f"{RUNS}/x", {"priority": 1}, 404),
        ("runs:launch", "POST", RUNS, {"recipe": "tiny"}, 201),
        ("runs:launch", "POST", f"{RUNS}/x:cancel", None, 404), ("data:read", "GET", f"{RUNS}/x/rollouts", None, 404),
        ("verifiers:write", "PATCH", "/api/v1/verifier-versions/x", {"status": "active"}, 404),
        ("admin", "GET", "/api/v1/api-keys", None, 200),
        ("runs:read", "GET", f"{RUNS}/x/metrics/y", None, 404), ("runs:write", "DELETE", f"{RUNS}/x", None, 404),
        ("runs:write", "POST", f"{RUNS}/x/metrics:batch", {"rows": []}, 404),
    ]  # fmt: skip
    for scope, method, path, body, opened in doors:
        for holder in access.SCOPES:
            status = served.ask(method, path, body, {"Authorization": f"Bearer {keys[holder]}"})[0]
            assert status == (opened if holder in (scope, "admin") else 403), (holder, method, path)
        assert served.ask(method, path, body)[0] == 401
    assert served.ask("GET", "/healthz")[0] == served.ask("GET", "/openapi.json")[0] == 200


def test_bad_keys_are_answered_alike_then_made_to_wait(locked: tuple[Served, dict[str, str]]) -> None:
    served, keys = locked
    good = keys["admin"]
    served.service.failures = guard.Failures()
    wrong = [
        good[:-1] + ("A" if good[-1] != "A" else "B"),
        "jurat_aaaaaaaaaaaa_" + "x" * 43,
        keys["expired"],
        "x",
        "jurat_",
        good + "x",
        good.upper(),
        f"{good} "[1:],
        "é",
        "\x01",
    ]
    answers = [
        served.ask(
            "GET", RUNS, headers={"Authorization": f"Bearer {key}".encode("latin-1", "replace").decode("latin-1")}
        )
        for key in wrong
    ]
    bodies_ = [{k: v for k, v in reply[2].items() if k != "request_id"} for reply in answers]
    assert {reply[0] for reply in answers} == {401} and all(body == bodies_[0] for body in bodies_)
    assert answers[0][1]["www-authenticate"] == "Bearer"
    for _ in range(2):  # the tenth was one too many; who has a good key does not wait for his neighbours
        status, headers, _ = served.ask("GET", RUNS, headers={"Authorization": f"Bearer {wrong[0]}"})
        assert status == 429 and 1 <= int(headers["retry-after"]) <= 61
        assert served.ask("GET", RUNS, headers={"Authorization": f"Bearer {good}"})[0] == 200
    assert served.ask("GET", RUNS)[0] == 401
    served.service.failures = guard.Failures()


def test_failures_wait_twice_as_long_each_time() -> None:
    at = [0.0]
    failures = guard.Failures(clock=lambda: at[0])
    for _ in range(10):
        failures.refuse("a")
        failures.failed("a")
    waits = []
    for _ in range(6):
        with pytest.raises(Problem) as caught:
            failures.refuse("a")
        waits.append(int(caught.value.headers["Retry-After"]) - 1)
        at[0] += waits[-1] + 1
        failures.refuse("a")
        failures.failed("a")
    assert waits == [60, 120, 240, 480, 900, 900]
    failures.refuse("b")


def test_keys_are_made_shown_once_and_revoked_over_http(locked: tuple[Served, dict[str, str]]) -> None:
    served, keys = locked
    admin = {"Authorization": f"Bearer {keys['admin']}"}
    status, _, made = served.ask(
        "POST", "/api/v1/api-keys", {"name": "ci", "scopes": ["runs:read"], "seconds": 60}, admin
    )
    assert status == 201 and re.fullmatch(r"jurat_[0-9a-z]{12}_[A-Za-z0-9_-]{43}", made["key"])
    mine = {"Authorization": f"Bearer {made['key']}"}
    assert served.ask("GET", RUNS, headers=mine)[0] == 200
    listed = json.dumps(served.ask("GET", "/api/v1/api-keys", headers=admin)[2])
    assert made["key_id"] in listed and made["key"] not in listed and "sha256" not in listed
    assert served.ask("POST", "/api/v1/api-keys", {"name": "x", "scopes": ["root"]}, admin)[0] == 422
    assert served.ask("DELETE", f"/api/v1/api-keys/{made['key_id']}", headers=admin)[0] == 204
    assert served.ask("DELETE", f"/api/v1/api-keys/{made['key_id']}", headers=admin)[0] == 404
    assert served.ask("GET", RUNS, headers=mine)[0] == 401
    for file in served.service.settings.home.rglob("*"):
        if file.is_file():
            assert made["key"].rpartition("_")[2].encode() not in file.read_bytes(), file


def test_a_run_token_writes_to_its_run_under_its_epoch_alone(locked: tuple[Served, dict[str, str]]) -> None:
    from jurat.platform.runs import leases

    served, keys = locked
    launch = {"Authorization": f"Bearer {keys['runs:launch']}"}
    ours, other = (served.ask("POST", RUNS, {"recipe": "tiny", "priority": p}, launch)[2]["id"] for p in (9, 0))
    store = served.service.store
    lease = store.write(lambda c: leases.claim(c, "me"))
    assert lease is not None and lease.run == ours
    token = store.write(lambda c: access.make_key(c, "t", [], run_id=ours, epoch=lease.epoch))[1]
    mine = {"Authorization": f"Bearer {token}"}
    rows = {"rows": [{"name": "x", "step": 0, "value": 1}]}
    assert served.ask("POST", f"{RUNS}/{ours}/metrics:batch", rows, mine)[0] == 200
    for method, path, body in (("POST", f"{RUNS}/{other}/metrics:batch", rows), ("GET", f"{RUNS}/{ours}", None),
    ("GET", RUNS, None), ("PATCH", f"{RUNS}/{ours}", {}),
                               ("POST", f"{RUNS}/{ours}:cancel", None), ("GET", f"{RUNS}/{ours}/rollouts", None),
                               ("POST", RUNS, {"recipe": "tiny"}),
                               ("GET", f"{RUNS}/{other}/stream", None)):  # fmt: skip
        assert served.ask(method, path, body, mine)[0] == 403, (method, path)
    store.write(lambda c: leases.move(c, lease.run_pk, "lost"))
    assert kind(served.ask("POST", f"{RUNS}/{ours}/metrics:batch", rows, mine)) == (409, "stale-epoch")


def test_denials_are_kept_without_the_key(locked: tuple[Served, dict[str, str]]) -> None:
    import sqlalchemy as sa

    from jurat.platform.db import tables as t

    served, keys = locked
    served.service.failures = guard.Failures()
    served.ask(
        "GET", RUNS, headers={"Authorization": "Bearer jurat_zzzzzzzzzzzz_" + "s3cr3t" * 8, "X-Request-Id": "find-me"}
    )
    served.ask(
        "POST", RUNS, {"recipe": "tiny"}, {"Authorization": f"Bearer {keys['runs:read']}", "X-Request-Id": "find-me-2"}
    )
    served.service.writer.call(lambda c: None)
    rows = served.service.store.read(lambda c: [tuple(map(str, row)) for row in c.execute(sa.select(t.audit))])
    assert any("find-me" in row and "unauthenticated" in row for row in rows) and any(
        "find-me-2" in row and "forbidden" in row for row in rows
    )
    assert "s3cr3t" not in str(rows)


def test_without_a_key_it_listens_to_this_machine_alone(tmp_path: Path) -> None:
    from jurat.api.server.service import Service

    with pytest.raises(ConfigError, match="no key"):
        Service.start(Settings(home=tmp_path, host="0.0.0.0"))
    Service.start(Settings(home=tmp_path, host="0.0.0.0", open_to_all=True)).close()
    found = Settings(home=tmp_path, host="0.0.0.0", host_names=("train.example",)).hosts
    assert found == {"train.example", "localhost", "127.0.0.1", "[::1]"}  # whoever listens to all says by which other names


def test_the_secret_is_its_owners(tmp_path: Path) -> None:
    from jurat.api.server.keys import service_secret

    assert service_secret(tmp_path) == service_secret(tmp_path) and len(service_secret(tmp_path)) == 32
    assert os.stat(tmp_path / "secret").st_mode & 0o777 == 0o600


# ---- 19: what errors tell ----------------------------------------------------------------------------------------


def test_a_fault_of_ours_tells_an_id_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from jurat.api.server import search

    def broken(*args: object, **more: object) -> None:
        raise RuntimeError("SELECT secret FROM /home/x")

    monkeypatch.setattr(search, "search", broken)
    reply = served.ask("GET", RUNS)
    assert (
        kind(reply) == (500, "internal")
        and "SELECT" not in json.dumps(reply[2])
        and "/home" not in json.dumps(reply[2])
    )


def test_a_store_that_is_gone_is_503_without_its_address(tmp_path: Path) -> None:
    with listening(Settings(home=tmp_path)) as made:
        (tmp_path / "jurat.db").unlink()
        made.service.store.engine.dispose()
        (tmp_path / "jurat.db").mkdir()
        reply = made.ask("GET", RUNS)
        assert kind(reply) == (503, "unavailable") and str(tmp_path) not in json.dumps(reply[2])
        assert made.ask("GET", "/readyz")[0] == 503 and made.ask("GET", "/healthz")[0] == 200
        (tmp_path / "jurat.db").rmdir()


def test_every_problem_has_its_page(served: Served) -> None:
    for name, found in KINDS.items():
        status, headers, body = served.ask("GET", f"/problems/{name}")
        assert status == 200 and body["title"] == found.title and body["status"] == found.status
    assert kind(served.ask("GET", "/docs")) == (404, "not-found")  # nothing that loads from elsewhere
    assert kind(served.ask("PUT", RUNS, {})) == (405, "method-not-allowed")
    assert kind(served.ask("GET", "/api/v1/runs/a/b/c/d")) == (404, "not-found")


def test_the_first_key_closes_an_open_service_and_a_revoked_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both by another process; streams that began before end too."""
    from jurat.api.server import access as looked
    from jurat.platform.runs.store import Store

    assert looked.LOOK_SECONDS <= 1.0
    other = Store.open(None, tmp_path)
    with listening(Settings(home=tmp_path)) as made:
        client = made.client()
        assert client.create_run("tiny", id="r")["state"] == "queued" and made.service.open
        stream = client.stream("r")
        assert next(stream).kind == "state"
        kept, key = other.write(lambda c: access.make_key(c, "first", ["admin"]))
        monkeypatch.setattr(looked, "LOOK_SECONDS", 0.0)
        assert made.ask("GET", RUNS)[0] == 401 and kind(made.ask("POST", RUNS, {"recipe": "tiny"})) == (
            401,
            "unauthenticated",
        )
        mine = {"Authorization": f"Bearer {key}"}
        assert made.ask("GET", RUNS, headers=mine)[0] == 200
        held = made.client(key).stream("r")
        assert next(held).kind == "state"
        assert made.client(key).log("r", 0, {"secret": 1.0}) == 1
        assert next(held).data["values"] == {"secret": 1.0}
        with pytest.raises(ServiceError, match="Authorization"):
            next(stream)  # it was let go, and asked again
        other.write(lambda c: access.revoke(c, kept.key_id))
        assert made.ask("GET", RUNS, headers=mine)[0] == 401 and made.ask("GET", RUNS)[0] == 401  # it stays closed
        assert made.ask("POST", f"{RUNS}/r:cancel")[0] == 401
        other.write(lambda c: leases.command(c, other.run("r").pk, "cancel"))
        with pytest.raises(ServiceError, match="Authorization"):
            next(held)
    other.close()
