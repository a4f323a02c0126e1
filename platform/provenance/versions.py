"""Verifiers, rewards, data sets, models and environments by digest: registered, looked up, quarantined. All SQL of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from jurat.platform.canonical import digest
from jurat.platform.db import tables as t
from jurat.platform.db.chunks import chunks
from jurat.platform.db.clock import now
from jurat.platform.db.insert import insert_new
from jurat.platform.errors import ConfigError, NameTaken, nearest
from jurat.platform.identity.rewards import SCHEMA, labels, reward_digest
from jurat.platform.provenance import blobs, edges
from jurat.platform.provenance.records import Edge, Ingredients, Node, Observation, VerifierFacts, Version

STATUSES = ("active", "deprecated", "quarantined")
_v, _n, _rel = t.verifier_version.c, t.verifier.c, t.verifier_release.c
_NAMED = re.compile(r"(?P<name>.+?)(?:@v?(?P<ordinal>\d+))?")


# ---- verifiers ---------------------------------------------------------------------------------------------------


def register(connection: sa.Connection, facts: VerifierFacts) -> int:
    """The version is there, and it is a release of the verifier's name: the release's number, from 1. Facts of a version
    never change; one that an older schema knew by its digest alone, or that came with another home's run, is filled in."""
    at = now(connection)
    row = {
        "digest": facts.digest, "version": t.visible(facts.version), "code": facts.code, "config": facts.config,
        "deps": dict(facts.deps), "weights": facts.weights, "abi": facts.abi, "args": dict(facts.args),
        "source": None if facts.sources is None else blobs.put_json(connection, dict(facts.sources)),
        "deterministic": int(facts.deterministic), "status": "active", "status_reason": "", "created": at,
    }  # fmt: skip
    known = connection.execute(sa.select(_v.code).where(_v.digest == facts.digest)).first()
    if known is None:
        insert_new(connection, t.verifier_version, [row])
    elif not known.code and facts.code:
        kept = ("digest", "status", "status_reason", "created")
        filled = {key: value for key, value in row.items() if key not in kept}
        connection.execute(
            sa.update(t.verifier_version).where(_v.digest == facts.digest, _v.code == "").values(**filled)
        )
    insert_new(connection, t.verifier, [{"name": t.visible(facts.name), "kind": facts.kind, "created": at}])
    pk = connection.execute(sa.select(_n.pk).where(_n.name == t.visible(facts.name)).with_for_update()).scalar_one()
    here = connection.execute(
        sa.select(_rel.ordinal).where(_rel.verifier_pk == pk, _rel.version_digest == facts.digest)
    ).scalar()
    if here is not None:
        return int(here)
    last = connection.execute(sa.select(sa.func.max(_rel.ordinal)).where(_rel.verifier_pk == pk)).scalar() or 0
    connection.execute(
        sa.insert(t.verifier_release).values(verifier_pk=pk, ordinal=last + 1, version_digest=facts.digest)
    )
    return int(last) + 1


def unknown(connection: sa.Connection, digests: Sequence[str]) -> set[str]:
    """Those whose canonical source the store has not, or has from another home alone."""
    found = sa.select(_v.digest).where(_v.digest.in_(digests), _v.source.is_not(None), _v.code != "")
    return set(digests) - set(connection.execute(found).scalars())


def version(connection: sa.Connection, named: str) -> Version:
    """By digest, by its beginning (8 hexadecimal digits at least), by ``name@7`` or ``name`` (the newest release).

    Raises ConfigError naming the nearest.
    """
    if re.fullmatch(r"sha256:[0-9a-f]{8,64}", named):
        found = list(connection.execute(sa.select(_v.digest).where(_v.digest.startswith(named)).limit(2)).scalars())
    else:
        parsed = _NAMED.fullmatch(named)
        name, ordinal = (parsed["name"], parsed["ordinal"]) if parsed else (named, None)
        query = sa.select(_rel.version_digest).join(t.verifier, _n.pk == _rel.verifier_pk).where(_n.name == name)
        if ordinal is not None:
            query = query.where(_rel.ordinal == min(int(ordinal), 2**62))
        found = list(connection.execute(query.order_by(_rel.ordinal.desc()).limit(1)).scalars())
    if len(found) == 1:
        return _versions(connection, _v.digest == found[0])[0]
    what = f"several versions begin with {named!r}" if found else f"no verifier version {named!r}"
    known = [] if found else list(connection.execute(sa.select(_n.name)).scalars())
    raise ConfigError(
        f"{what}.{nearest(named, known)}", where="verifier version",
        fix="give NAME, NAME@NUMBER or sha256:...; jurat verifiers versions lists them",
    )  # fmt: skip


