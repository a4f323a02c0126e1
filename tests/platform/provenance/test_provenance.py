"""What a run was made of: recorded once, asked both ways, held against its bytes, carried away and taken in."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.clock import now
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.identity import Identity
from jurat.platform.identity.rewards import reward_digest
from jurat.platform.provenance import bundle, drift, edges, environment, folders, lineage, points, prov, seal, versions
from jurat.platform.provenance.edges import segment_node
from jurat.platform.provenance.records import Edge, Ingredients, Node, Observation, VerifierFacts
from jurat.platform.provenance.verify import verify
from jurat.platform.runs import events, metrics
from jurat.platform.runs.ledger import RunLedger
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import CheckpointRef

HERE = environment.describe(Path("/nowhere"))


def _facts(name: str = "math", body: str = "return 1", **more: Any) -> VerifierFacts:
    sources = {name: f"def {name}(problem, completion):\n    {body}"}
    parts = {"code": digest([name, body]), "config": "c", "deps": {"sympy==1.14.0": "sha256:aa"}, "weights": ""}
    named = Identity(**parts, nodes={}).digest
    return VerifierFacts(label=name, name=name, digest=named, abi="3.11", sources=sources, **parts, **more)


def _made(*verifiers: VerifierFacts, **more: Any) -> Ingredients:
    used = verifiers or (_facts(),)
    spec = {"members": [{"use": f.name, "weight": f.weight} for f in used], "on_undecided": "exclude"}
    return Ingredients(
        reward=digest([f.digest for f in used]), spec=spec, verifiers=used, model=digest("model"), model_name="tiny",
        datasets={"train": {"digest": digest("data"), "source": "generated", "split": "train", "rows": 40}},
        environment=HERE, **more,
    )  # fmt: skip


def _checkpoint(run: RunInfo, step: int, parent: str = "") -> CheckpointRef:
    folder = run.folder / "checkpoints/main" / f"step-{step:06d}"
    (folder / "policy").mkdir(parents=True)
    (folder / "policy/model.safetensors").write_bytes(os.urandom(64))
    (folder / "state.json").write_text(json.dumps({"source": {"source": {"problems": {"position": step}}}}))
    files = {p: folders.file_digest(folder / p) for p in ("policy/model.safetensors", "state.json")}
    manifest = {"format": 1, "step": step, "parent": parent, "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return CheckpointRef(
        path=str(folder), digest=folders.file_digest(folder / "manifest.json"), step=step, parent=parent
    )


@pytest.fixture
def trained(store: Store, recipe: Any, batch: Any, step_report: Any) -> Callable[..., RunInfo]:
    """A run of two steps with a checkpoint, made of what is given, from a checkpoint or from the model."""

    def make(name: str, made: Ingredients | None = None, begun: str = "", **more: Any) -> RunInfo:
        made = dataclasses.replace(made or _made(), from_checkpoint=begun)
        run = store.create_run(recipe=recipe, recipe_digest="", reward_digest=made.reward, meta={}, run_id=name, **more)
        lease = store.take(run)
        segment = store.start_segment(run, first_step=0, reward_digest=made.reward, lease=lease, made_of=made)
        with RunLedger(store, run, "", segment, run.folder, lease=lease) as ledger:
            for step in range(2):
                ledger.record_batch(batch(step))
                ledger.record_step(step_report(step, spike=1e22, nan=float("nan")))
            ledger.record_checkpoint(_checkpoint(run, 2, begun))
            ledger.record_event("note", {"big": 1e22, "half": 0.5, "text": "ünï\x00", "zero": -0.0, "seed": 2**63})
        store.end(lease, "finished")
        return store.run(name)

    return make


def _saved(store: Store, run: RunInfo) -> CheckpointRef:
    return store.checkpoints(run)[-1].ref


def test_what_a_checkpoint_was_made_of(store: Store, trained: Any) -> None:
    first = trained("one")
    second = trained(
        "two", _made(_facts(), _facts("length", "return 2", role="style", weight=0.1)), _saved(store, first).digest
    )
    node = Node(kind="checkpoint", id=_saved(store, second).digest)
    found = store.read(lambda c: lineage.walk(c, [node], "back"))
    kinds = sorted((n.kind, n.id) for n in found.nodes)
    assert [kind for kind, _ in kinds] == [
        "checkpoint", "checkpoint", "dataset_version", "environment", "model_version", "reward_spec", "reward_spec",
        "segment", "segment", "verifier_version", "verifier_version",
    ]  # fmt: skip
    assert {i for k, i in kinds if k == "segment"} == {"one/0", "two/0"}
    assert found.nodes[node]["cursor"] == {"position": 2}
    names = {tuple(said["names"]) for n, said in found.nodes.items() if n.kind == "verifier_version"}
    assert names == {("math@1",), ("length@1",)}
    near = store.read(lambda c: lineage.walk(c, [node], "back", depth=1))
    assert ([n.kind for n in near.nodes], near.cut) == (["checkpoint", "segment"], True)


def test_a_copied_checkpoint_is_known_by_what_is_in_it(store: Store, trained: Any, tmp_path: Path) -> None:
    run = trained("one")
    copy = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(_saved(store, run).path, copy)
    assert store.read(lambda c: lineage.resolve(c, str(copy))).id == _saved(store, run).digest
    assert store.read(lambda c: lineage.resolve(c, _saved(store, run).digest[:19])).kind == "checkpoint"
    assert store.read(lambda c: lineage.resolve(c, "one/0")) == segment_node("one", 0)
    assert store.read(lambda c: lineage.resolve(c, "one")) == Node(kind="run", id="one")
    assert store.read(lambda c: lineage.resolve(c, "math@1")).kind == "verifier_version"
    weights = copy / "policy/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(DataError, match=r"policy/model\.safetensors: its digest is"):
        store.read(lambda c: lineage.resolve(c, str(copy)))
    (copy / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="no run recorded a checkpoint with digest"):
        store.read(lambda c: lineage.resolve(c, str(copy)))
    with pytest.raises(ConfigError, match=r"no verifier version 'maths'\. Did you mean 'math'"):
        store.read(lambda c: lineage.resolve(c, "maths"))


def test_what_is_tainted_if_a_verifier_is_bad(store: Store, trained: Any) -> None:
    bad, good = _facts(body="return 'bug'"), _facts("exact")
    clean = trained("clean", _made(good))
    dirty = trained("dirty", _made(good, bad))
    child = trained("child", _made(good), _saved(store, dirty).digest, parent_run="dirty",
                    from_checkpoint=_saved(store, dirty).digest)  # fmt: skip
    grandchild = trained("grandchild", _made(good), _saved(store, child).digest)
    sibling = trained("sibling", _made(good), _saved(store, clean).digest, parent_run="dirty")
    found = store.read(lambda c: lineage.affected(c, Node(kind="verifier_version", id=bad.digest)))
    runs = {node.id for node in found.nodes if node.kind == "run"}
    assert runs == {"dirty", "child", "grandchild"}, "a sibling that began from a clean checkpoint is clean"
    checkpoints = {node.id for node in found.nodes if node.kind == "checkpoint"}
    assert checkpoints == {_saved(store, r).digest for r in (dirty, child, grandchild)}
    assert [
        row["id"] for row in store.read(lambda c: lineage.uses(c, Node(kind="verifier_version", id=bad.digest)))
    ] == ["dirty"]
    used = store.read(lambda c: lineage.uses(c, Node(kind="dataset_version", id=digest("data"))))
    assert {row["id"] for row in used} == {"clean", "dirty", "child", "grandchild", "sibling"}
    judged = store.read(lambda c: lineage.judged(c, "sha256:" + "9f" * 32))
    assert judged[0] == {"run": "child", "verdicts": 12, "scored": 12, "first_step": 0, "last_step": 1}
    store.write(lambda c: versions.set_status(c, "math", "quarantined", "accepts all", by="me"))
    assert [v.status_reason for v in store.read(lambda c: versions.quarantined(c, [bad.digest, good.digest]))] == [
        "accepts all"
    ]
    assert sibling.state == "finished"
    with pytest.raises(ConfigError, match="no status is called 'bad'"):
        store.write(lambda c: versions.set_status(c, "math", "bad", ""))


def test_what_learns_from_an_exported_model_is_tainted_with_it(store: Store, trained: Any) -> None:
    bad, files = _facts(body="return 'bug'"), {"model.safetensors": digest("weights")}
    parent, model = trained("parent", _made(bad)), digest({"schema": 1, "kind": "folder", "files": files})
    store.write(lambda c: versions.exported(c, "parent", _saved(store, parent).digest, model, "out", files))
    child = trained("child", dataclasses.replace(_made(_facts("exact")), model=model, model_files=files))
    trained("other")
    found = store.read(lambda c: lineage.affected(c, Node(kind="verifier_version", id=bad.digest)))
    assert {node.id for node in found.nodes if node.kind == "run"} == {"parent", "child"}
    assert Node(kind="checkpoint", id=_saved(store, child).digest) in found.nodes
    shutil.rmtree(_saved(store, parent).path)  # the model is enough
    assert not any("checkpoint" in line for line in store.read(lambda c: lineage.gaps(c, child, HERE.attrs)))


def test_what_is_affected_has_no_end_at_a_hundred_steps(store: Store) -> None:
    nodes = [Node(kind="model_version" if n % 2 else "export", id=f"m{n}") for n in range(251)]
    chain = [Edge(src=one, dst=two, role="weights") for one, two in itertools.pairwise(nodes)]
    store.write(lambda c: edges.add(c, chain))
    found = store.read(lambda c: lineage.affected(c, nodes[0]))
    assert (len(found.nodes), found.cut) == (251, False)


def test_a_version_is_registered_once_and_never_changes(store: Store) -> None:
    def put(facts: VerifierFacts) -> int:
        return store.write(lambda c: versions.register(c, facts))

    one, two = _facts(), _facts(body="return 2")
    assert [put(one), put(two), put(one), put(dataclasses.replace(one, name="alias"))] == [1, 2, 1, 1]
    found = store.read(lambda c: versions.version(c, "math@1"))
    assert (found.digest, found.names, found.deps) == (
        one.digest,
        ("alias@1", "math@1"),
        {"sympy==1.14.0": "sha256:aa"},
    )
    assert store.read(lambda c: versions.version(c, "math")).digest == two.digest
    assert store.read(lambda c: versions.sources(c, found)) == one.sources
    put(dataclasses.replace(one, config="other", version="9"))
    assert store.read(lambda c: versions.version(c, one.digest)).config == "c"
    for change in ("SET code = 'x'", "SET deps = '{}'", "SET created = 0"):
        with pytest.raises(Exception, match="verifier_version never changes"):
            store.write(lambda c, s=change: c.execute(sa.text(f"UPDATE verifier_version {s}")))
    assert store.read(lambda c: versions.unknown(c, [one.digest, "sha256:x"])) == {"sha256:x"}


def test_a_changed_reward_is_told_as_a_diff(store: Store, trained: Any) -> None:
    before = _made(_facts(), _facts("exact"))
    trained("one", before)
    now = _made(_facts(body="return 2"), _facts("length", weight=0.5))
    told = store.read(lambda c: drift.difference(c, before.reward, now)).splitlines()
    assert "member math: code changed" in told
    assert "-    return 1" in told and "+    return 2" in told
    assert f"+ member length: {_facts('length').digest}" in told
    assert f"- member exact: {_facts('exact').digest}" in told
    heavier = _made(_facts(weight=2.0), _facts("exact"))
    assert store.read(lambda c: drift.difference(c, before.reward, heavier)).splitlines() == [
        "- member math: outcome, weight 1", "+ member math: outcome, weight 2",
    ]  # fmt: skip
    other = dataclasses.replace(before, spec={**before.spec, "on_undecided": "zero"})
    assert store.read(lambda c: drift.difference(c, before.reward, other)).splitlines() == [
        "- on_undecided: exclude", "+ on_undecided: zero",
    ]  # fmt: skip


def test_equal_code_that_behaves_otherwise_is_seen(store: Store, trained: Any) -> None:
    facts = _facts()

    def seen(*vector: tuple[str, str, float | None], **more: int) -> Observation:
        return Observation(version_digest=facts.digest, canary_digest="sha256:cases", vector=vector, **more)

    first = seen(("000", "correct", 1.0), ("001", "incorrect", 0.0), ("002", "no_answer", 0.0))
    trained("one", _made(facts, observations=(first,)))
    look = lambda o: store.read(lambda c: drift.behaviour(c, _made(facts, observations=(o,))))
    assert look(first) == []
    assert look(seen(("000", "correct", 1.0), ("002", "no_answer", 0.0), timeouts=1)) == []
    changed = seen(("000", "correct", 1.0), ("001", "correct", 1.0), ("002", "no_answer", 0.0))
    assert look(changed) == [f"{facts.digest[:19]}... case 001: incorrect 0 before, correct 1 now"]
    row = store.read(lambda c: versions.observations(c, facts.digest))[0]
    assert (row["cases"], row["scored"], row["run_id"], row["environment_digest"]) == (3, 3, "one", HERE.digest)


def test_a_flipped_byte_anywhere_is_named(store: Store, trained: Any) -> None:
    run = trained("one")
    whole = verify(store, run)
    assert (whole.events, whole.parts, whole.checkpoints, whole.faults) == (3, 2, 1, ())
    for path in sorted(p for p in run.folder.rglob("*") if p.is_file() and p.name not in ("lock", "holder.json")):
        data = path.read_bytes()
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
        faults = verify(store, run).faults
        relative = path.relative_to(run.folder)
        named = relative.as_posix() if relative.parts[0] == "rollouts" else str(path.name)
        assert len(faults) == 1 and named in faults[0], (path, faults)
        path.write_bytes(data)
    off = {
        "sqlite": "DROP TRIGGER run_event_update",
        "postgresql": "ALTER TABLE run_event DISABLE TRIGGER run_event_update",
    }
    store.write(lambda c: c.execute(sa.text(off[store.engine.dialect.name])))
    for change, why in (
        ("kind = 'nope' WHERE seq = 2", "event 2 (nope) was changed"),
        ("at = at + 1 WHERE seq = 1", "event 1 (state) was changed"),
        ("seq = 9 WHERE seq = 2", "event 2 is missing"),
    ):
        with store.engine.connect() as connection, connection.begin() as transaction:
            connection.execute(sa.text(f"UPDATE run_event SET {change}"))
            told = [e for e in _events(connection, run)]
            from jurat.platform.runs import events

            assert events.broken(told).startswith(why)
            transaction.rollback()


def test_a_finished_run_is_sealed_row_by_row(store: Store, trained: Any, tmp_path: Path) -> None:
    """No digest of a file or an event is over a metric point: the seal is."""
    run = trained("one")
    seal.seal(store, run)
    assert verify(store, run).faults == ()
    bundle.export(store, run, tmp_path / "a.tar")
    other = Store.open(None, tmp_path / "other")
    assert verify(other, bundle.take_in(other, tmp_path / "a.tar")).faults == ()  # its rows are the same there
    other.close()
    for table, change in (
        ("metric_point", "value = value + 1e-9 WHERE step = 1"), ("metric_point", "step = 9 WHERE step = 1"),
        ("metric_point", "at = at + 1"), ("segment", "first_step = 1"), ("checkpoint", "step = 3"),
        ("verdict_stat", "n = n + 1 WHERE step = 0"), ("data_part", "rows = rows + 1 WHERE step_min = 0"),
        ("edge", "role = 'other' WHERE dst_kind = 'segment'"), ("run", "created = created + 1"),
    ):  # fmt: skip
        with store.engine.connect() as connection, connection.begin() as transaction:
            connection.execute(sa.text(f"UPDATE {table} SET {change}"))
            assert [fault.partition(":")[0] for fault in seal.broken(connection, run)] == [table], change
            transaction.rollback()


def test_what_is_stored_of_a_reward_is_held_to_its_digest(store: Store, trained: Any) -> None:
    used = (_facts(), _facts("length", "return 2", role="style", weight=0.25))
    members = [{"use": f.name, "role": f.role, "weight": f.weight, "gate": None, "args": {"n": 1}} for f in used]
    spec = {
        "schema": 2,
        "members": members,
        "combine": "sum",
        "on_undecided": "exclude",
        "normalise": None,
        "shaping": None,
    }
    named = reward_digest(spec, [(f.label, f.name, f.digest) for f in used])
    run = trained("one", dataclasses.replace(_made(*used), spec=spec, reward=named))
    assert verify(store, run).faults == ()
    changed = "CAST(spec AS TEXT)" if store.engine.dialect.name == "postgresql" else "spec"
    back = "AS JSONB" if store.engine.dialect.name == "postgresql" else "AS TEXT"
    for change in (
        "reward_member SET weight = 0.5 WHERE position = 1", "reward_member SET role = 'safety' WHERE position = 0",
        "reward_member SET label = 'x' WHERE position = 0", "reward_member SET verifier = 'x' WHERE position = 0",
        f"reward_member SET version_digest = '{used[0].digest}' WHERE position = 1",
        f"reward_spec SET spec = CAST(REPLACE({changed}, 'exclude', 'zero') {back})",
    ):  # fmt: skip
        with store.engine.connect() as connection, connection.begin() as transaction:
            connection.execute(sa.text(f"UPDATE {change}"))
            assert versions.unlike(connection, named), change
            transaction.rollback()
    store.write(lambda c: c.execute(sa.text("DELETE FROM reward_member WHERE position = 1")))
    (fault,) = verify(store, run).faults
    assert fault.startswith(f"reward_spec {named}: its members and their versions make sha256:")


def test_what_searches_read_is_held_to_the_points(store: Store, trained: Any) -> None:
    run = trained("one")
    for change in ("value = value + 1", "least = least - 1", "at = at + 1", "step = step + 1"):
        with store.engine.connect() as connection, connection.begin() as transaction:
            connection.execute(sa.text(f"UPDATE metric_latest SET {change}"))
            faults = metrics.newest_faults(connection, run.pk)
            assert faults and all("metric_latest" in fault for fault in faults), change
            transaction.rollback()
    store.write(lambda c: c.execute(sa.delete(t.metric_latest)))
    (fault, *_) = verify(store, run).faults
    assert fault.startswith("metric ") and "metric_latest" in fault


def test_a_pipe_in_a_folder_is_a_fault_and_not_awaited(store: Store, trained: Any) -> None:
    run = trained("one")
    part = next((run.folder / "rollouts").rglob("*.parquet"))
    part.unlink()
    os.mkfifo(part)
    (fault,) = verify(store, run).faults
    assert "not a regular file" in fault.lower()


def _events(connection: sa.Connection, run: RunInfo) -> Any:
    from jurat.platform.runs import events

    return events.read(connection, run.pk, after=0, limit=None)


def test_two_runs_told_apart(store: Store, trained: Any, recipe: Any) -> None:
    one = trained("one")
    other = dataclasses.replace(
        HERE, digest=digest("env"), git_commit="abc", attrs={**HERE.attrs, "packages": {"sympy": "9"}}
    )
    two = trained("two", dataclasses.replace(_made(_facts(body="return 2")), environment=other))
    found = store.read(lambda c: lineage.difference(c, one, two))
    assert (found["config"], found["dataset_version"], found["model_version"]) == ({}, {}, {})
    assert found["packages"]["sympy"][1] == "9" and found["git_commit"]["b"] == ["abc"]
    assert "-    return 1" in found["verifiers"] and found["reward"]["a"] == [_made().reward]
    again = store.read(lambda c: lineage.difference(c, one, trained("three")))
    assert not any(again.values())


def test_gaps(store: Store, trained: Any) -> None:
    run = trained("one", _made(dataclasses.replace(_facts(), sources=None)))
    here = HERE.attrs
    assert store.read(lambda c: lineage.gaps(c, run, here)) == ["the source of verifier math@1 was not recorded"]
    whole = trained("two", _made(_facts("exact")))
    assert store.read(lambda c: lineage.gaps(c, whole, here)) == []
    other = {**here["packages"], "sympy": "0.1"}
    told = store.read(lambda c: lineage.gaps(c, whole, {**here, "packages": other, "python": "2.7"}))
    assert told == [f"Python was {here['python']}, here it is 2.7",
                    f"package sympy was {here['packages']['sympy']}, here it is 0.1"]  # fmt: skip


def test_other_code_and_a_change_midway_are_gaps(store: Store, trained: Any) -> None:
    run = trained("three", _made(_facts("exact")))
    own = {**HERE.attrs["jurat"], "files": "sha256:" + "0" * 64}
    (told,) = store.read(lambda c: lineage.gaps(c, run, {**HERE.attrs, "jurat": own}))
    assert "jurat's own code was" in told and "here it is sha256:000000000000..." in told
    (told,) = store.read(lambda c: lineage.gaps(c, run, {**HERE.attrs, "patch": "sha256:" + "1" * 64}))
    assert "here they are sha256:111111111111" in told
    made = _made(_facts("exact", "return 2"), from_checkpoint="")
    data = {"train": {**made.datasets["train"], "digest": digest("other")}}
    again = dataclasses.replace(made, datasets=data, environment=dataclasses.replace(HERE, digest=digest("edited")))
    store.start_segment(run, first_step=2, reward_digest=again.reward, made_of=again)
    told = store.read(lambda c: lineage.gaps(c, run, HERE.attrs))
    assert [line.split(":")[0] for line in told] == [
        f"segments 0 and 1 differ in their {what}" for what in ("reward", "data", "environment")
    ]


def test_a_seal_that_is_gone_and_a_changed_source_are_found(store: Store, trained: Any) -> None:
    run = trained("four", _made(_facts("sealed")))
    assert verify(store, run).whole
    store.add_event(run, events.SEALING, {})
    finished = dataclasses.replace(store.run(run.id), state="finished", ended=1)
    assert store.read(lambda c: seal.broken(c, finished)) == [
        "the run is not sealed: its process was killed at its very end, and jurat runs seal mends it; or the seal was removed"
    ]
    just_now = dataclasses.replace(finished, ended=store.read(now))
    assert store.read(lambda c: seal.broken(c, just_now)) == []  # its process is at it
    seal.seal(store, run)
    assert store.read(lambda c: seal.broken(c, finished)) == []
    found = store.read(lambda c: versions.version(c, "sealed"))
    b = t.blob.c
    store.write(lambda c: c.execute(sa.update(t.blob).where(b.digest == found.source).values(content=b"{}")))
    (fault,) = verify(store, run).faults
    assert found.digest in fault and "is not what its digest" in fault


def test_a_part_of_a_checkpoint_and_what_is_none(store: Store, trained: Any, tmp_path: Path) -> None:
    saved = _saved(store, trained("five", _made(_facts("exact"))))
    node = store.read(lambda c: lineage.resolve(c, f"{saved.path}/policy"))
    assert node == Node(kind="checkpoint", id=saved.digest)
    for named, told in ((str(tmp_path), "no checkpoint's folder"), ("s0-p1-0", "no run of that name")):
        with pytest.raises(ConfigError, match=told):
            store.read(lambda c, n=named: lineage.resolve(c, n))


def test_a_bundle_without_weights_passes_its_own_check(store: Store, trained: Any, tmp_path: Path) -> None:
    run = trained("six", _made(_facts("exact")))
    bundle.export(store, run, tmp_path / "b.tar", weights=False)
    other = Store.open(None, tmp_path / "other")
    assert verify(other, bundle.take_in(other, tmp_path / "b.tar")).faults == ()
    other.close()
    after = trained("seven", _made(_facts("exact")), _saved(store, run).digest)
    shutil.rmtree(_saved(store, run).path)
    (told,) = store.read(lambda c: lineage.gaps(c, after, HERE.attrs))
    assert "is not kept any more" in told


# ---- carried away ------------------------------------------------------------------------------------------------


def test_prov_json(store: Store, trained: Any) -> None:
    run = trained("two", None, _saved(store, trained("one")).digest)
    made = store.read(lambda c: prov.document(c, run))
    assert made == store.read(lambda c: prov.document(c, run))
    assert set(made["activity"]) == {"jurat:segment/one/0", "jurat:segment/two/0"}
    roles = {(r["prov:entity"].split("/")[0], r["prov:role"]) for r in made["used"].values()}
    assert ("jurat:reward_spec", "reward") in roles and ("jurat:checkpoint", "began") in roles
    assert [r["jurat:role"] for r in made["wasDerivedFrom"].values()] == ["member:math"]
    known = set(made["entity"]) | set(made["activity"]) | set(made["agent"])
    for kind in ("used", "wasGeneratedBy", "wasDerivedFrom", "wasAssociatedWith"):
        for relation in made[kind].values():
            assert {v for k, v in relation.items() if k not in ("prov:role", "jurat:role")} <= known
    reader = pytest.importorskip("prov.model", reason="the package prov is not installed")
    read = reader.ProvDocument.deserialize(content=json.dumps(made), format="json")
    assert reader.ProvDocument.deserialize(content=read.serialize(format="json"), format="json") == read


def test_a_bundle_is_the_run(store: Store, trained: Any, tmp_path: Path) -> None:
    run = trained("one")
    bundle.export(store, run, tmp_path / "a.tar")
    bundle.export(store, run, tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    other = Store.open(None, tmp_path / "other")
    taken = bundle.take_in(other, tmp_path / "a.tar")
    assert (taken.state, taken.created, taken.recipe) == (run.state, run.created, run.recipe)
    assert verify(other, taken) == verify(store, run)
    assert [dataclasses.asdict(p) for p in other.metrics(taken, names=["spike", "reward/mean"])] == [
        dataclasses.asdict(p) for p in store.metrics(run, names=["spike", "reward/mean"])
    ]
    node = lambda s, r: Node(kind="checkpoint", id=_saved(s, r).digest)
    walks = [
        s.read(lambda c, s=s, r=r: lineage.walk(c, [node(s, r)], "back")) for s, r in ((store, run), (other, taken))
    ]
    assert list(walks[0].nodes) == list(walks[1].nodes)
    assert Path(_saved(other, taken).path).is_relative_to(taken.folder)
    there = other.read(lambda c: versions.version(c, _facts().digest))
    assert other.read(lambda c: versions.sources(c, there)) == _facts().sources
    assert (there.names, there.status) == (("math",), "active")  # by no number: that is for what was registered here
    with pytest.raises(ConfigError, match="there is a run 'one' already"):
        bundle.take_in(other, tmp_path / "a.tar")
    with pytest.raises(ConfigError):
        other.run("two")
    assert sorted(p.name for p in other.runs_folder.iterdir()) == ["one"]
    other.close()


def _forged(path: Path, to: Path, change: Callable[[dict[str, Any]], object], run: str = "") -> Path:
    """A bundle whose record says something else, with digests that agree."""
    members = _members(path)
    record, index = json.loads(members[1][1]), json.loads(members[0][1])
    change(record)
    record["run"]["id"] = index["run"] = run or index["run"]
    data = json.dumps(record).encode()
    index["files"]["record.json"] = [len(data), digest(data)]
    return _packed([(members[0][0], json.dumps(index).encode()), (members[1][0], data), *members[2:]], to)


def _evil(record: dict[str, Any]) -> None:
    """All that a record could say of others: their edges, observations, members, names and numbers."""
    version, reward = record["verifier_version"][0], record["reward_spec"][0]["digest"]
    parts = {"code": digest("evil"), "config": "c", "deps": {}, "weights": ""}
    fake = {**version, **parts, "digest": Identity(**parts, nodes={}).digest, "status": "quarantined"}
    record["verifier_version"].append(fake)
    record["verifier"].append({"name": "math", "kind": "outcome", "version_digest": fake["digest"]})
    ghost = {**record["reward_member"][0], "position": 99, "label": "ghost", "version_digest": fake["digest"]}
    record["reward_member"].append(ghost)
    vector = json.dumps([["000", "incorrect", 0.0]], separators=(",", ":")).encode()
    seen = record["verifier_observation"][0]
    lie = {"vector": digest(vector), "behaviour_digest": versions.behaviour([("000", "incorrect", 0.0)])}
    record["verifier_observation"] = [{**seen, **lie, "run_id": run} for run in ("one", "evil")]
    content = base64.b64encode(vector).decode()
    record["blob"].append({**record["blob"][0], "digest": digest(vector), "size": len(vector), "content": content})
    record["edge"] = json.loads(json.dumps(record["edge"]).replace('"one', '"evil'))
    edge = {"role": "reward", "run_id": "evil", "at": 1, "src_kind": "verifier_version", "src": fake["digest"]}
    record["edge"] += [
        {**edge, "dst_kind": "segment", "dst": "one/0", "run_id": "one"},
        {**edge, "dst_kind": "segment", "dst": "one/0"},
        {**edge, "dst_kind": "checkpoint", "dst": record["checkpoint"][0]["digest"]},
        {**edge, "dst_kind": "reward_spec", "dst": reward, "run_id": ""},
    ]


def _all(store: Store, *left_out: str) -> dict[str, list[Any]]:
    names = ("verifier", "verifier_release", "verifier_version", "reward_spec", "reward_member", "dataset_version")
    tables = [t.metadata.tables[name] for name in names if name not in left_out]
    read = lambda c, table: [tuple(row) for row in c.execute(sa.select(table).order_by(*table.primary_key.columns))]
    return {table.name: store.read(lambda c, each=table: read(c, each)) for table in tables}


def test_a_bundle_speaks_of_its_own_run_alone(store: Store, trained: Any, tmp_path: Path) -> None:
    seen = Observation(version_digest=_facts().digest, canary_digest="sha256:cases", vector=[("000", "correct", 1.0)])
    run = trained("one", _made(observations=(seen,)))
    bundle.export(store, run, tmp_path / "a.tar")
    before, node = _all(store), Node(kind="checkpoint", id=_saved(store, run).digest)
    back = lambda: store.read(lambda c: lineage.walk(c, [node], "back"))
    whole = back()
    bundle.take_in(store, _forged(tmp_path / "a.tar", tmp_path / "evil.tar", _evil, "evil"))
    assert _all(store) == before
    assert store.read(lambda c: drift.behaviour(c, _made(observations=(seen,)))) == []
    assert store.read(lambda c: versions.version(c, "math")).digest == _facts().digest
    assert (list(back().nodes), back().edges) == (list(whole.nodes), whole.edges)
    assert (back().nodes[node]["run"], back().nodes[node]["runs"]) == ("one", ["one", "evil"])
    assert {row["run_id"] for row in store.read(lambda c: versions.observations(c, _facts().digest))} == {"one", "evil"}
    assert verify(store, store.run("one")).faults == ()


def test_a_false_record_is_refused_or_gives_way(store: Store, trained: Any, tmp_path: Path) -> None:
    """In a home that knows nothing yet."""
    seen = Observation(version_digest=_facts().digest, canary_digest="sha256:cases", vector=[("000", "correct", 1.0)])
    made = _made(observations=(seen,))
    bundle.export(store, trained("one", made), tmp_path / "a.tar")
    other, lie = Store.open(None, tmp_path / "other"), base64.b64encode(b'{"math":"return 1.0"}').decode()
    for change in (
        lambda r: r["verifier_version"][0].update(code=digest("x")),
        lambda r: r["environment"][0]["attrs"].update(python="2.7"),
        lambda r: r["environment"][0]["attrs"]["jurat"].update(files="sha256:other"),
        lambda r: r["model_version"][0].update(manifest={"x": "sha256:y"}),
        lambda r: r["dataset_version"][0].update(name="theirs"),
        lambda r: r["verifier_observation"][0].update(behaviour_digest="sha256:x"),
    ):
        with pytest.raises(DataError, match=r"cannot be taken in|not a record"):
            bundle.take_in(other, _forged(tmp_path / "a.tar", tmp_path / "b.tar", change))
        assert other.runs() == [] and list(other.runs_folder.iterdir()) == []

    def false(record: dict[str, Any]) -> None:
        version = record["verifier_version"][0]
        blob = {"digest": digest(base64.b64decode(lie)), "size": 21, "content": lie, "media_type": "x", "created": 1}
        record["blob"].append(blob)
        version.update(source=blob["digest"], deterministic=0, status="quarantined", status_reason="so it says")
        record["reward_member"].append({**record["reward_member"][0], "position": 9, "label": "ghost"})

    bundle.take_in(other, _forged(tmp_path / "a.tar", tmp_path / "b.tar", false))
    assert other.read(lambda c: versions.quarantined(c, [_facts().digest])) == []
    assert other.read(lambda c: versions.unknown(c, [_facts().digest])) == {_facts().digest}
    other.write(lambda c: versions.record(c, "mine", 0, made))
    found = other.read(lambda c: versions.version(c, "math@1"))
    assert (found.digest, found.code, found.deterministic) == (_facts().digest, _facts().code, True)
    assert other.read(lambda c: versions.sources(c, found)) == _facts().sources
    assert [row[1] for row in _all(other)["reward_member"]] == [0]
    other.close()


def test_an_import_that_is_killed_leaves_nothing_in_the_way(
    store: Store, trained: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle.export(store, trained("one"), tmp_path / "a.tar")
    other = Store.open(None, tmp_path / "other")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for place, left in (
        ((Path, "rename"), []),
        ((bundle, "sync_folder"), ["one"]),
    ):  # before and after it is in its place
        with monkeypatch.context() as here:
            here.setattr(*place, killed)
            with pytest.raises(KeyboardInterrupt):
                bundle.take_in(other, tmp_path / "a.tar")
        assert other.runs() == [] and [path.name for path in other.runs_folder.iterdir()] == left
    taken = bundle.take_in(other, tmp_path / "a.tar")
    assert verify(other, taken).faults == () and not list(taken.folder.glob(".*"))
    (other.runs_folder / "two").mkdir()
    with pytest.raises(DataError, match="there already"):
        bundle.take_in(other, _forged(tmp_path / "a.tar", tmp_path / "b.tar", lambda r: None, "two"))
    other.close()


def test_a_bundle_of_a_run_that_goes_on(store: Store, trained: Any, tmp_path: Path, recipe: Any) -> None:
    run = store.create_run(recipe=recipe, recipe_digest="", reward_digest="", meta={}, run_id="one")
    store.start_segment(run, first_step=0, lease=store.take(run))
    bundle.export(store, store.run("one"), tmp_path / "a.tar")
    other = Store.open(None, tmp_path / "other")
    taken = bundle.take_in(other, tmp_path / "a.tar")
    assert (taken.state, verify(other, taken).faults) == ("interrupted", ())
    other.close()


def test_a_copied_folder_opens(store: Store, trained: Any, tmp_path: Path) -> None:
    run = trained("one")
    bundle.write_record(store, run)
    copy = tmp_path / "usb" / "my run"
    shutil.copytree(run.folder, copy)
    opened, found = bundle.open_copy(copy)
    assert (found.id, found.folder, found.state) == ("one", copy, "finished")
    assert verify(opened, found).faults == ()
    assert len(opened.metrics(found)) == len(store.metrics(run))
    opened.close()
    assert verify(store, run).faults == ()  # its own record is no part of it
    (copy / "record.json").write_text('{"format": 1}')
    with pytest.raises(DataError, match="not a record of a run"):
        bundle.open_copy(copy)


def _packed(members: list[tuple[tarfile.TarInfo, bytes]], path: Path, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for info, data in members:
            info.size = len(data) if info.isreg() else 0
            tar.addfile(info, io.BytesIO(data))
    return path


def _members(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as tar:
        return [(member, tar.extractfile(member).read()) for member in tar]  # type: ignore[union-attr]


def _hostile(kind: str, members: list[tuple[tarfile.TarInfo, bytes]]) -> list[tuple[tarfile.TarInfo, bytes]]:
    index = json.loads(members[0][1])
    extra = tarfile.TarInfo("files/x")
    if kind in ("../x", "/etc/x", "files/../../x", "files/.hidden", "files/a\\b", "files/" + "x" * 200):
        extra.name = kind
        index["files"][kind] = [1, digest(b"x")]
    elif kind == "link":
        extra.type, extra.linkname = tarfile.SYMTYPE, "/etc/passwd"
    elif kind == "hard link":
        extra.type, extra.linkname = tarfile.LNKTYPE, "record.json"
    elif kind == "device":
        extra.type = tarfile.CHRTYPE
    elif kind == "folder":
        extra.type = tarfile.DIRTYPE
    elif kind == "unlisted":
        pass
    elif kind == "twice":
        return [*members, members[-1]]
    elif kind == "flipped":
        info, data = members[-1]
        return [*members[:-1], (info, data[:-1] + bytes([data[-1] ^ 1]))]
    elif kind == "cut":
        return members[:-1]
    elif kind == "no index":
        return members[1:]
    elif kind == "bomb":
        index["files"]["files/x"] = [1 << 50, "sha256:0"]
    elif kind == "named":
        index["run"] = "../../etc"
    elif kind == "other run":
        index["run"] = "two"
    elif kind == "extra column":
        record = json.loads(members[1][1])
        record["run"]["lease_owner; DROP TABLE run"] = "x"
        data = json.dumps(record).encode()
        index["files"]["record.json"] = [len(data), digest(data)]
        members = [members[0], (members[1][0], data), *members[2:]]
    elif kind == "wrong type":
        record = json.loads(members[1][1])
        record["segment"][0]["first_step"] = "x"
        data = json.dumps(record).encode()
        index["files"]["record.json"] = [len(data), digest(data)]
        members = [members[0], (members[1][0], data), *members[2:]]
    more = [] if kind in ("named", "other run", "extra column", "wrong type", "bomb") else [(extra, b"x")]
    return [(members[0][0], json.dumps(index).encode()), *members[1:], *more]


def test_a_hostile_bundle_leaves_nothing(store: Store, trained: Any, tmp_path: Path) -> None:
    bundle.export(store, trained("one"), tmp_path / "a.tar")
    other = Store.open(None, tmp_path / "other")
    kinds = ("../x", "/etc/x", "files/../../x", "files/.hidden", "files/a\\b", "files/" + "x" * 200, "link", "hard link",
             "device", "folder", "unlisted", "twice", "flipped", "cut", "no index", "bomb", "named", "other run",
             "extra column", "wrong type")  # fmt: skip
    for kind in kinds:
        path = _packed(_hostile(kind, _members(tmp_path / "a.tar")), tmp_path / "bad.tar")
        with pytest.raises((DataError, ConfigError)):
            bundle.take_in(other, path)
        assert other.runs() == [] and list(other.runs_folder.iterdir()) == [], kind
    zipped = _packed(_members(tmp_path / "a.tar"), tmp_path / "bad.tar.gz", "w:gz")
    (tmp_path / "short.tar").write_bytes((tmp_path / "a.tar").read_bytes()[:5000])
    (tmp_path / "none.tar").write_bytes(b"")
    for path in (zipped, tmp_path / "short.tar", tmp_path / "none.tar"):
        with pytest.raises(DataError):
            bundle.take_in(other, path)
    assert not (tmp_path / "x").exists() and other.runs() == []
    assert bundle.take_in(other, tmp_path / "a.tar").id == "one"
    other.close()


def test_metrics_as_a_file(store: Store, trained: Any, tmp_path: Path) -> None:
    run = trained("one")
    again = store.start_segment(run, first_step=1)
    store.add_metrics(run, again, 1, {"spike": 3.0, "=cmd": 1.0})
    made = store.read(lambda c: points.table(c, run.pk))
    for name in ("a", "b"):
        points.write_parquet(made, tmp_path / f"{name}.parquet")
        points.write_csv(store.read(lambda c: points.table(c, run.pk)), tmp_path / f"{name}.csv")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    spikes = [row for row in made.to_pylist() if row["name"] == "spike"]
    assert [(r["segment"], r["step"], r["value"], r["canonical"]) for r in spikes] == [
        (0, 0, 1e22, True), (0, 1, 1e22, False), (1, 1, 3.0, True),
    ]  # fmt: skip
    text = (tmp_path / "a.csv").read_text()
    assert text.startswith("segment,stage,step,name,value,at,canonical\n") and ",'=cmd,1.0," in text


def test_the_environment_of_a_repository(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@y", *words], check=True,
                       capture_output=True)  # fmt: skip

    git("init", "-q")
    (tmp_path / "rule.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-qm", "x")
    clean = environment.describe(tmp_path, package=tmp_path)
    assert len(clean.git_commit) == 40 and clean.patch == b""
    (tmp_path / "rule.py").write_text("a = 2\n")
    (tmp_path / "new.py").write_text("b = 1\n")
    (tmp_path / "data.bin").write_bytes(b"\x00")
    dirty = environment.describe(
        tmp_path, package=tmp_path, argv=["jurat", "--api-key=hush", "postgresql://u:p@h/d", "API_TOKEN=1"]
    )
    assert b"+a = 2" in dirty.patch and b"b = 1" in dirty.patch and b"data.bin" not in dirty.patch
    assert dirty.digest != clean.digest
    assert dirty.attrs["argv"] == [
        "jurat",
        "--api-key=[redacted]",
        "postgresql://[redacted]@h/d",
        "API_TOKEN=[redacted]",
    ]
    (tmp_path / "key.py").write_text("-----BEGIN RSA PRIVATE KEY-----")
    secret = environment.describe(tmp_path, package=tmp_path)
    assert (secret.patch, secret.attrs["patch_left_out"]) == (b"", "it holds a private key")


def test_jurat_s_own_code_is_known_from_any_folder(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(package.parent), "-c", "user.name=x", "-c", "user.email=x@y", *words],
                       check=True, capture_output=True)  # fmt: skip

    package, project = tmp_path / "clone/jurat", tmp_path / "elsewhere"
    (tmp_path / "clone/room").mkdir(parents=True)
    package.mkdir()
    project.mkdir()
    (package / "__init__.py").write_text("")
    (package / "room").symlink_to("../room")
    (tmp_path / "clone/room/code.py").write_text("a = 1\n")
    installed = environment.describe(project, package=package)
    assert (installed.git_commit, installed.patch) == ("", b"")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "x")
    clean = environment.describe(project, package=package)
    assert len(clean.git_commit) == 40 and clean.patch == b""
    assert clean.attrs["jurat"]["files"] == installed.attrs["jurat"]["files"]
    (tmp_path / "clone/room/code.py").write_text("a = 2\n")
    dirty = environment.describe(project, package=package)
    assert b"+a = 2" in dirty.patch and dirty.digest != clean.digest
    assert dirty.attrs["jurat"]["files"] != clean.attrs["jurat"]["files"]
