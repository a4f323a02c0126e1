"""What looks like a secret, blotted out before it is kept: by the name that it stands under, by its shape, by its entropy.

Digests and plain words stay: a random text of 20 characters or more that mixes cases and digits goes. JURAT_KEEP_SECRETS=1 keeps
everything, for who knows what he does.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

BLOT = "[redacted]"
PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----")
_NAME = re.compile(
    r"(?i:(?:^|[._-])(?:api[_-]?key|access[_-]?key|private[_-]?key|secret(?:[_-]?key)?|passw(?:or)?d|passphrase|"
    r"credentials?|authorization|(?:api|access|auth|bearer|refresh|session|secret|hf|hub|github|gitlab|wandb|run)[_-]?token)$)"
    r"|(?i:(?:^|[.-])token$)"
)
_PLACE = re.compile(r"(?:^|\.)(?:model|source|verifiers)$")
"""Keys of a recipe that say where something is: without it the run does not go on."""
_HARMLESS = re.compile(r"|(?i:true|false|none|null)")
_SHAPE = re.compile(
    r"jurat_[0-9a-z]{12}_[\w-]{20,}|AKIA[0-9A-Z]{16}|gh[pousr]_\w{30,}|github_pat_\w{30,}|hf_[A-Za-z0-9]{30,}"
    r"|sk-[\w-]{20,}|xox[abprs]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}|AIza[\w-]{35}|glpat-[\w-]{20,}"
)
_ADDRESS = re.compile(r"(\w{1,20}://)[^/@\s'\"]{1,200}@")
_RANDOM = re.compile(r"[A-Za-z0-9+/_-]{20,}={0,2}")
_ASSIGNED = re.compile(
    r"(?i)((?:api|access|secret|private)[_-]?key|secret|(?:[a-z]+[_-])?token|passw(?:or)?d|passphrase|credentials?)"
    r"(['\"]?\s{0,3}[=:]\s{0,3})(['\"])([^'\"\s]{6,})\3"
)
BITS = 3.5
"""Of entropy a character, from which a mixed text may be random: 24 random characters of base64 have about 4.2."""

SHORT = 8
"""Characters of a folder's name that is no secret, whatever they are."""


def kept() -> bool:
    return os.environ.get("JURAT_KEEP_SECRETS") == "1"


def blotted(text: str) -> str:
    """A text without shapes of keys, passwords in addresses, and random words."""
    if kept():
        return text
    text = _shapeless(text)
    return _RANDOM.sub(lambda found: BLOT if _random(found[0]) else found[0], text)


def blotted_code(text: str) -> str:
    """A patch without shapes of keys, passwords in addresses, and quoted texts assigned to a name of a secret."""
    if kept():
        return text
    return _ASSIGNED.sub(rf"\1\2\3{BLOT}\3", _shapeless(text))


def _shapeless(text: str) -> str:
    return _ADDRESS.sub(rf"\1{BLOT}@", _SHAPE.sub(BLOT, text))


def redacted(value: Any, name: str = "") -> Any:
    """A JSON value with every secret text in it blotted; mappings by the names of their keys too. Numbers stay."""
    if isinstance(value, str):
        named = _NAME.search(name) and not _HARMLESS.fullmatch(value)
        if named and not kept():
            return BLOT
        return _shapeless(value) if _PLACE.search(name) and _place(value) and not kept() else blotted(value)
    if isinstance(value, Mapping):
        return {key: redacted(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item, name) for item in value]
    return value


def redacted_meta(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run. The folder that its recipe's files are relative to stays: no run goes on without it."""
    return {**redacted(meta), **{key: meta[key] for key in ("base", "home") if key in meta}}


def words(argv: Sequence[str]) -> list[str]:
    """A command line without its secrets: ``--api-key=...``, ``--api-key ...`` and ``API_KEY=...`` alike."""
    made: list[str] = []
    hidden = False
    for word in argv:
        name, sign, value = word.partition("=")
        if hidden and not word.startswith("-"):
            made.append(BLOT)
        else:
            made.append(f"{name}={redacted(value, name)}" if sign else blotted(word))
        hidden = word.startswith("-") and not sign and bool(_NAME.search(name)) and not kept()
    return made


def _place(text: str) -> bool:
    """A path, or a name of short words: no opaque key."""
    return "/" in text or all(len(piece) <= SHORT for piece in re.split("[._-]", text))


def _random(word: str) -> bool:
    """Of a path, what counts are its long pieces."""
    pieces = [piece for piece in word.split("/") if len(piece) > SHORT] if "/" in word else [word]
    return any(map(_mixed, pieces)) and entropy(word) >= BITS


def _mixed(word: str) -> bool:
    """Letters of both cases and digits, in no syllables: the small letters of names stand three and more together."""
    small = re.findall("[a-z]+", word)
    mixed = bool(small) and bool(re.search("[A-Z]", word)) and bool(re.search("[0-9]", word))
    return mixed and sum(map(len, small)) < 3 * len(small)


def entropy(text: str) -> float:
    """Bits a character, of the text's own frequencies."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts)