def versions(
    connection: sa.Connection, name: str | None = None, *, status: str | None = None, limit: int = 1000
) -> list[Version]:
    """Newest first; of one verifier, of one status."""
    condition: list[sa.ColumnElement[bool]] = []
    if name is not None:
        of = sa.select(_rel.version_digest).join(t.verifier, _n.pk == _rel.verifier_pk).where(_n.name == name)
        condition.append(_v.digest.in_(of))
    if status is not None:
        condition.append(_v.status == status)
    return _versions(connection, *condition, limit=limit)


def versions_of(connection: sa.Connection, digests: Sequence[str]) -> list[Version]:
    return _versions(connection, _v.digest.in_(digests))


def _versions(connection: sa.Connection, *where: sa.ColumnElement[bool], limit: int = 1000) -> list[Version]:
    rows = connection.execute(
        sa.select(t.verifier_version).where(*where).order_by(_v.created.desc(), _v.digest).limit(limit)
    ).mappings().all()  # fmt: skip
    names: dict[str, list[str]] = {}
    query = sa.select(_rel.version_digest, _n.name, _rel.ordinal).join(t.verifier, _n.pk == _rel.verifier_pk)
    for some in chunks([row["digest"] for row in rows]):
        for found in connection.execute(query.where(_rel.version_digest.in_(some)).order_by(_n.name, _rel.ordinal)):
            names.setdefault(found.version_digest, []).append(f"{found.name}@{found.ordinal}")
        m, bare = t.reward_member.c, [each for each in some if each not in names]
        used = sa.select(m.version_digest, m.verifier).where(m.version_digest.in_(bare)).distinct().order_by(m.verifier)
        for taken in connection.execute(used) if bare else ():
            names.setdefault(taken.version_digest, []).append(taken.verifier)
    kept = [name for name in Version.__slots__ if name not in ("names", "deterministic")]
    return [
        Version(
            **{key: row[key] for key in kept}, names=tuple(names.get(row["digest"], ())),
            deterministic=bool(row["deterministic"]),
        )
        for row in rows
    ]  # fmt: skip


def sources(connection: sa.Connection, found: Version) -> Mapping[str, str] | None:
    """Canonical source by place; None where the store has it not."""
    made: Mapping[str, str] | None = blobs.get_json(connection, found.source)
    return made


def set_status(connection: sa.Connection, named: str, status: str, reason: str, *, by: str = "") -> None:
    """Deprecate, quarantine, or put right again. Raises ConfigError for an unknown status or version."""
    if status not in STATUSES:
        raise ConfigError(
            f"no status is called {status!r}.{nearest(status, STATUSES)}", where="status", fix=", ".join(STATUSES)
        )
    connection.execute(
        sa.update(t.verifier_version)
        .where(_v.digest == version(connection, named).digest)
        .values(status=status, status_reason=t.visible(reason), status_at=now(connection), status_by=t.visible(by))
    )


def quarantined(connection: sa.Connection, digests: Sequence[str]) -> list[Version]:
    """Those of these versions that nothing may be trained with."""
    return _versions(connection, _v.digest.in_(digests), _v.status == "quarantined")


# ---- behaviour ---------------------------------------------------------------------------------------------------


def behaviour(vector: Sequence[tuple[str, str, float | None]]) -> str:
    """The digest of what a verifier said of the cases that it decided."""
    return digest(
        {"schema": 1, "kind": "behaviour", "vector": sorted([list(row) for row in vector], key=lambda r: r[0])}
    )


def observe(connection: sa.Connection, seen: Observation, *, environment: str, run_id: str = "") -> None:
    row = {
        "version_digest": seen.version_digest, "environment_digest": environment, "canary_digest": seen.canary_digest,
        "behaviour_digest": behaviour(seen.vector), "cases": len(seen.vector) + seen.errors + seen.timeouts,
        "scored": len(seen.vector), "errors": seen.errors, "timeouts": seen.timeouts, "seen_at": now(connection),
        "run_id": run_id, "vector": blobs.put_json(connection, [list(case) for case in seen.vector]),
    }  # fmt: skip
    connection.execute(sa.insert(t.verifier_observation).values(**row))


