"""Where a thing came from, what came of it, and what differs between two: walks along the edges, with facts of each node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from jurat.platform.db import tables as t
from jurat.platform.db.chunks import chunks
from jurat.platform.errors import ConfigError, DataError
from jurat.platform.provenance import drift, edges, folders, versions
from jurat.platform.provenance.records import Edge, Node
from jurat.platform.runs.disk import opened
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.search import flattened
from jurat.platform.types import CheckpointRef

MAX_NODES = 10_000
"""Of one walk."""
NO_WEIGHTS = "weights_left_out"
"""In the ``meta`` of a run that was taken in from a bundle without tensors."""
_HOW_RUNS_ARE_NAMED = "parent"
"""The edge that says which run another was forked from: the weights go by its checkpoint, not by it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Walk:
    """Everything reached from ``roots``, the roots first, then level by level."""

    roots: tuple[Node, ...]
    nodes: Mapping[Node, Mapping[str, Any]]
    """With the facts of each, as JSON."""
    edges: tuple[Edge, ...]
    cut: bool
    """Whether there is more than was asked for."""


def walk(
    connection: sa.Connection, roots: Sequence[Node], direction: Literal["back", "forward"], *, depth: int = 100
) -> Walk:
    """``back``: what the roots were made of. ``forward``: what was made of them."""
    seen, found = dict.fromkeys(roots), dict[Edge, None]()
    level, cut = list(roots), False
    for _ in range(depth):
        if not level:
            break
        step = edges.into(connection, level) if direction == "back" else edges.out_of(connection, level)
        level = []
        for edge in step:
            if direction == "forward" and edge.role == _HOW_RUNS_ARE_NAMED:
                continue
            found[edge] = None
            node = edge.src if direction == "back" else edge.dst
            if node not in seen:
                if len(seen) >= MAX_NODES:
                    cut = True
                    continue
                seen[node] = None
                level.append(node)
    nodes = facts(connection, list(seen))
    return Walk(roots=tuple(roots), nodes=nodes, edges=tuple(found), cut=cut or bool(level))


def made_of(connection: sa.Connection, run: RunInfo) -> Walk:
    """Back from all segments of a run, which are the roots, in order."""
    s = t.segment.c
    numbers = connection.execute(sa.select(s.no).where(s.run_pk == run.pk).order_by(s.no)).scalars()
    return walk(connection, [edges.segment_node(run.id, no) for no in numbers], "back")


# ---- nodes -------------------------------------------------------------------------------------------------------


def resolve(connection: sa.Connection, named: str) -> Node:
    """The node of that name: a path of a checkpoint (copied or renamed too: it is known by what is in it), a digest, a
    segment ``RUN/NO``, a run, a verifier ``NAME@7``. Raises ConfigError or DataError."""
    if ("/" in named or Path(named).is_dir()) and (Path(named) / "manifest.json").is_file():
        return _of_folder(connection, Path(named))
    if Path(named).is_dir() and (Path(named).absolute().parent / "manifest.json").is_file():  # its policy/, say
        return _of_folder(connection, Path(named).absolute().parent)
    if match := re.fullmatch(r"(.+)/(\d+)", named):
        c = t.segment.c
        query = sa.select(t.run.c.id).join(t.segment, c.run_pk == t.run.c.pk)
        if connection.execute(query.where(t.run.c.id == match[1], c.no == min(int(match[2]), 2**31))).first():
            return Node(kind="segment", id=named)
    if re.fullmatch(r"sha256:[0-9a-f]{8,64}", named):
        found = {node for kind, column in _DIGESTS.items() for node in _beginning(connection, kind, column, named)}
        if len(found) == 1:
            return found.pop()
        if found:
            raise ConfigError(f"{len(found)} things begin with {named}", where=named, fix="give more of the digest")
        raise ConfigError(
            "nothing in the record has this digest", where=named, fix="jurat runs show lists those of a run"
        )
    for kind, column in (("run", t.run.c.id), ("rescore", t.rescore.c.id)):
        if connection.execute(sa.select(column).where(column == named)).first() is not None:
            return Node(kind=kind, id=named)
    if Path(named).is_dir():
        raise ConfigError(
            f"{named} is no checkpoint's folder and no segment of a run", where=named,
            fix="a copied run's folder: jurat runs verify|export COPY; an exported model: the checkpoint it came from",
        )  # fmt: skip
    try:
        return Node(kind="verifier_version", id=versions.version(connection, named).digest)
    except ConfigError as error:
        raise ConfigError(
            f"no run of that name, and {error.what}", where=named,
            fix="give a run, RUN/SEGMENT, NAME@NUMBER, a digest or a checkpoint's folder; a rollout's id with --run RUN",
        ) from None  # fmt: skip


