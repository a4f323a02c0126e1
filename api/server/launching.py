"""What may be launched over HTTP: a registered recipe by name, with typed overrides that name no file, address or code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from jurat.api import recipes
from jurat.api.server.problems import Problem
from jurat.api.server.shapes import NewRun
from jurat.platform.db import tables as t
from jurat.platform.errors import ConfigError, RunFailed, nearest
from jurat.platform.recipe import Data, Recipe, Source
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store
from jurat.platform.types import VerifierSpec

OPERATORS = (
    "verifiers",
    "tracking",
    "engine.ray",
    "engine.vllm_url",
    "engine.home",
    "engine.pools",
    "engine.placement",
    "name",
    "about",
)
"""Keys that only the operator sets, in a recipe: what they name is run, opened or connected to."""
TEXTS = ("prompt.system", "prompt.prefix", "prompt.suffix")
"""Keys whose values are free texts."""
_NO_NAME = re.compile(r"[/\\\x00-\x1f]|^[.~-]|://|\.(?:py|so|yaml|yml)\Z|__")
_GENERATED = re.compile(r"generated(?::[a-z0-9_-]{1,64})?\Z")
_LOCAL = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
MAX_CONFIG = 200


def registered(folders: Sequence[Path]) -> dict[str, tuple[Path, Path]]:
    """{name: (file, folder that its relative paths start from)} of the recipes that ship and the operator's, who win."""
    found = {name: (path, recipes.base_of(path)) for name, path in recipes.shipped().items()}
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else []:
            if path.suffix in recipes.SUFFIXES and path.is_file():
                found[path.stem] = (path, folder.absolute())
    return found


def resolve(asked: NewRun, folders: Sequence[Path], home: Path, database: str | None) -> tuple[Recipe, Path]:
    """(the recipe of a new run, filled; its base folder). Raises Problem."""
    from jurat.platform.config import load_recipe
    from jurat.trainers.contradictions import refuse_contradictions
    from jurat.trainers.presets import filled

    known = registered(folders)
    if asked.recipe not in known:
        raise _invalid(
            "/recipe", "unknown-recipe", f"no recipe is called {asked.recipe!r}.{nearest(asked.recipe, known)}"
        )
    path, base = known[asked.recipe]
    config = dict(flat(asked.config))
    refuse_paths(config)
    try:
        own = load_recipe(path)
        made = filled(load_recipe(path, config, refuse_contradictions))
    except (ConfigError, TypeError, ValueError, KeyError, AttributeError) as error:
        what = error.what if isinstance(error, ConfigError) else "a key of config has a value of another kind"
        raise _invalid(
            "/config", "bad-config", what.replace(str(path), asked.recipe).replace(str(base), ".")[:2000]
        ) from None
    refuse_foreign(own, made, home)
    return made.model_copy(update={"tracking": made.tracking.model_copy(update={"database": database})}), base


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; a nested mapping sets each of its keys."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{name}.")
        else:
            yield name, value


def refuse_paths(config: Mapping[str, Any]) -> None:
    """Raises Problem for a key that is the operator's, or a text that could name a file, an address or code."""
    if len(config) > MAX_CONFIG:
        raise _invalid("/config", "too-many", f"config may set {MAX_CONFIG} keys")
    for key, value in config.items():
        pointer = "/config/" + key.replace("~", "~0").replace("/", "~1")[:100]
        if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+){0,8}", key):
            raise _invalid(pointer, "bad-key", "a key is words of a recipe, joined by dots")
        if any(key == own or key.startswith(f"{own}.") for own in OPERATORS) or re.match(
            r"stages\.\d+\.(name|about)", key
        ):
            raise _invalid(
                pointer, "operators", f"{key} is set in a recipe by the operator of this service, not over HTTP"
            )
        if key in TEXTS:
            continue
        for text in _texts(value):
            if _NO_NAME.search(text):
                raise _invalid(
                    pointer,
                    "not-a-name",
                    "the value could name a file, an address or code; such are set in a recipe by the operator",
                )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _texts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)


def refuse_foreign(own: Recipe, made: Recipe, home: Path) -> None:
    """Models, data and user files are the recipe's own, or plain names that are here already: nothing is fetched."""
    if made.verifiers != own.verifiers:
        raise _invalid("/config/verifiers", "operators", "verifiers are files of the operator's")
    if made.model != own.model and made.model != "tiny-random":
        if not _LOCAL.match(made.model) or not (home / "models" / made.model / "jurat.json").is_file():
            raise _invalid(
                "/config/model", "unknown-model", "no such model was fetched on this machine (jurat models fetch)"
            )
    kept = set(_sources(own))
    for source in _sources(made):
        if source not in kept and not _GENERATED.match(source):
            raise _invalid("/config/data", "unknown-source", "data is generated, or that of the recipe")


def _sources(recipe: Recipe) -> Iterator[str]:
    for part in (recipe.data, *(stage.data for stage in recipe.stages)):
        if isinstance(part, Data):
            yield from (each.source for each in _sets(part))


