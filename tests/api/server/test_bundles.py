"""A run carried away and taken in over HTTP; forks; what runs are made of, registered by digest."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import socket
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa

from jurat.api.server import routes_bundles
from jurat.api.server.service import Settings
from jurat.client import ServiceError
from jurat.platform import access
from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.provenance import bundle, folders, lineage
from jurat.platform.provenance.records import Node
from jurat.platform.provenance.verify import verify
from jurat.platform.recipe import Recipe
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef
from services import Served, listening

RUNS = "/api/v1/runs"
TAR = {"Content-Type": "application/x-tar"}
RECIPE = {
    "name": "t", "model": "tiny-random", "data": {"train": {"source": "generated"}},
    "stages": [{"name": "a", "steps": 2, "algorithm": {"name": "sft"}}, {"name": "b", "steps": 3}],
}  # fmt: skip


def trained(store: Store, name: str = "parent", stage: str = "b") -> tuple[RunInfo, CheckpointRef]:
    """A finished run with a checkpoint of its second stage."""
    from jurat.trainers.presets import filled

    recipe = filled(Recipe.model_validate(RECIPE))
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={"base": "/x"}, run_id=name)
    lease = store.take(run)
    segment = store.start_segment(run, stage=stage, stage_index=1, first_step=0, lease=lease)
    store.add_metrics(run, segment, 0, {"reward": 0.5})
    folder = run.folder / "checkpoints" / stage / "step-000003"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"w" * 30_000)
    files = {"model.safetensors": folders.file_digest(folder / "model.safetensors")}
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "step": 3, "files": files}))
    ref = CheckpointRef(path=str(folder), digest=folders.file_digest(folder / "manifest.json"), step=3)
    store.add_checkpoint(run, segment, ref)
    store.end(lease, "finished")
    return store.run(name), ref


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Served]:
    """A second service, of another home, on SQLite."""
    with listening(Settings(home=tmp_path / "other")) as made:
        yield made


def kind(reply: tuple[int, dict[str, str], Any]) -> tuple[int, str]:
    return reply[0], reply[2]["type"].removeprefix("/problems/")


# ---- away and back -----------------------------------------------------------------------------------------------


def test_a_run_goes_from_one_service_to_another(each: Served, other: Served, tmp_path: Path) -> None:
    run, ref = trained(each.service.store)
    size = each.client().export("parent", tmp_path / "a.tar")
    bundle.export(each.service.store, run, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes() and size % tarfile.RECORDSIZE == 0
    with pytest.raises(FileExistsError):
        each.client().export("parent", tmp_path / "a.tar")
    told = other.client().import_bundle(tmp_path / "a.tar", once="k")
    assert (told["id"], told["state"]) == ("parent", "finished")
    assert other.client().import_bundle(tmp_path / "a.tar", once="k") == told  # the same request, once
    with pytest.raises(ServiceError, match="already"):
        other.client().import_bundle(tmp_path / "a.tar")
    there = other.service.store.run("parent")
    assert verify(other.service.store, there) == verify(each.service.store, run)
    assert other.client().metrics("parent")["reward"]["value"] == 0.5
    found = other.service.store.read(lambda c: lineage.whole_checkpoint(c, ref.digest))
    assert Path(found.path).is_relative_to(there.folder)
    assert sorted(path.name for path in other.service.store.runs_folder.iterdir()) == ["parent"]
    small = each.client().export("parent", tmp_path / "c.tar", weights=False)
    assert small < size
    for form, start in (("csv", b"segment,stage,step,name"), ("parquet", b"PAR1"), ("prov-json", b'{"prefix"')):
        each.client().export("parent", tmp_path / form, format=form)
        assert (tmp_path / form).read_bytes().startswith(start), form
    status, headers, _ = each.ask("GET", f"{RUNS}/parent:export?format=csv")
    assert status == 200 and headers["content-disposition"] == 'attachment; filename="parent.csv"'
    assert headers["content-security-policy"].startswith("sandbox") and headers["x-content-type-options"] == "nosniff"


def test_an_imported_run_is_looked_at_alone(each: Served, other: Served, tmp_path: Path) -> None:
    """Its recipe is what somebody wrote: nothing of it is run because a request asks for it."""
    trained(each.service.store)
    each.client().export("parent", tmp_path / "a.tar")
    other.client().import_bundle(tmp_path / "a.tar")
    assert kind(other.ask("POST", f"{RUNS}/parent:fork", {})) == (409, "conflict")
    assert kind(other.ask("POST", f"{RUNS}/parent:resume")) == (409, "conflict")
    assert [run["id"] for run in other.client().runs()] == ["parent"]


def _header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, **more: Any) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.GNU_FORMAT)


def _archive(*members: tuple[str, bytes]) -> bytes:
    made = b"".join(_header(name, size=len(data)) + data + bytes(-len(data) % 512) for name, data in members)
    return made + bytes(1024)


def _index(*files: tuple[str, bytes], **more: Any) -> bytes:
    listed = {name: [len(data), digest(data)] for name, data in files}
    return json.dumps({"format": 1, "run": "r", "files": listed, **more}).encode()


DEEP = b"[" * 200_000
HUGE = json.dumps(
    {"format": 1, "run": "r", "files": {"record.json": [2, digest(b"{}")], "metrics.parquet": [1 << 39, ""]}}
).encode()
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no archive": b"x" * 5000,
    "gzip": b"\x1f\x8b\x08" + bytes(600),
    "zip": b"PK\x03\x04" + bytes(600),
    "an index too deep": _archive(("bundle.json", DEEP)),
    "a record too deep": _archive(
        ("bundle.json", _index(("record.json", DEEP), ("metrics.parquet", b""))), ("record.json", DEEP), ("metrics.parquet", b"")
    ),
    "an index of another kind": _archive(("bundle.json", b"[]")),
    "a size that is no number": _archive(("bundle.json", b'{"format":1,"run":"r","files":{"record.json":[null,"x"]}}')),
    "sizes beyond all": _archive(("bundle.json", _index(("record.json", b"{}"), ("metrics.parquet", b"")).replace(b"[2,", b"[1e400,"))),
    "a long name of a gigabyte": _header("././@LongLink", tarfile.GNUTYPE_LONGNAME, size=1 << 30) + bytes(1024),
    "an extended header of a gigabyte": _header("pax", tarfile.XHDTYPE, size=1 << 30) + bytes(1024),
    "a global header": _header("pax", tarfile.XGLTYPE, size=20) + b"20 comment=whatever\n".ljust(512, b"\0"),
    "a sparse file of a terabyte": _header("files/x", tarfile.GNUTYPE_SPARSE, size=1 << 40),
    "a device": _header("files/x", tarfile.CHRTYPE, devmajor=1, devminor=3),
    "a pipe": _header("files/x", tarfile.FIFOTYPE),
    "a link out": _header("files/x", tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a hard link": _header("files/x", tarfile.LNKTYPE, linkname="record.json"),
    "a path out": _archive(("bundle.json", _index(("../../x", b"x"))), ("../../x", b"x")),
    "an index of a gigabyte": _header("bundle.json", size=1 << 30) + bytes(1024),
    "a nested bundle as the index": _archive(("bundle.json", _archive(("bundle.json", b"{}")))),
    "metrics of half a terabyte": _archive(("bundle.json", HUGE), ("record.json", b"{}"))[:-1024]
    + _header("metrics.parquet", size=1 << 39),
}  # fmt: skip


def test_a_hostile_bundle_changes_nothing(each: Served, tmp_path: Path) -> None:
    before, seen = psutil.Process().memory_info().rss, 0
    for name, data in HOSTILE.items():
        assert kind(each.ask("POST", "/api/v1/runs:import", raw=data, headers=TAR)) == (422, "invalid"), name
        seen += 1
    assert seen >= 20 and psutil.Process().memory_info().rss - before < 100 << 20
    store = each.service.store
    assert store.runs() == [] and list(store.runs_folder.iterdir()) == []
    with tarfile.open(fileobj=io.BytesIO(HOSTILE["a path out"])) as tar:  # what it would have been without a guard
        assert tar.getnames() == ["bundle.json", "../../x"]


def _forged(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A bundle whose record says something else, with digests that agree."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = [(member.name, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]
    record = json.loads(dict(members)["record.json"])
    change(record)
    text = json.dumps(record).encode()
    made = [(name, text if name == "record.json" else body) for name, body in members[1:]]
    return _archive(("bundle.json", _index(*made, run="parent")), *made)


def test_what_a_record_may_not_say(each: Served, other: Served, tmp_path: Path) -> None:
    run, _ = trained(each.service.store)
    each.client().export(run.id, tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    blob = {"digest": digest(b"good"), "media_type": "x", "size": 4, "content": "YmFk", "created": 1}  # "bad"
    for name, change in {
        "a blob that is another": lambda r: r["blob"].append(blob),
        "a checkpoint outside": lambda r: r["checkpoint"][0].update(path="/x/../../etc"),
        "a number too large": lambda r: r["run"].update(created=1 << 80),
        "a table there is not": lambda r: r.pop("edge"),
        "a key of the service": lambda r: r["run"].update(lease_owner="me"),
        "no meta": lambda r: r["run"].update(meta=None),
    }.items():  # fmt: skip
        assert other.ask("POST", "/api/v1/runs:import", raw=_forged(data, change), headers=TAR)[0] == 422, name
        assert list(other.service.store.runs_folder.iterdir()) == []
    moved = _forged(
        data, lambda r: (r["checkpoint"][0].update(path="/etc/ssl/private"), r["run"].update(state="queued"))
    )
    assert other.ask("POST", "/api/v1/runs:import", raw=moved, headers=TAR)[0] == 201
    there = other.service.store.run("parent")
    assert Path(other.service.store.checkpoints(there)[0].ref.path).is_relative_to(there.folder)
    assert there.state == "interrupted"  # so no launcher claims it
    poisoned = sa.select(t.blob.c.digest).where(t.blob.c.digest == blob["digest"])
    assert other.service.store.read(lambda c: c.execute(poisoned).all()) == []


def test_an_upload_has_its_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(Settings(home=tmp_path, import_bytes=1 << 20)) as served:
        path = "/api/v1/runs:import"
        assert kind(served.ask("POST", path, raw=b"x" * (2 << 20), headers=TAR)) == (413, "too-large")
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as raw:  # no length is given
            raw.sendall(
                f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-tar\r\n"
                "Transfer-Encoding: chunked\r\n\r\n".encode()
            )
            try:
                for _ in range(20):
                    raw.sendall(b"20000\r\n" + b"x" * 0x20000 + b"\r\n")
                said = raw.recv(4096)
            except ConnectionError:
                said = b"HTTP/1.1 413 "
            assert said.startswith(b"HTTP/1.1 413 ")
        for headers in ({}, {"Content-Type": "application/json"}, {**TAR, "Content-Encoding": "gzip"}):
            assert kind(served.ask("POST", path, raw=b"x", headers=headers))[0] == 415
        monkeypatch.setenv("JURAT_RESERVE_BYTES", str(1 << 62))
        assert kind(served.ask("POST", path, raw=b"x", headers=TAR)) == (507, "no-room")
        assert list(served.service.store.runs_folder.iterdir()) == []


def test_of_many_exports_two_are_made_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each holds the points of a whole run."""
    monkeypatch.setattr(routes_bundles, "WAIT_SECONDS", 0.0)
    store = Store.open(None, tmp_path)
    trained(store)
    store.close()
    with listening(Settings(home=tmp_path)) as served:
        path = f"{RUNS}/parent:export?format=csv"
        with routes_bundles._exporting, routes_bundles._exporting:
            status, headers, said = served.ask("GET", path)
            assert (status, said["type"], headers["retry-after"]) == (429, "/problems/too-many-requests", "5")
        assert [served.ask("GET", path)[0] for _ in range(3)] == [200] * 3  # each gave its place back


