"""API keys and run tokens: made, read and compared. Where keys are kept is the store's affair.

A key is ``jurat_<key id>_<43 characters>``: 256 random bits, of which the store keeps the SHA-256. A run token is signed
by the service's secret, is bound to one run and one epoch, and is kept nowhere.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jurat.platform.errors import ConfigError, RunFailed

SCOPES = ("runs:read", "runs:write", "runs:launch", "verifiers:write", "data:read", "admin")
"""``admin`` holds all others."""

_KEY = re.compile(r"jurat_([a-z2-7]{12})_([A-Za-z0-9_-]{43})\Z")
_RUN = re.compile(r"juratrun_([A-Za-z0-9][A-Za-z0-9._-]{0,63})~(\d{1,12})~(\d{1,18})~([A-Za-z0-9_-]{43})\Z")
SHAPE = re.compile(r"jurat(?:run)?_[A-Za-z0-9._~-]{20,}")
"""What a key looks like in a text, to blot it out."""


@dataclass(frozen=True, slots=True)
class Made:
    """A new key: the only time that ``key`` is known."""

    key_id: str
    key: str
    secret_sha256: str


def make() -> Made:
    key_id = base64.b32encode(secrets.token_bytes(8)).decode().lower()[:12]
    secret = secrets.token_urlsafe(32)
    return Made(key_id, f"jurat_{key_id}_{secret}", _sha256(secret))


def split(key: str) -> tuple[str, str] | None:
    """(key id, SHA-256 of its secret); None for what is no key."""
    found = _KEY.match(key)
    return None if found is None else (found[1], _sha256(found[2]))


def same(left: str, right: str) -> bool:
    """In a time that tells nothing."""
    return hmac.compare_digest(left.encode(), right.encode())


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def check_scopes(scopes: Iterable[str]) -> tuple[str, ...]:
    """Sorted, once each. Raises ConfigError for one there is not."""
    given = sorted({*scopes})
    for scope in given:
        if scope not in SCOPES:
            raise ConfigError(f"there is no scope {scope!r}", where="scopes", fix=f"one of {', '.join(SCOPES)}")
    if not given:
        raise ConfigError("a key needs a scope", where="scopes", fix=f"some of {', '.join(SCOPES)}")
    return tuple(given)


# ---- run tokens --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunToken:
    run: str
    epoch: int


def issue(secret: bytes, run: str, epoch: int, *, until: float) -> str:
    """A token for the process that holds ``run`` at ``epoch``; ``until``: Unix seconds."""
    return f"juratrun_{run}~{epoch}~{int(until)}~{_sign(secret, run, epoch, int(until))}"


def read(secret: bytes, token: str, *, at: float | None = None) -> RunToken | None:
    """None for a token that is not ours, or has expired."""
    found = _RUN.match(token)
    if found is None:
        return None
    run, epoch, until = found[1], int(found[2]), int(found[3])
    if not same(found[4], _sign(secret, run, epoch, until)) or (time.time() if at is None else at) > until:
        return None
    return RunToken(run, epoch)


def _sign(secret: bytes, run: str, epoch: int, until: int) -> str:
    mac = hmac.new(secret, f"run\x00{run}\x00{epoch}\x00{until}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(mac).decode().rstrip("=")


def service_secret(home: Path) -> bytes:
    """32 random bytes of this home folder, made on first use, which only its owner may read. Raises RunFailed."""
    path = home / "secret"
    for _ in range(2):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            _write_secret(path)
            continue
        except OSError as error:
            raise RunFailed(f"cannot read the service's secret: {error.strerror}", where=str(path)) from None
        with os.fdopen(descriptor, "rb") as file:
            found = file.read(64)
        if len(found) != 32:
            raise RunFailed("the service's secret is damaged", where=str(path), fix="remove the file; page tokens and run tokens then end")
        return found
    raise RunFailed("cannot keep a secret", where=str(path), fix="make the folder writable")


def _write_secret(path: Path) -> None:
    """Whole or not at all, and the first writer wins."""
    draft = path.with_name(f"secret.{secrets.token_hex(6)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    except OSError as error:
        raise RunFailed(f"cannot write the service's secret: {error.strerror}", where=str(path)) from None