_DIGESTS: Mapping[str, sa.Column[Any]] = {
    "checkpoint": t.checkpoint.c.digest, "verifier_version": t.verifier_version.c.digest,
    "reward_spec": t.reward_spec.c.digest, "dataset_version": t.dataset_version.c.digest,
    "model_version": t.model_version.c.digest, "environment": t.environment.c.digest,
}  # fmt: skip


def _beginning(connection: sa.Connection, kind: str, column: sa.Column[Any], named: str) -> list[Node]:
    query = sa.select(column).where(column.startswith(named)).distinct().limit(2)
    return [Node(kind=kind, id=found) for found in connection.execute(query).scalars()]


def _of_folder(connection: sa.Connection, path: Path) -> Node:
    digest = folders.file_digest(path / "manifest.json")
    if connection.execute(sa.select(t.checkpoint.c.pk).where(t.checkpoint.c.digest == digest)).first() is None:
        raise DataError(
            f"no run recorded a checkpoint with digest {digest}",
            where=str(path),
            fix="its manifest.json was changed, or it is of another home: --home or --database names that",
        )
    if wrong := damaged(path):
        raise DataError(f"the checkpoint is not what was recorded: {wrong}", where=str(path), fix="copy it again")
    return Node(kind="checkpoint", id=digest)


def damaged(path: Path, *, without_weights: bool = False) -> str:
    """What is wrong with a checkpoint's folder by its own manifest; '' if every file is as it says. ``without_weights``:
    tensors may be absent, as from a bundle that left them out."""
    try:
        with opened(path / "manifest.json") as file:
            files = dict(json.loads(file.read())["files"])
        for name, wanted in sorted(files.items()):
            if Path(name).is_absolute() or ".." in Path(name).parts:
                return f"manifest.json names {name!r}, outside the folder"
            if without_weights and name.endswith(".safetensors") and not (path / name).exists():
                continue
            found = folders.file_digest(path / name)
            if found != wanted:
                return f"{name}: its digest is {found[:19]}..., the manifest says {str(wanted)[:19]}..."
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"manifest.json cannot be read: {error}"
    return ""


def facts(connection: sa.Connection, nodes: Sequence[Node]) -> dict[Node, Mapping[str, Any]]:
    """What the record says of each node, as JSON; empty for one that it only names."""
    by_kind: dict[str, list[str]] = {}
    for node in nodes:
        by_kind.setdefault(node.kind, []).append(node.id)
    told: dict[Node, Mapping[str, Any]] = {}
    for kind, ids in by_kind.items():
        for some in chunks(ids):
            told |= {Node(kind=kind, id=name): said for name, said in _FACTS[kind](connection, some)}
    return {node: told.get(node, {}) for node in nodes}