def test_who_may_take_in_and_carry_away(tmp_path: Path) -> None:
    store = Store.open(None, tmp_path)
    trained(store)
    keys = {scope: store.write(lambda c, s=scope: access.make_key(c, s, [s]))[1] for scope in access.SCOPES}  # type: ignore[misc]
    both = store.write(lambda c: access.make_key(c, "both", ["runs:read", "data:read"]))[1]
    store.close()
    with listening(Settings(home=tmp_path)) as served:
        status = lambda key, method, path, **more: served.ask(
            method, path, headers={"Authorization": f"Bearer {key}", **more.pop("headers", {})}, **more
        )[0]
        for scope, key in keys.items():
            imported = status(key, "POST", "/api/v1/runs:import", raw=b"x", headers=TAR)
            assert imported == (422 if scope == "admin" else 403), scope
            away = status(key, "GET", f"{RUNS}/parent:export?format=bundle")
            assert away == (200 if scope == "admin" else 403), scope
        assert status(both, "GET", f"{RUNS}/parent:export?format=bundle") == 200
        assert served.ask("POST", "/api/v1/runs:import", raw=b"x", headers=TAR)[0] == 401


# ---- forks -------------------------------------------------------------------------------------------------------


def test_a_fork_begins_where_its_parent_was(each: Served) -> None:
    store = each.service.store
    parent, ref = trained(store)
    client = each.client()
    made = client.fork("parent", {"stages.1.steps": 1, "seed": 9}, id="child", tags={"why": "more"}, once="k")
    assert (made["parent_run"], made["from_checkpoint"], made["state"]) == ("parent", ref.digest, "queued")
    assert client.fork("parent", {"stages.1.steps": 1, "seed": 9}, id="child", tags={"why": "more"}, once="k") == made
    recipe = store.run("child").recipe
    assert [(stage["name"], stage["steps"]) for stage in recipe["stages"]] == [("b", 1)] and recipe["seed"] == 9
    assert store.run("child").meta["base"] == "/x" and made["tags"] == {"why": "more"}
    found = store.read(lambda c: lineage.walk(c, [Node(kind="run", id="child")], "back"))
    assert Node(kind="checkpoint", id=ref.digest) in found.nodes
    whole = client.fork("parent", checkpoint=ref.digest)
    assert store.run(whole["id"]).recipe["stages"][0]["name"] == "b"
    for body, said in (
        ({"id": "child"}, 409), ({"checkpoint": "sha256:" + "0" * 64}, 422), ({"config": {"stages.0.name": "x"}}, 422),
        ({"config": {"verifiers": ["os:system"]}}, 422), ({"config": {"model": "/etc"}}, 422),
        ({"config": {"data.train.source": "../x"}}, 422), ({"config": {"nope": 1}}, 422), ({"config": {"stages": []}}, 422),
        ({"config": {"tracking.database": "x"}}, 422), ({"nope": 1}, 422), ({"config": {"steps": "many"}}, 422),
        ({"config": {"stages": 5}}, 422),
    ):  # fmt: skip
        assert each.ask("POST", f"{RUNS}/parent:fork", body)[0] == said, body
    Path(ref.path, "model.safetensors").write_bytes(b"v" * 3000)
    reply = each.ask("POST", f"{RUNS}/parent:fork", {})
    assert reply[0] == 422 and "not here whole" in reply[2]["detail"] and str(store.home) not in json.dumps(reply[2])
    assert each.ask("POST", f"{RUNS}/child:fork", {})[0] == 422  # it has no checkpoint
    assert len(list(client.runs())) == 3


