"""Recipes from YAML: read, override with ``a.b=c``, validate. A fault is told with its key, its line or ``--set``, what was
given, what was expected, and the nearest that would do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from jurat.platform.errors import ConfigError
from jurat.platform.recipe import Recipe, Stage, Unfit

Place = tuple[str | int, ...]
"""Keys and places in lists from the top of a recipe to a value."""
Assignments = Sequence[str] | Mapping[str, Any]
"""``a.b=c``, or a mapping of dotted keys to values."""
BY_NAME = ("algorithm", "allocation", "credit")
"""Parts that a recipe may give by their name alone."""
ELSEWHERE = {
    "beta": "algorithm.kl.coef", "kl_coef": "algorithm.kl.coef", "kl_loss_coef": "algorithm.kl.coef",
    "epsilon": "algorithm.clip_low", "epsilon_high": "algorithm.clip_high", "cliprange": "algorithm.clip_low",
    "clip_ratio": "algorithm.clip_low", "clip_ratio_low": "algorithm.clip_low", "clip_ratio_high": "algorithm.clip_high",
    "loss_agg_mode": "algorithm.aggregation", "num_generations": "allocation.samples_per_prompt",
    "n_samples_per_prompt": "allocation.samples_per_prompt", "group_size": "allocation.samples_per_prompt",
    "max_completion_length": "sampling.max_new_tokens", "max_response_length": "sampling.max_new_tokens",
    "learning_rate": "optim.lr", "max_grad_norm": "optim.clip_norm", "grad_clip": "optim.clip_norm",
    "batch_size": "prompts_per_step", "train_batch_size": "prompts_per_step", "max_steps": "steps",
    "num_iterations": "epochs", "ppo_epochs": "epochs", "gradient_checkpointing": "engine.activation_checkpointing",
}  # fmt: skip
"""What other tools call a key -> what it is called here."""
NAMED = {"ipo": "{name: dpo, kind: ipo}", "orpo": "", "simpo": ""}
"""Names of algorithms that are no name here -> how they are written, or nothing where there is none like it."""


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


def override(value: dict[str, Any], assignments: Assignments) -> dict[str, Any]:
    """A copy with ``a.b=c`` set; values are YAML; list places are numbers (``reward.members.0.weight=2``).

    A mapping of dotted keys to values does the same from Python. Raises ConfigError for a malformed assignment.
    """
    out: dict[str, Any] = json.loads(json.dumps(value))
    for key, new in assigned(assignments).items():
        here: Any = out
        *path, last = key.split(".")
        for part in path:
            place = _place_in(here, part, key)
            if isinstance(here, dict):
                here.setdefault(place, {})
                if part in BY_NAME and isinstance(here[place], str):
                    here[place] = {"name": here[place]}
            here = here[place]
            if not isinstance(here, (dict, list)):
                raise ConfigError(
                    f"{part!r} holds {_shown(here)}, which has no keys", where=f"--set {key}",
                    fix=f"set {part} itself, or leave it out",
                )  # fmt: skip
        here[_place_in(here, last, key)] = new
    return out


def assigned(assignments: Assignments) -> dict[str, Any]:
    """{dotted key: value}; the last of a key counts. Raises ConfigError."""
    return dict(assignments if isinstance(assignments, Mapping) else map(_assignment, assignments))


def _place_in(here: Any, part: str, key: str) -> str | int:
    """``part`` as a key, or as a place of the list ``here``."""
    if isinstance(here, dict):
        return part
    if not part.isdecimal() or int(part) >= len(here):
        raise ConfigError(
            f"{part!r} is no place in a list of {len(here)}", where=f"--set {key}",
            fix=f"places are numbers from 0 to {len(here) - 1}" if here else "set the whole list, as in key=[...]",
        )  # fmt: skip
    return int(part)


def _assignment(text: str) -> tuple[str, Any]:
    key, sign, raw = text.partition("=")
    if not sign or not key:
        raise ConfigError(f"--set needs key=value, got {text!r}", where="--set", fix="for example --set optim.lr=1e-5")
    try:
        return key, yaml.load(raw, Loader=_Loader)
    except yaml.YAMLError:
        return key, raw


# ---- what a model refuses ----------------------------------------------------------------------------------------


def contradiction(
    error: ConfigError,
    value: Mapping[str, Any],
    *,
    where: str,
    lines: Mapping[Place, int] | None = None,
    given: Assignments = (),
) -> ConfigError:
    """``error``, whose ``where`` is a key, with the place where that was written. A stage that gives no such part has it
    from the recipe."""
    path: Place = tuple(int(part) if part.isdecimal() else part for part in error.where.split("."))
    stage = _stage(value, path)
    if stage and _at(value, path[:3]) is None and path[2] in value:
        path = path[2:]
    place, line = _origin(path, where, lines or {}, given)
    notes = [f"stage {stage}"] * bool(stage) + [f"line {line}"] * bool(line)
    return ConfigError(error.what + (f" ({', '.join(notes)})" if notes else ""), where=place, fix=error.fix)


def _stage(value: Any, path: Place) -> str | None:
    """Name of the stage that a key is in."""
    name = _at(value, (*path[:2], "name")) if path[:1] == ("stages",) and len(path) > 2 else None
    return name if isinstance(name, str) else None


def validate(
    value: Mapping[str, Any], *, where: str, lines: Mapping[Place, int] | None = None, given: Assignments = ()
) -> Recipe:
    """A Recipe, or one ConfigError that lists every fault with its key and its line, or the assignment of ``given``
    that it comes from."""
    try:
        return Recipe.model_validate(value)
    except ValidationError as error:
        raise refusal(error, value, Recipe, where=where, lines=lines, given=given) from None


def refusal(
    error: ValidationError,
    value: Mapping[str, Any],
    model: type[BaseModel],
    *,
    where: str,
    lines: Mapping[Place, int] | None = None,
    given: Assignments = (),
) -> ConfigError:
    """Every reason for which ``model`` refused ``value``, in words of the recipe."""
    said, fixes, places = [], [], []
    for fault in _whole(error.errors()):
        path, models, others, info = _walk(fault["loc"], model)
        refused = fault.get("ctx", {}).get("error")
        if fault["type"] == "missing" and isinstance(path[-1], int):  # an element of a pair: the pair is too short
            fault["type"], fault["ctx"] = "too_short_pair", {"length": path[-1] + 1}
            path = path[:-1]
        elif isinstance(refused, Unfit):
            path = (*path, *filter(None, refused.key.split(".")))
        elif fault["type"] == "union_tag_invalid" and not isinstance(_at(value, path), str):
            path = (*path, "name")
        what, hint, fix = _told(fault, path, models, others, info, model)
        place, line = _origin(path, where, lines or {}, given)
        places.append(place)
        stage = _stage(value, path)
        notes = [f"stage {stage}"] if stage else []
        notes += [f"line {line}"] if line else [place] if place != places[0] else []
        said.append(what + (f" ({', '.join(notes)})" if notes else "") + (f".{hint}" if hint else ""))
        fixes.append(fix)
    return ConfigError("\n  ".join(said), where=places[0], fix="; ".join(dict.fromkeys(fixes)))


def _whole(faults: Sequence[Any]) -> list[Any]:
    """Without all but the last of the elements that one list lacks."""
    lacks = {fault["loc"][:-1]: n for n, fault in enumerate(faults) if _lacks(fault)}
    return [fault for n, fault in enumerate(faults) if not _lacks(fault) or lacks[fault["loc"][:-1]] == n]


def _lacks(fault: Any) -> bool:
    return fault["type"] == "missing" and isinstance(fault["loc"][-1], int)


KEYS = "a mapping of keys"
EXPECTED = {
    "int_parsing": "a whole number", "int_type": "a whole number", "int_from_float": "a whole number",
    "float_parsing": "a number", "float_type": "a number", "finite_number": "a finite number",
    "bool_parsing": "true or false", "bool_type": "true or false",
    "string_type": "text (in quotes if it looks like something else)",
    "string_pattern_mismatch": "text like {pattern}",
    "greater_than": "more than {gt:g}", "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}", "less_than_equal": "at most {le:g}",
    "dict_type": KEYS, "model_type": KEYS, "model_attributes_type": KEYS,
    "tuple_type": "a list", "too_short": "a longer list", "too_short_pair": "a list of {length}", "too_long": "a list of {max_length}",
}  # fmt: skip
"""pydantic's type of a fault -> what was expected, with the words of its context."""
WHOLE = "jurat recipes show quickstart prints a whole recipe"


