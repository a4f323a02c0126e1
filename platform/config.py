"""Recipes from YAML: read, override with ``a.b=c``, validate; an unknown key names the nearest known one and its line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from jurat.platform.errors import ConfigError, nearest
from jurat.platform.recipe import Recipe


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads ``1e-5`` as a number."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node)
        if key in seen:
            raise ConfigError(f"key {key!r} is given twice", where=f"line {key_node.start_mark.line + 1}")
        seen.add(key)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def parse_yaml(text: str, *, where: str) -> tuple[dict[str, Any], dict[tuple[str | int, ...], int]]:
    """The mapping in ``text`` and the line (from 1) of every key path. Raises ConfigError naming ``where`` and the line."""
    try:
        node = yaml.compose(text, Loader=_Loader)
        value = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigError(f"not YAML: {getattr(error, 'problem', error)}", where=f"{where}{line}") from None
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{where}, {error.where}", fix="keep one of them") from None
    if not isinstance(value, dict):
        raise ConfigError(f"a recipe is a mapping of keys, got {type(value).__name__}", where=where)
    lines: dict[tuple[str | int, ...], int] = {}

    def walk(node: yaml.Node | None, path: tuple[str | int, ...]) -> None:
        if isinstance(node, yaml.MappingNode):
            for key, item in node.value:
                lines[(*path, key.value)] = key.start_mark.line + 1
                walk(item, (*path, key.value))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[(*path, index)] = item.start_mark.line + 1
                walk(item, (*path, index))

    walk(node, ())
    return value, lines


def override(value: dict[str, Any], assignments: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """A copy with ``a.b=c`` set; values are YAML; list places are numbers (``reward.members.0.weight=2``).

    A mapping of dotted keys to values does the same from Python. Raises ConfigError for a malformed assignment.
    """
    pairs = list(assignments.items()) if isinstance(assignments, Mapping) else [_assignment(a) for a in assignments]
    out: dict[str, Any] = json.loads(json.dumps(value))
    for key, new in pairs:
        here, *path = out, *key.split(".")
        for part in path[:-1]:
            here = here[int(part)] if isinstance(here, list) else here.setdefault(part, {})
            if not isinstance(here, (dict, list)):
                raise ConfigError(f"--set {key}: {part!r} holds {here!r}, which has no keys", where="--set")
        if isinstance(here, list):
            here[int(path[-1])] = new
        else:
            here[path[-1]] = new
    return out


def _assignment(text: str) -> tuple[str, Any]:
    key, sign, raw = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set needs key=value, got {text!r}", where="--set", fix="for example --set optim.lr=1e-5")
    try:
        return key, yaml.load(raw, Loader=_Loader)
    except yaml.YAMLError:
        return key, raw


def validate(
    value: Mapping[str, Any], *, where: str, lines: Mapping[tuple[str | int, ...], int] | None = None
) -> Recipe:
    """A Recipe, or one ConfigError that lists every fault with its key and line."""
    try:
        return Recipe.model_validate(value)
    except ValidationError as error:
        said = []
        first = ""
        for fault in error.errors():
            path = tuple(part for part in fault["loc"] if part not in _TAGS)
            line = (lines or {}).get(path)
            first = first or (f"{where}:{line}" if line else where)
            key = ".".join(str(part) for part in path)
            at = f" (line {line})" if line else ""
            if fault["type"] == "extra_forbidden":
                said.append(f"unknown key {key!r}{at}.{_nearest_key(fault['loc'])}")
            elif fault["type"] == "union_tag_invalid":
                names = re.findall(r"'([a-z_]+)'", str(fault["ctx"]["expected_tags"]))
                got = str(fault["ctx"]["tag"])
                said.append(f"{key}.name: {got!r} is none of {', '.join(names)}{at}.{nearest(got, names)}")
            else:
                said.append(f"{key}: {fault['msg']}{at}, got {fault['input']!r:.80}")
        raise ConfigError(
            "\n  ".join(said), where=first, fix="jurat recipes show quickstart prints a whole recipe"
        ) from None


_TAGS = {"grpo", "rloo", "sft", "uniform", "neyman", "difficulty", "dapo", "until_mixed"}
"""Discriminator values, which pydantic puts into the path of a fault."""


def _nearest_key(path: tuple[str | int, ...]) -> str:
    """The known key nearest to the last of ``path``: among its siblings first, else anywhere in a recipe."""
    wanted = str(path[-1])
    models: list[type[BaseModel]] = [Recipe]
    for part in path[:-1]:
        if part in _TAGS:
            models = [
                model for model in models if part in getattr(model.model_fields["name"].annotation, "__args__", ())
            ]
        else:
            fields = [model.model_fields[str(part)] for model in models if str(part) in model.model_fields]
            models = [inner for each in fields for inner in _models_in(each.annotation)] or models
    siblings = list(dict.fromkeys(name for model in models for name in model.model_fields))
    return nearest(wanted, siblings) or nearest(wanted, key_paths(Recipe)) or f" Known: {', '.join(siblings)}."


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """The pydantic models inside a type such as ``tuple[Member, ...]``, ``Data | None`` or a union by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models_in(inner)]


def parts_of(model: type[BaseModel]) -> list[type[BaseModel]]:
    """``model`` and every part within it, each once."""
    found = [model]
    for each in found:  # grows as it is read
        inner = (part for info in each.model_fields.values() for part in _models_in(info.annotation))
        found += [part for part in dict.fromkeys(inner) if part not in found]
    return found


def key_paths(model: type[BaseModel], prefix: str = "") -> list[str]:
    """Every dotted key of a model."""
    out = []
    for name, info in model.model_fields.items():
        out.append(prefix + name)
        inner = _models_in(info.annotation)
        if inner and name != "stages":
            out += key_paths(inner[0], f"{prefix}{name}.")
    return out


def load_recipe(path: Path, assignments: Sequence[str] | Mapping[str, Any] = ()) -> Recipe:
    """Read, override and validate one recipe file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the recipe: {error}", where=str(path), fix="jurat recipes ls lists those that ship"
        ) from None
    value, lines = parse_yaml(text, where=str(path))
    value.setdefault("name", path.stem)
    return validate(override(value, assignments), where=str(path), lines=lines)