def _rows(table: sa.Table, key: sa.Column[Any], *columns: str) -> Any:
    def read(connection: sa.Connection, ids: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
        query = sa.select(*(table.c[name] for name in columns), key.label("node_id")).where(key.in_(ids))
        return [(row["node_id"], {name: row[name] for name in columns}) for row in connection.execute(query).mappings()]

    return read


def _versions(connection: sa.Connection, ids: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    found = versions.versions_of(connection, ids)
    return [
        (v.digest, {"names": list(v.names), "version": v.version, "status": v.status, "status_reason": v.status_reason,
                    "deps": dict(v.deps), "args": dict(v.args), "source": v.source})
        for v in found
    ]  # fmt: skip


def _segments(connection: sa.Connection, ids: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    s, columns = t.segment.c, ("stage", "first_step", "to_step", "started", "ended", "ending", "host", "epoch")
    places = [(run, int(no)) for run, _, no in (each.rpartition("/") for each in ids)]
    query = (
        sa.select(t.run.c.id, s.no, *(s[name] for name in columns))
        .join(t.run, t.run.c.pk == s.run_pk)
        .where(t.run.c.id.in_({run for run, _ in places}))
    )
    wanted = set(ids)
    rows = [(f"{row['id']}/{row['no']}", row) for row in connection.execute(query).mappings()]
    return [(name, {column: row[column] for column in columns}) for name, row in rows if name in wanted]


def _checkpoints(connection: sa.Connection, ids: Sequence[str]) -> list[tuple[str, Mapping[str, Any]]]:
    """As the first run says that has it, one of this home before one that was imported; with ``runs`` if several have."""
    c = t.checkpoint.c
    query = (
        sa.select(t.run.c.id, c.segment, c.step, c.path, c.digest, c.meta, c.at, t.run.c.meta.label("of_run"))
        .join(t.run, t.run.c.pk == c.run_pk)
        .where(c.digest.in_(ids))
        .order_by(c.pk)
    )
    found: dict[str, list[Any]] = {}
    for row in sorted(connection.execute(query), key=_foreign):
        found.setdefault(row.digest, []).append(row)
    out: list[tuple[str, Mapping[str, Any]]] = []
    for digest, rows in found.items():
        row, runs = rows[0], list(dict.fromkeys(each.id for each in rows))
        said = {"run": row.id, "segment": row.segment, "step": row.step, "path": row.path, "at": row.at,
                "seed": row.meta.get("seed"), "cursor": cursor(Path(row.path))}  # fmt: skip
        out.append((digest, {**said, "runs": runs} if len(runs) > 1 else said))
    return out


def _foreign(row: Any) -> bool:
    return bool(row.of_run.get("imported"))


def whole_checkpoint(connection: sa.Connection, digest: str) -> CheckpointRef:
    """A recorded checkpoint, by its digest, at a place where it is whole. Raises DataError where it is at none."""
    c, wrong = t.checkpoint.c, "no run recorded it"
    query = sa.select(t.checkpoint, t.run.c.meta.label("of_run")).join(t.run, t.run.c.pk == c.run_pk)
    rows = connection.execute(query.where(c.digest == digest).order_by(c.pk.desc())).all()
    for row in (each._mapping for each in sorted(rows, key=_foreign)):
        manifest = Path(row["path"]) / "manifest.json"
        if not manifest.is_file():
            wrong = "its folder is gone"
        elif folders.file_digest(manifest) != digest:
            wrong = "another has taken its place"
        elif not (fault := damaged(manifest.parent)):
            return CheckpointRef(**{key: row[key] for key in CheckpointRef.__slots__})
        else:
            wrong = fault
    raise DataError(
        f"checkpoint {digest[:19]}... is not here whole: {wrong}", where=digest,
        fix="jurat runs show RUN lists those that are kept",
    )  # fmt: skip


def cursor(path: Path) -> Any:
    """Where in its data a checkpoint stands; None where its folder is not there."""
    try:
        with opened(path / "state.json") as file:
            state = json.loads(file.read())
        return state["source"]["source"]["problems"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


_FACTS: Mapping[str, Any] = {
    "run": _rows(
        t.run, t.run.c.id, "name", "state", "created", "ended", "recipe_digest", "parent_run", "from_checkpoint"
    ),
    "segment": _segments,
    "checkpoint": _checkpoints,
    "verifier_version": _versions,
    "reward_spec": _rows(t.reward_spec, t.reward_spec.c.digest, "spec"),
    "dataset_version": _rows(t.dataset_version, t.dataset_version.c.digest, "name", "split", "rows"),
    "model_version": _rows(t.model_version, t.model_version.c.digest, "name"),
    "environment": _rows(t.environment, t.environment.c.digest, "git_commit", "patch"),
    "export": lambda connection, ids: [],
    "rescore": _rows(t.rescore, t.rescore.c.id, "from_version", "to_version", "state", "verdict", "created"),
    "data_part": _rows(t.data_part, t.data_part.c.digest, "kind", "rows", "step_min", "step_max"),
}


# ---- uses and taint ----------------------------------------------------------------------------------------------


def uses(connection: sa.Connection, node: Node) -> list[dict[str, Any]]:
    """Runs with a segment that was made of the node directly or, for a verifier, through a reward: newest first."""
    s, m, e = t.segment.c, t.reward_member.c, t.edge.c
    query = sa.select(t.run.c.id, t.run.c.name, t.run.c.state, t.run.c.created, sa.func.count().label("segments"))
    query = query.join(t.segment, s.run_pk == t.run.c.pk)
    if node.kind == "verifier_version":
        rewards = sa.select(m.reward_digest).where(m.version_digest == node.id)
        query = query.where(s.reward_digest.in_(rewards))
    elif node.kind == "reward_spec":
        query = query.where(s.reward_digest == node.id)
    else:
        place = sa.func.concat(t.run.c.id, "/", sa.cast(s.no, sa.Text())) if connection.dialect.name == "postgresql" else (
            t.run.c.id.concat("/").concat(sa.cast(s.no, sa.Text()))
        )  # fmt: skip
        query = query.join(
            t.edge, sa.and_(e.src_kind == node.kind, e.src == node.id, e.dst_kind == "segment", e.dst == place)
        )
    query = query.group_by(t.run.c.id, t.run.c.name, t.run.c.state, t.run.c.created).order_by(t.run.c.created.desc())
    return [dict(row) for row in connection.execute(query).mappings()]


def affected(connection: sa.Connection, node: Node) -> Walk:
    """All that would be tainted if the node is bad: rewards, segments, their checkpoints, what began from these, exports.
    ``cut``: there is more than the walk tells."""
    return walk(connection, [node], "forward", depth=MAX_NODES)


def judged(connection: sa.Connection, version_digest: str) -> list[dict[str, Any]]:
    """How many verdicts a version gave, by run: samples that it scored."""
    v = t.verdict_stat.c
    query = (
        sa.select(t.run.c.id.label("run"), sa.func.sum(v.n).label("verdicts"), sa.func.sum(v.scored).label("scored"),
                  sa.func.min(v.step).label("first_step"), sa.func.max(v.step).label("last_step"))
        .join(t.run, t.run.c.pk == v.run_pk)
        .where(v.version_digest == version_digest)
        .group_by(t.run.c.id)
        .order_by(t.run.c.id)
    )  # fmt: skip
    return [{key: int(value) if key != "run" else value for key, value in row.items()}
            for row in connection.execute(query).mappings()]  # fmt: skip


# ---- two runs ----------------------------------------------------------------------------------------------------


def difference(connection: sa.Connection, a: RunInfo, b: RunInfo) -> dict[str, Any]:
    """What two runs were made of that differs, by kind; empty entries mean equal. Then their last metrics, where they
    differ: with one seed each that is no evidence of anything."""
    one, two = flattened(a.recipe), flattened(b.recipe)
    config = {key: [one.get(key), two.get(key)] for key in sorted({*one, *two}) if one.get(key) != two.get(key)}
    made = [_made_of(connection, run) for run in (a, b)]
    out: dict[str, Any] = {"config": config}
    for kind in ("reward", "dataset_version", "model_version", "environment", "git_commit", "patch"):
        left, right = made[0].get(kind, []), made[1].get(kind, [])
        out[kind] = {} if left == right else {"a": left, "b": right}
    out["packages"] = _packages(connection, made)
    out["verifiers"] = _verifier_difference(connection, made)
    last = [_last(connection, run.pk) for run in (a, b)]
    out["metrics"] = {
        name: [last[0].get(name), last[1].get(name)]
        for name in sorted({*last[0], *last[1]})
        if last[0].get(name) != last[1].get(name)
    }
    return out


def _made_of(connection: sa.Connection, run: RunInfo) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    rows = edges.of_run(connection, run.id)
    for edge in sorted(rows, key=lambda e: (e.role, e.src)):
        if edge.dst.kind == "segment" and edge.src.kind in ("dataset_version", "model_version", "environment"):
            said = f"{edge.role}: {edge.src.id}" if edge.src.kind == "dataset_version" else edge.src.id
            out.setdefault(edge.src.kind, [])
            if said not in out[edge.src.kind]:
                out[edge.src.kind].append(said)
    s = t.segment.c
    rewards = sa.select(s.reward_digest).where(s.run_pk == run.pk).order_by(s.no)
    out["reward"] = list(dict.fromkeys(connection.execute(rewards).scalars()))
    e = t.environment.c
    for row in connection.execute(sa.select(e.git_commit, e.patch).where(e.digest.in_(out.get("environment", [])))):
        out.setdefault("git_commit", []).append(row.git_commit)
        out.setdefault("patch", []).append(row.patch or "")
    return out


def _packages(connection: sa.Connection, made: Sequence[Mapping[str, list[str]]]) -> dict[str, list[Any]]:
    found: list[dict[str, Any]] = []
    for each in made:
        digests = each.get("environment", [])[-1:]
        query = sa.select(t.environment.c.attrs).where(t.environment.c.digest.in_(digests))
        attrs = connection.execute(query).scalar() or {}
        found.append({"python": attrs.get("python"), **attrs.get("packages", {})})
    names = sorted({*found[0], *found[1]})
    return {
        name: [found[0].get(name), found[1].get(name)] for name in names if found[0].get(name) != found[1].get(name)
    }


def _verifier_difference(connection: sa.Connection, made: Sequence[Mapping[str, list[str]]]) -> list[str]:
    m = t.reward_member.c
    members: list[dict[str, str]] = []
    for each in made:
        query = (
            sa.select(m.label, m.version_digest).where(m.reward_digest.in_(each["reward"][-1:])).order_by(m.position)
        )
        members.append({label: digest for label, digest in connection.execute(query)})
    lines: list[str] = []
    for label in sorted({*members[0], *members[1]}):
        left, right = members[0].get(label), members[1].get(label)
        if left == right:
            continue
        lines += [f"- {label}: {left}"] * (left is not None) + [f"+ {label}: {right}"] * (right is not None)
        if left and right:
            texts = [versions.sources(connection, versions.version(connection, d)) or {} for d in (left, right)]
            lines += drift.source_diff(*texts)
    return lines[: drift.MAX_LINES]


def _last(connection: sa.Connection, run_pk: int) -> dict[str, float | None]:
    latest, key = t.metric_latest.c, t.metric_key.c
    query = sa.select(key.name, latest.value).join(t.metric_key, key.pk == latest.key_pk).where(latest.run_pk == run_pk)
    return {
        name: value for name, value in connection.execute(query)
        if not name.startswith(("timeline/", "seconds/", "utilisation/", "queue/"))
    }  # fmt: skip


# ---- can it be done again? ---------------------------------------------------------------------------------------


def gaps(connection: sa.Connection, run: RunInfo, here: Mapping[str, Any]) -> list[str]:
    """What is missing to do a run again with equal numbers, as far as the record tells; the caller adds what it finds
    where data and verifiers are loaded. ``here``: the environment of this process (``attrs`` of ``describe``)."""
    out: list[str] = []
    found = made_of(connection, run)
    if not found.roots:
        return ["no process ever worked on it"]
    out += _changed_midway(connection, run, found.edges)
    exported = {e.src for e in found.edges if e.role == "exported"} - {e.src for e in found.edges if e.role == "began"}
    for node, said in found.nodes.items():
        if node in exported:
            continue  # of it the model is needed alone
        if not said and node.kind != "export":
            out.append(f"{node.kind} {node.id} is not in the record")
        elif node.kind == "verifier_version":
            name = ", ".join(said["names"]) or node.id
            if said["source"] is None:
                out.append(f"the source of verifier {name} was not recorded")
            if said["status"] == "quarantined":
                out.append(f"verifier {name} is quarantined: {said['status_reason'] or 'no reason was given'}")
        elif node.kind == "checkpoint" and not Path(said["path"]).is_dir():
            out.append(f"checkpoint {node.id[:19]}... is not kept any more (checkpoint.keep, jurat gc): {said['path']}")
        elif node.kind == "checkpoint" and (wrong := damaged(Path(said["path"]))):
            out.append(f"checkpoint {node.id[:19]}... at {said['path']}: {wrong}")
    newest = [node.id for node in found.nodes if node.kind == "environment"][-1:]
    attrs = connection.execute(sa.select(t.environment.c.attrs).where(t.environment.c.digest.in_(newest))).scalar()
    if attrs is None:
        return [*out, "its environment was not recorded"]
    if attrs["python"] != here["python"]:
        out.append(f"Python was {attrs['python']}, here it is {here['python']}")
    for name, then in attrs["packages"].items():
        now = here["packages"].get(name)
        if now != then:
            out.append(f"package {name} was {then}, here it is {now or 'absent'}")
    out += _other_code(attrs, here)
    if attrs.get("patch_left_out"):
        out.append(f"changes to commit {attrs['git_commit'][:12]} were not kept: {attrs['patch_left_out']}")
    return out


def _other_code(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Whether jurat's code, and the user's project, are other ones here than were recorded."""
    out = []
    if "jurat" not in then:  # a record of before: there only the folder's own checkout was known
        same = then.get("git_commit") and all(then.get(key) == now.get(key) for key in ("git_commit", "patch"))
        return [] if same else ["which code of jurat ran was not recorded, or is not the one here"]
    was, own = then["jurat"], now["jurat"]
    if was["files"] != own["files"]:
        told = [f"{each['files'][:19]}... (commit {each['git_commit'][:12] or 'unknown'})" for each in (was, own)]
        out.append(f"jurat's own code was {told[0]}, here it is {told[1]}")
    if then["git_commit"] != was["git_commit"] and then["git_commit"] != now["git_commit"]:
        out.append(
            f"the project was at commit {then['git_commit'][:12]}, here it is {now['git_commit'][:12] or 'none'}"
        )
    elif then["patch"] != now["patch"]:
        out.append(f"changes to commit {then['git_commit'][:12] or 'none'} were {then['patch'][:19] or 'none'}, "
                   f"here they are {now['patch'][:19] or 'none'}")  # fmt: skip
    return out


def _changed_midway(connection: sa.Connection, run: RunInfo, joins: Sequence[Edge]) -> list[str]:
    """What differs between segments of one stage: no recipe makes such a run in one piece."""
    s = t.segment.c
    query = sa.select(s.no, s.stage, s.reward_digest).where(s.run_pk == run.pk).order_by(s.no)
    last: dict[str, tuple[int, dict[str, Any]]] = {}
    out: list[str] = []
    for row in connection.execute(query):
        mine = [e for e in joins if e.dst == edges.segment_node(run.id, row.no)]
        made = {
            "reward": row.reward_digest,
            "data": sorted((e.role, e.src.id) for e in mine if e.src.kind == "dataset_version"),
        }
        for kind in ("environment", "model_version"):
            made[kind.partition("_")[0]] = sorted(e.src.id for e in mine if e.src.kind == kind)
        before = last.get(row.stage)
        stage = f" of stage {row.stage}" if row.stage else ""
        for what in made if before else ():
            if before[1][what] != made[what]:  # type: ignore[index]
                out.append(
                    f"segments {before[0]} and {row.no}{stage} differ in their {what}: "  # type: ignore[index]
                    "no one recipe makes the numbers of both"
                )
        last[row.stage] = (row.no, made)
    return out
