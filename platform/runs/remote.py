"""Facts through the service: what a ledger sends when ``jurat serve`` launched the run, or holds the same home folder.

The service writes for everybody, so that its clients hear of a fact as it is committed and one process alone writes the
file. Where it does not answer, the ledger's spool keeps what was to be said.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Sequence
from urllib.parse import quote, urlsplit

from jurat.platform import access
from jurat.platform.errors import FencedOut, JuratError
from jurat.platform.runs.ledger import Facts
from jurat.platform.runs.lock import holder
from jurat.platform.runs.records import Lease
from jurat.platform.runs.spool import Op
from jurat.platform.runs.store import Store

SECONDS = 10.0
"""Of one request."""
TOKEN_SECONDS = 30 * 86_400.0


class ServiceFacts:
    """Implements ``Facts``. Used from one thread."""

    def __init__(self, url: str, token: str, run: str) -> None:
        parts = urlsplit(url)
        self._netloc, self._path = parts.netloc, f"/api/v1/runs/{quote(run, safe='')}/facts"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._run = run
        self._connection: http.client.HTTPConnection | None = None

    def __call__(self, ops: Sequence[Op]) -> None:
        data = json.dumps({"ops": list(ops)}, separators=(",", ":"), allow_nan=False).encode("ascii")
        status, said = self._post(data)
        if status == 200:
            return
        if status == 409:
            raise FencedOut(
                f"run {self._run} was taken over: {said}", where=self._run, fix="nothing: its record goes on elsewhere"
            )
        if status in (400, 413, 422):
            raise ValueError(said)
        raise OSError(f"the service answered {status}: {said}")

    def _post(self, data: bytes) -> tuple[int, str]:
        """(status, what it says of it). Raises OSError."""
        for fresh in (False, True):
            kept = self._connection is not None
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._netloc, timeout=SECONDS)
                self._connection.request("POST", self._path, data, self._headers)
                answer = self._connection.getresponse()
                body = answer.read()
            except (OSError, http.client.HTTPException) as error:
                if self._connection is not None:
                    self._connection.close()
                self._connection = None
                if kept and not fresh and not isinstance(error, TimeoutError):
                    continue  # a connection that the service closed while it was idle
                raise error if isinstance(error, OSError) else OSError(f"no answer: {error!r}") from None
            try:
                said = str(json.loads(body).get("detail", ""))[:300]
            except (ValueError, AttributeError):
                said = ""
            return answer.status, said
        raise AssertionError("unreachable")


def facts_through(store: Store, lease: Lease) -> Facts | None:
    """The service to send facts to: the one that launched this process, else one that holds the same home; None if there is
    none, and the database is written by this process."""
    url, token = os.environ.get("JURAT_SERVICE", ""), os.environ.get("JURAT_RUN_TOKEN", "")
    if not (url and token):
        found = service_of(store)
        if found is None:
            return None
        try:
            token = store.write(
                lambda c: access.make_key(
                    c, f"run {lease.run}", [], seconds=TOKEN_SECONDS, run_id=lease.run, epoch=lease.epoch
                )
            )[1]
        except JuratError:
            return None
        url = found
    return ServiceFacts(url, token, lease.run)


def service_of(store: Store) -> str | None:
    """The address of a service on this machine that holds the home folder and this very database."""
    folder = store.home / "service"
    if not folder.is_dir() or holder(folder) is None:
        return None
    try:
        said = json.loads((folder / "url.json").read_text("utf-8"))
        return str(said["url"]) if said["database"] == store.engine.url.render_as_string(hide_password=True) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