def _told(
    fault: Any,
    path: Place,
    models: Sequence[type[BaseModel]],
    others: Sequence[type[BaseModel]],
    info: FieldInfo | None,
    root: type[BaseModel],
) -> tuple[str, str, str]:
    """(what is wrong, a hint at the nearest, how to fix it). ``models`` are the parts that hold the key, ``others`` the
    alternatives to them that were not chosen."""
    kind, got, context = fault["type"], fault["input"], fault.get("ctx", {})
    key, inner = ".".join(map(str, path)), _models_in(info.annotation) if info else list(models)
    if kind == "extra_forbidden":
        return _unread(fault["loc"], key, models, others) or _unknown_key(fault["loc"], key, models, root)
    if kind == "missing":
        keys = f", with its keys: {', '.join(inner[0].model_fields)}" if inner else ""
        return f"{key} is missing", "", f"add {key}{keys}" + (f"; {WHOLE}" if len(path) == 1 else "")
    if kind == "value_error":
        said = str(context["error"])
        fix = getattr(context["error"], "fix", f"change {key or 'the recipe'} so that this holds")
        return f"{key}: {said}" if key else said, "", fix
    choices = re.findall(r"'([^']*)'", str(context.get("expected_tags", context.get("expected", ""))))
    if choices and path[-1] == "[key]":
        near = get_close_matches(str(got), choices, 1, 0.6)
        key = key.removesuffix(".[key]")
        if near:
            return f"unknown key {key!r}", f" Did you mean {near[0]!r}?", f"write {key.removesuffix(str(got))}{near[0]}"
        return f"unknown key {key!r}", "", f"keys there: {', '.join(choices)}"
    if choices:
        tag = context.get("tag", got)
        said, meant = f"{key}: {_shown(tag)} is none of {', '.join(choices)}", NAMED.get(str(tag), "?")
        if "dpo" not in choices or meant == "?":
            near = get_close_matches(str(tag), choices, 1, 0.6)
        elif meant:
            return said, f" It is {meant}", f"write {key.removesuffix('.name')}: {meant}"
        else:
            near = []
        hint, wanted = (f" Did you mean {near[0]!r}?", near[0]) if near else ("", f"one of {', '.join(choices)}")
        return said, hint, f"write {key}: {wanted}"
    expected = EXPECTED[kind].format_map(context) if kind in EXPECTED else str(fault["msg"])
    if kind == "too_short" and isinstance(got, Mapping):
        expected = f"at least {context['min_length']} name"
    if inner and _is_mapping(info) and path[-1] in models[0].model_fields and kind != "value_error":
        keys = f"a mapping of names to the keys {', '.join(inner[0].model_fields)}"
        return (
            f"{key}: got {_shown(got)}, expected {keys}",
            "",
            "write it as {NAME: {KEY: VALUE}}, or leave it out",
        )
    either = "a name, or " if path[-1] in BY_NAME else ""
    give = f"the keys {', '.join(inner[0].model_fields)}" if expected == KEYS and inner else expected
    default = info.default if info is not None and isinstance(path[-1], str) else None
    leave = f", or leave it out for its default, {_shown(default)}" if isinstance(default, (str, int, float)) else ""
    return f"{key}: got {_shown(got)}, expected {either}{expected}", "", f"give {key} {either}{give}{leave}"


