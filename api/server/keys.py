"""The service's own secret, and what a key looks like in a text."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

from jurat.platform.errors import RunFailed

SHAPE = re.compile(r"jurat_[A-Za-z0-9_-]{20,}")
"""To blot keys out."""


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
            raise RunFailed(
                "the service's secret is damaged", where=str(path), fix="remove the file; page tokens then end"
            )
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