def observations(connection: sa.Connection, version_digest: str, *, limit: int = 100) -> list[dict[str, Any]]:
    """Newest first, as rows of the table."""
    o = t.verifier_observation.c
    query = (
        sa.select(t.verifier_observation).where(o.version_digest == version_digest).order_by(o.pk.desc()).limit(limit)
    )
    return [dict(row) for row in connection.execute(query).mappings()]


def changed_behaviour(connection: sa.Connection, seen: Observation) -> list[str]:
    """The cases of which the same version said something else when it was last asked about the same set: one line each.

    A case that either time was not decided is no change, and one that is known to contradict itself changes nothing. What
    a run of another home says was seen counts only where nothing was seen here.
    """
    o = t.verifier_observation.c
    if not connection.execute(sa.select(_v.deterministic).where(_v.digest == seen.version_digest)).scalar():
        return []
    told = (
        sa.select(o.behaviour_digest, o.vector, t.run.c.meta)
        .outerjoin(t.run, t.run.c.id == o.run_id)
        .where(o.version_digest == seen.version_digest, o.canary_digest == seen.canary_digest)
        .order_by(o.pk.desc())
    )
    rows = connection.execute(told).all()
    last = next((row for row in rows if not (row.meta or {}).get("imported")), rows[0] if rows else None)
    if last is None or last.behaviour_digest == behaviour(seen.vector):
        return []
    before = {row[0]: (row[1], row[2]) for row in blobs.get_json(connection, last.vector) or []}
    return [
        f"case {case}: {_said(*before[case])} before, {_said(status, score)} now"
        for case, status, score in seen.vector
        if case in before and before[case] != (status, score)
    ]


def doubt(connection: sa.Connection, version_digest: str) -> None:
    """It contradicted itself: it does not count as deterministic, whatever its author says."""
    connection.execute(sa.update(t.verifier_version).where(_v.digest == version_digest).values(deterministic=0))


def _said(status: str, score: float | None) -> str:
    return status if score is None else f"{status} {score:g}"


# ---- all that a segment is made of -------------------------------------------------------------------------------


def record(connection: sa.Connection, run_id: str, segment: int, made_of: Ingredients) -> dict[str, str | None]:
    """Register everything and join it to the segment; the columns of ``segment`` that name it."""
    here = edges.segment_node(run_id, segment)
    at = now(connection)
    joins = [Edge(src=here, dst=Node(kind="run", id=run_id), role="segment", run_id=run_id)]
    for facts in made_of.verifiers:
        register(connection, facts)
    _reward(connection, made_of, at)
    reward = Node(kind="reward_spec", id=made_of.reward)
    for facts in made_of.verifiers:
        used = Node(kind="verifier_version", id=facts.digest)
        joins.append(Edge(src=used, dst=reward, role=t.visible(f"member:{facts.label}")))
    joins.append(Edge(src=reward, dst=here, role="reward", run_id=run_id))
    for part, manifest in made_of.datasets.items():
        insert_new(connection, t.dataset_version, [_dataset_row(manifest, at)])
        joins.append(Edge(src=Node(kind="dataset_version", id=manifest["digest"]), dst=here, role=part, run_id=run_id))
    if made_of.model:
        register_model(connection, made_of.model, made_of.model_name, made_of.model_files)
        joins.append(Edge(src=Node(kind="model_version", id=made_of.model), dst=here, role="base", run_id=run_id))
    found = made_of.environment
    if found is not None:
        patch = blobs.put(connection, found.patch, "text/x-patch") if found.patch else None
        row = {"digest": found.digest, "attrs": dict(found.attrs), "git_commit": found.git_commit, "created": at}
        insert_new(connection, t.environment, [{**row, "patch": patch}])
        joins.append(Edge(src=Node(kind="environment", id=found.digest), dst=here, role="environment", run_id=run_id))
    if made_of.from_checkpoint:
        begun = Node(kind="checkpoint", id=made_of.from_checkpoint)
        joins.append(Edge(src=begun, dst=here, role="began", run_id=run_id))
    for seen in made_of.observations:
        observe(connection, seen, environment=found.digest if found else "", run_id=run_id)
    edges.add(connection, joins)
    return {
        "environment_digest": found.digest if found else None, "model_digest": made_of.model or None,
        "from_checkpoint": made_of.from_checkpoint or None,
    }  # fmt: skip