def _unread(
    loc: Place, key: str, models: Sequence[type[BaseModel]], others: Sequence[type[BaseModel]]
) -> tuple[str, str, str] | None:
    """Of a key that other alternatives read, and the chosen one does not; None if none does."""
    wanted = str(loc[-1])
    readers = _tags([model for model in others if wanted in model.model_fields])
    if not readers:
        return None
    part, _, meant = ELSEWHERE.get(wanted, "").partition(".")
    here = part == key.split(".")[-2] and any(meant.partition(".")[0] in model.model_fields for model in models)
    instead = f", or write {key.removesuffix(wanted)}{meant}" if here else ""
    return f"{key} is not read by {loc[-2]}", "", f"leave it out: {wanted} is read by {', '.join(readers)}{instead}"


def _unknown_key(
    loc: Place, key: str, models: Sequence[type[BaseModel]], root: type[BaseModel]
) -> tuple[str, str, str]:
    """The nearest key of the same part, or one elsewhere that is nearer."""
    wanted, known = str(loc[-1]), list(dict.fromkeys(name for model in models for name in model.model_fields))
    what, stage = f"unknown key {key!r}", f"stages.{loc[1]}." if loc[0] == "stages" and len(loc) > 2 else ""
    inside = key.removeprefix(stage)
    elsewhere: dict[str, str] = {}
    shared = lambda path: sum(a == b for a, b in zip(path.split("."), inside.split("."), strict=False))
    parent = inside.rpartition(".")[0]
    for path in sorted(key_paths(root), key=shared, reverse=True):
        if parent and path.rpartition(".")[0] == parent:
            continue  # of this part as it is elsewhere chosen
        if path != inside or (stage and path.partition(".")[0] not in Stage.model_fields):
            elsewhere.setdefault(path.rpartition(".")[2], path)
    near = get_close_matches(wanted, known, 1, 0.5)
    found = get_close_matches(wanted, [*near, *get_close_matches(wanted, elsewhere, 1, 0.8)], 1, 0)
    if wanted in ELSEWHERE and wanted not in elsewhere and not get_close_matches(wanted, known, 1, 0.6):
        elsewhere[wanted], found = ELSEWHERE[wanted], [wanted]
    if not found:
        of = f" of {loc[-2]}" if len(loc) > 1 and loc[-2] in _tags(models) else ""
        return what + of, "", f"keys{of} there: {', '.join(known)}"
    if found == near:
        return what, f" Did you mean {near[0]!r}?", f"write {key.removesuffix(wanted)}{near[0]}"
    path = elsewhere[found[0]]
    if stage and path.partition(".")[0] in Stage.model_fields:
        path = stage + path
    return what, f" Did you mean {path!r}?", f"write it as {path}, counted from the top of the recipe"