def test_what_a_person_ran_with_files_of_their_own_is_not_forked_over_http(each: Served, tmp_path: Path) -> None:
    store, operators = each.service.store, tmp_path / "operators"
    operators.mkdir()
    (operators / "team.yaml").write_text(json.dumps({**RECIPE, "name": "team", "verifiers": ["checks.py"]}))
    each.service.settings = dataclasses.replace(each.service.settings, recipes=(operators,))
    parent, _ = trained(store)

    def fork(meta: dict[str, Any] | None = None, **recipe: Any) -> Any:
        values = {"recipe": {**parent.recipe, **recipe}, "meta": {"base": "/x", **(meta or {})}}
        store.write(lambda c: c.execute(sa.update(t.run).where(t.run.c.pk == parent.pk).values(**values)))
        status, _, told = each.ask("POST", f"{RUNS}/parent:fork", {})
        return store.run(told["id"]).meta["base"] if status == 201 else (status, kind((status, {}, told))[1])

    engine, tracking = parent.recipe["engine"], parent.recipe["tracking"]
    own = {"verifiers": ["checks.py"]}
    refused = (409, "conflict")
    assert fork() == "/x" == fork(tracking={**tracking, "database": "sqlite:////elsewhere/x.db"})
    assert (
        fork(**own)
        == refused
        == fork(model="/models/mine")
        == fork(engine={**engine, "sampler": "vllm", "vllm_url": "http://h:1"})
    )
    assert fork(data={"train": {"source": "mine.jsonl"}}) == refused == fork(tracking={**tracking, "log_to": ["wandb"]})
    member = {"use": "problem", "args": {"table": "../secret.csv"}}
    assert fork(reward={"members": [member]}) == refused
    assert fork({"launched_by": "key:a"}, **own) == "/x"  # by this service, from a recipe of the operator's
    assert fork(**own, name="team") == str(operators)  # as a launch would: not the person's file of that name
    assert fork(verifiers=["checks.py", "mine.py"], name="team") == refused