def _sets(data: Data) -> Iterator[Source]:
    yield from (each for name in ("train", "held_out", "unseen") if isinstance(each := getattr(data, name), Source))


def refuse_of_a_person(parent: RunInfo, folders: Sequence[Path], home: Path) -> Path | None:
    """Raises Problem for a run that was started at the command line with verifiers, files or addresses that no launch here could
    have named. What it shares with the operator's recipe of its name may stay: then this is the folder that names start from."""
    from jurat.platform.config import load_recipe
    from jurat.trainers.presets import filled

    if parent.meta.get("launched_by"):
        return None
    made, known = Recipe.model_validate(parent.recipe), registered(folders)
    path, base = known.get(made.name, (None, None))
    own = _BARE if path is None else filled(load_recipe(path))
    shared = dict(_leaves(own.model_dump(mode="json")))
    try:
        refuse_foreign(own, made, home)
        for key, text in _leaves(parent.recipe):
            operators = any(key == each or key.startswith(f"{each}.") for each in OPERATORS)
            if key in ("name", "about", "tracking.database", *TEXTS) or re.fullmatch(r"stages\.\d+\.about", key):
                continue
            if text != shared.get(key) if operators else _NO_NAME.search(text) and text not in shared.values():
                raise _invalid(f"/{key}", "operators", "it is set by the operator")
    except Problem as found:
        raise Problem("conflict", "the run was started at the command line with what no launch could name: it is forked there "
                      f"alone ({found.detail[:500]})") from None  # fmt: skip
    return base


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys of all texts, in lists too."""
    if isinstance(value, str):
        yield prefix, value
    elif isinstance(value, (Mapping, list, tuple)):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))


_BARE = Recipe(model="tiny-random", data=Data(train=Source(source="generated")))


def refuse_unregistered(connection: sa.Connection, asked: NewRun) -> None:
    """Raises Problem for a digest that is not registered, or is quarantined."""
    spec = t.reward_spec.c
    if asked.reward_spec is not None:
        if connection.execute(sa.select(spec.digest).where(spec.digest == asked.reward_spec)).first() is None:
            raise _invalid("/reward_spec", "not-registered", "no reward spec of that digest is registered")
    member = t.reward_member.c
    of_spec = (
        connection.execute(sa.select(member.version_digest).where(member.reward_digest == asked.reward_spec))
        .scalars()
        .all()
    )
    wanted = {
        "/reward_spec": set(of_spec),
        **{f"/verifiers/{name}": {digest} for name, digest in asked.verifiers.items()},
    }
    version = t.verifier_version.c
    digests = sorted(set().union(*wanted.values()))
    found = {row.digest: row for row in connection.execute(
        sa.select(version.digest, version.status,
        version.status_reason).where(version.digest.in_(digests)))}  # fmt: skip
    for pointer, some in wanted.items():
        for digest in sorted(some):
            if digest not in found:
                raise _invalid(pointer, "not-registered", "no version of that digest is registered")
            if found[digest].status == "quarantined":
                raise _quarantined(pointer, "it names", digest, found[digest].status_reason)


def refuse_quarantined(store: Store, made: Recipe, base: Path) -> None:
    """Raises Problem where a verifier of a recipe, as it is installed here, is quarantined. One that was mended and judged
    nothing yet is no registered version, and may be used. What cannot be found out here the run finds out itself."""
    from jurat.verifiers.judge import LocalJudge, origin_named

    stages = [
        (stage.reward, [VerifierSpec(name=each.verifier, args=each.verifier_args) for each in _sets(stage.data)])
        for _, stage in made.staged()
    ]
    names = {member.use for part, _ in stages for member in part.members} | {s.name for _, some in stages for s in some}
    v, r, n = t.verifier_version.c, t.verifier_release.c, t.verifier.c
    query = (
        sa.select(v.digest, v.status_reason)
        .join(t.verifier_release, r.version_digest == v.digest)
        .join(t.verifier, n.pk == r.verifier_pk)
        .where(n.name.in_(names), v.status == "quarantined")
    )
    bad = store.read(lambda connection: {row.digest: row.status_reason for row in connection.execute(query)})
    for part, specs in stages if bad else ():
        try:
            with closing(LocalJudge(part, origins=[origin_named(base / f) for f in made.verifiers], spares=0)) as judge:
                bound = judge.bind(specs)
        except (ConfigError, RunFailed):
            continue
        for label, spec in bound.items():
            if spec.digest in bad:
                raise _quarantined(
                    f"/verifiers/{label}", f"verifier {spec.name} is installed here as", spec.digest, bad[spec.digest]
                )


def _quarantined(pointer: str, what: str, digest: str, reason: str | None) -> Problem:
    said = f"{what} version {digest[:19]}..., which was quarantined: {reason or 'no reason given'}"
    errors = [{"pointer": pointer, "code": "quarantined", "message": "the version is quarantined"}]
    return Problem("quarantined-verifier", said, errors=errors)


def _invalid(pointer: str, code: str, message: str) -> Problem:
    return Problem("invalid", f"{pointer}: {message}", errors=[{"pointer": pointer, "code": code, "message": message}])