def _shown(value: Any) -> str:
    """A value as in YAML, in short."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    return f"{value!r:.80}"


def _at(value: Any, path: Place) -> Any:
    """What lies at ``path`` in ``value``; None where nothing does."""
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _origin(path: Place, where: str, lines: Mapping[Place, int], given: Assignments) -> tuple[str, int | None]:
    """Where a fault was made, with its line if that is in the file: by an assignment that set the key or a part around
    it, else by the line of the key or of the nearest part around it, or by what set something else in that part."""
    words = tuple(map(str, path))
    made: dict[tuple[str, ...], str] = {}
    for each in given:
        label = f"overrides {each!r}" if isinstance(given, Mapping) else f"--set {each}"
        made[tuple(each.partition("=")[0].split("."))] = label
    if around := [made[words[:end]] for end in range(len(words), 0, -1) if words[:end] in made]:
        return around[0], None
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return f"{where}:{lines[path[:end]]}", lines[path[:end]]
        if within := [label for target, label in made.items() if target[:end] == words[:end]]:
            return within[-1], None
    return where, None


def _walk(
    loc: Place, root: type[BaseModel]
) -> tuple[Place, list[type[BaseModel]], list[type[BaseModel]], FieldInfo | None]:
    """Of a fault's place: its key without the names of alternatives, the parts that may hold that key, the alternatives to
    them, its field."""
    path: list[str | int] = []
    models, inner, info = [root], [root], None
    others: list[type[BaseModel]] = []
    aside: list[type[BaseModel]] = []
    for part in loc:
        if len(inner) > 1 and part in _tags(inner):
            aside = [model for model in inner if part not in _tags([model])]
            inner = [model for model in inner if part in _tags([model])]
            continue
        path.append(part)
        if isinstance(part, int):
            continue
        if _is_mapping(info) and not any(part in model.model_fields for model in models) and models is not inner:
            models, info = inner, None  # the name of one, whose keys come next
            continue
        models, others, aside = inner, aside, []
        found = [model.model_fields[part] for model in models if part in model.model_fields]
        info = found[0] if found else None
        inner = [model for field in found for model in _models_in(field.annotation)]
    return tuple(path), models, others, info


def _is_mapping(info: FieldInfo | None) -> bool:
    """Whether a field is a mapping from names."""
    return info is not None and getattr(info.annotation, "__origin__", None) is dict


def _tags(models: Sequence[type[BaseModel]]) -> list[str]:
    """The names that tell alternatives apart, which pydantic puts into the place of a fault."""
    fields = [model.model_fields["name"] for model in models if "name" in model.model_fields]
    return [tag for field in fields for tag in getattr(field.annotation, "__args__", ())]


# ---- keys --------------------------------------------------------------------------------------------------------


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


def load_recipe(
    path: Path, assignments: Assignments = (), check: Callable[[Recipe], None] = lambda recipe: None
) -> Recipe:
    """Read, override and validate one recipe file. Raises ConfigError, also for one of ``check``, whose ``where`` is a key."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the recipe: {error}", where=str(path), fix="jurat recipes ls lists those that ship"
        ) from None
    value, lines = parse_yaml(text, where=str(path))
    value.setdefault("name", path.stem)
    value = override(value, assignments)
    recipe = validate(value, where=str(path), lines=lines, given=assignments)
    try:
        check(recipe)
    except ConfigError as error:
        raise contradiction(error, value, where=str(path), lines=lines, given=assignments) from None
    return recipe
