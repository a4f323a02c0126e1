"""Page tokens: where a page ended, signed, and bound to the query that it belongs to."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Sequence

from jurat.api.server.problems import Problem

DEFAULT_SIZE = 50
MAX_SIZE = 1000
_MAC = 16
"""Bytes of the signature that are kept."""

Mark = str | float | int | bool | None


def seal(secret: bytes, query: str, values: Sequence[Mark]) -> str:
    """A token for the values of the sort keys of a page's last row. ``query``: whatever must not change between pages."""
    said = json.dumps(list(values), separators=(",", ":")).encode()  # infinities come back, too
    return base64.urlsafe_b64encode(_mac(secret, query, said) + said).decode().rstrip("=")


def unseal(secret: bytes, query: str, token: str, count: int) -> list[Mark]:
    """The values. Raises Problem for a token that was changed or belongs to another query."""
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        mac, said = data[:_MAC], data[_MAC:]
        if hmac.compare_digest(mac, _mac(secret, query, said)):
            values = json.loads(said)
            if isinstance(values, list) and len(values) == count:
                return values
    except (ValueError, binascii.Error):
        pass
    raise Problem(
        "bad-page-token", "the page token was changed, or filter, order or size were: begin again without it",
        errors=[{"pointer": "page_token", "code": "bad-page-token", "message": "not a token of this query"}],
    )  # fmt: skip


def _mac(secret: bytes, query: str, said: bytes) -> bytes:
    return hmac.new(
        secret, b"page\x00" + query.encode("utf-8", "surrogatepass") + b"\x00" + said, hashlib.sha256
    ).digest()[:_MAC]