# ---- by digest ---------------------------------------------------------------------------------------------------


def test_data_sets_and_models_are_registered_by_digest(each: Served) -> None:
    client = each.client()
    manifest = {
        "digest": "sha256:" + "aa" * 32,
        "rows": 3,
        "skipped": 0,
        "split": "train",
        "source": "my/set",
        "template": {},
    }
    assert client.register_dataset("my/set", manifest) == client.register_dataset("my/set", manifest)
    for body in ({**manifest, "rows": 9}, {**manifest, "split": "test"}, {**manifest, "source": "their/set"}):
        path = (
            f"/api/v1/datasets/{body['source']}/versions"  # facts of a digest never change, whoever names it otherwise
        )
        assert kind(each.ask("POST", path, {"manifest": body})) == (409, "conflict")
    assert [(v["digest"], v["rows"]) for v in client.dataset_versions("my/set")] == [(manifest["digest"], 3)]
    files = {"model.safetensors": "sha256:" + hashlib.sha256(b"x").hexdigest(), "sub/config.json": "sha256:" + "0" * 64}
    made = client.register_model("small", files)
    assert made["digest"] == digest({"schema": 1, "kind": "folder", "files": files})
    client.register_model("small", {"model.safetensors": "sha256:" + "1" * 64})
    assert [m["name"] for m in client._pages("/models", "models", {"page_size": 1})] == ["small", "small"]
    assert [d["name"] for d in client.datasets()] == ["my/set"]
    each.ask("POST", RUNS, {"recipe": "tiny", "project": "p"})
    assert [(p["name"], p["runs"]) for p in client.projects()] == [("p", 1)]
    for name, body in (
        ("my/set", {**manifest, "source": "other"}), ("my/set", {**manifest, "digest": "md5:x"}), ("my/set", {"rows": 1}),
        ("my/set", {**manifest, "rows": -1}), ("my/set", {**manifest, "files": 5}), ("my/set", {**manifest, "rows": "3"}),
        ("x/y", {**manifest, "source": "x/y", "split": None}),
    ):  # fmt: skip
        assert each.ask("POST", f"/api/v1/datasets/{name}/versions", {"manifest": body})[0] == 422, body
    for files in (
        {},
        {"../x": "sha256:" + "0" * 64},
        {"x": "0"},
        {"/etc": "sha256:" + "0" * 64},
        {"a\\b": "sha256:" + "0" * 64},
    ):
        assert each.ask("POST", "/api/v1/models", {"name": "m", "files": files})[0] == 422, files
    assert each.ask("GET", "/api/v1/datasets/none/versions")[0] == 404