def _reward(connection: sa.Connection, made_of: Ingredients, at: int) -> None:
    """What this process found is the reward: members of the same digest that came with another home's run go."""
    m, e = t.reward_member.c, t.edge.c
    members = [
        {"reward_digest": made_of.reward, "position": place, "label": t.visible(f.label), "verifier": t.visible(f.name),
         "version_digest": f.digest, "role": f.role, "weight": f.weight}
        for place, f in enumerate(made_of.verifiers)
    ]  # fmt: skip
    spec = {"digest": made_of.reward, "spec": dict(made_of.spec), "created": at}
    insert_new(connection, t.reward_spec, [spec])
    known = sa.select(t.reward_member).where(m.reward_digest == made_of.reward).order_by(m.position)
    there = [dict(row) for row in connection.execute(known).mappings()]
    if there == members:
        return
    if there:
        connection.execute(
            sa.update(t.reward_spec).where(t.reward_spec.c.digest == made_of.reward).values(spec=spec["spec"])
        )
        connection.execute(sa.delete(t.reward_member).where(m.reward_digest == made_of.reward))
        connection.execute(sa.delete(t.edge).where(e.dst_kind == "reward_spec", e.dst == made_of.reward))
    insert_new(connection, t.reward_member, members)


def unlike(connection: sa.Connection, reward: str) -> str:
    """What the store says of a reward that is not what its digest says; '' if all is as it was, or of schema 1."""
    m = t.reward_member.c
    spec = connection.execute(sa.select(t.reward_spec.c.spec).where(t.reward_spec.c.digest == reward)).scalar()
    if not isinstance(spec, dict) or spec.get("schema") != SCHEMA:
        return ""
    rows = connection.execute(sa.select(t.reward_member).where(m.reward_digest == reward).order_by(m.position)).all()
    found = reward_digest(spec, [(row.label, row.verifier, row.version_digest) for row in rows])
    if found != reward:
        return f"its members and their versions make {found[:19]}..."
    said = dict(zip(labels([member["use"] for member in spec["members"]]), spec["members"], strict=True))
    for row in rows:
        member = said.get(row.label) or said["problem"]
        if (row.role, float(row.weight)) != (member["role"], float(member["weight"])):
            return f"role and weight of member {row.label} are not those of its spec"
    return ""


def _dataset_row(manifest: Mapping[str, Any], at: int) -> dict[str, Any]:
    return {
        "digest": manifest["digest"], "name": t.visible(str(manifest.get("source", ""))),
        "split": t.visible(str(manifest.get("split", ""))), "rows": int(manifest.get("rows", 0)),
        "manifest": dict(manifest), "created": at,
    }  # fmt: skip


def register_dataset(connection: sa.Connection, manifest: Mapping[str, Any]) -> None:
    """``manifest``: as of ``datasets.manifest``. Facts of a version never change: raises NameTaken where others are known."""
    row, d = _dataset_row(manifest, now(connection)), t.dataset_version.c
    insert_new(connection, t.dataset_version, [row])
    known = connection.execute(sa.select(t.dataset_version).where(d.digest == row["digest"])).mappings().one()
    if wrong := [key for key in ("name", "split", "rows") if known[key] != row[key]]:
        raise NameTaken(
            f"this digest is registered with {wrong[0]} {known[wrong[0]]!r}, not {row[wrong[0]]!r}", where=row["digest"],
            fix="a version's digest is over its problems: register what they make",
        )  # fmt: skip


def register_model(connection: sa.Connection, named: str, name: str, files: Mapping[str, str]) -> None:
    """``named``: the digest over ``files``, relative path -> sha256."""
    row = {"digest": named, "name": t.visible(name), "manifest": dict(files), "created": now(connection)}
    insert_new(connection, t.model_version, [row])


def exported(
    connection: sa.Connection, run_id: str, checkpoint: str, model: str, name: str, files: Mapping[str, str]
) -> None:
    """A checkpoint's weights are a model now, by the digest that a run finds for its folder: what learns from it is a child."""
    register_model(connection, model, name, files)
    made = Node(kind="export", id=model)
    edges.add(connection, [
        Edge(src=Node(kind="checkpoint", id=checkpoint), dst=made, role="exported", run_id=run_id),
        Edge(src=made, dst=Node(kind="model_version", id=model), role="weights", run_id=run_id),
    ])  # fmt: skip


def forked(connection: sa.Connection, run_id: str, parent_run: str, from_checkpoint: str | None) -> None:
    """A run begins from another's checkpoint."""
    child = Node(kind="run", id=run_id)
    joins = [Edge(src=Node(kind="run", id=parent_run), dst=child, role="parent", run_id=run_id)]
    if from_checkpoint:
        joins.append(Edge(src=Node(kind="checkpoint", id=from_checkpoint), dst=child, role="forked", run_id=run_id))
    edges.add(connection, joins)
