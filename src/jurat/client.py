"""The service from Python: ``jurat.client.Client``. The standard library is all it needs.

client = Client("http://127.0.0.1:8642")
run = client.create_run("tiny", {"steps": 20})
for message in client.stream(run["id"]):
    print(message.kind, message.data)
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from jurat.platform.errors import ConfigError, JuratError

Json = dict[str, Any]
TRIES = 5
KEPT_SECONDS = 5.0
"""How long a connection is used again after its last answer."""
_AGAIN = frozenset({429, 503})
"""Statuses after which a request is sent again, after the pause that the service asks for."""


class ServiceError(JuratError):
    """What the service answered instead; ``problem`` is the body of RFC 9457."""

    def __init__(self, problem: Mapping[str, Any]) -> None:
        self.problem = dict(problem)
        self.status = int(problem.get("status", 0))
        self.kind = str(problem.get("type", "")).rpartition("/")[2]
        super().__init__(str(problem.get("detail") or problem.get("title")), where=f"{self.status} {self.kind}", fix="")

    def __reduce__(self) -> tuple[object, ...]:
        return (ServiceError, (self.problem,))


class Unreachable(JuratError, OSError):
    """No service answers at the address."""

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        JuratError.__init__(self, what, where=where, fix=fix)


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event of a run: ``state``, ``metrics``, ``event``, ``resync`` or ``end``."""

    kind: str
    id: str
    """For ``stream(after=...)``."""
    data: Json


class Client:
    """One connection, kept open. Use one a thread. Raises ServiceError for a problem, Unreachable where nothing answers."""

    def __init__(self, url: str, key: str | None = None, *, timeout: float = 30.0, tries: int = TRIES) -> None:
        """``tries``: of a request that may be sent again without being done twice."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ConfigError(
                f"not the address of a service: {url!r:.80}", where="Client", fix="as in http://127.0.0.1:8642"
            )
        self.url, self._key, self._timeout, self._tries = url.rstrip("/"), key, timeout, tries
        self._scheme, self._netloc, self._path = parts.scheme, parts.netloc, parts.path.rstrip("/")
        self._connection: http.client.HTTPConnection | None = None
        self._used = 0.0

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- runs ----

    def create_run(
        self, recipe: str, config: Mapping[str, Any] | None = None, *, once: str | None = None, **more: Any
    ) -> Json:
        """Launch a run; ``more``: id, project, tags, reward_spec, verifiers, priority, max_restarts, max_runtime. ``once``: an
        idempotency key; one is made for the tries of this call."""
        body = {"recipe": recipe, "config": dict(config or {}), **more}
        return self._json("POST", "/runs", body, headers={"Idempotency-Key": once or secrets.token_hex(16)})

    def run(self, run: str, *, fields: Sequence[str] = (), metrics: Sequence[str] = ()) -> Json:
        return self._json(
            "GET", f"/runs/{_part(run)}", query={"fields": ",".join(fields), "metrics": ",".join(metrics)}
        )

    def runs(
        self,
        filter: str = "",
        *,
        order_by: str = "",
        fields: Sequence[str] = (),
        metrics: Sequence[str] = (),
        page_size: int = 50,
    ) -> Iterator[Json]:
        """All of them, page by page as they are read."""
        query = {
            "filter": filter,
            "order_by": order_by,
            "fields": ",".join(fields),
            "metrics": ",".join(metrics),
            "page_size": page_size,
        }
        return self._pages("/runs", "runs", query)

    def change_run(self, run: str, version: int, **changes: Any) -> Json:
        """Change tags, project, priority or max_restarts of the version that was read."""
        return self._json("PATCH", f"/runs/{_part(run)}", changes, headers={"If-Match": f'"{version}"'})

    def delete_run(self, run: str, version: int) -> None:
        self.request("DELETE", f"/runs/{_part(run)}", headers={"If-Match": f'"{version}"'})

    def command(self, run: str, kind: Literal["pause", "resume", "cancel", "checkpoint"]) -> Json:
        return self._json("POST", f"/runs/{_part(run)}:{kind}", headers={"Idempotency-Key": secrets.token_hex(16)})

    def fork(
        self,
        run: str,
        config: Mapping[str, Any] | None = None,
        *,
        checkpoint: str | None = None,
        once: str | None = None,
        **more: Any,
    ) -> Json:
        """Launch a run that begins with the weights of a checkpoint (None: the newest) of this one; ``more``: id, project,
        tags, priority, max_restarts, max_runtime."""
        body = {"config": dict(config or {}), "checkpoint": checkpoint, **more}
        headers = {"Idempotency-Key": once or secrets.token_hex(16)}
        return self._json("POST", f"/runs/{_part(run)}:fork", body, headers=headers)

    def export(
        self,
        run: str,
        out: Path,
        *,
        format: Literal["bundle", "prov-json", "parquet", "csv"] = "bundle",
        weights: bool = True,
    ) -> int:
        """Write a run to a new file, which is there whole or not at all; its size in bytes."""
        draft = out.with_name(f".{out.name}.{secrets.token_hex(4)}.tmp")
        target = f"/runs/{_part(run)}:export?{urlencode({'format': format, 'weights': str(weights).lower()})}"
        try:
            with draft.open("xb") as file, self._asked("GET", target) as answer:
                while piece := answer.read(1 << 20):
                    file.write(piece)
            os.link(draft, out)  # never over a file that is there
        finally:
            draft.unlink(missing_ok=True)
        return out.stat().st_size

    def import_bundle(self, bundle: Path, *, once: str | None = None) -> Json:
        """Take in what ``export`` wrote elsewhere: all of it or nothing. Needs the scope admin."""
        headers = {
            "Content-Type": "application/x-tar",
            "Content-Length": str(bundle.stat().st_size),
            "Idempotency-Key": once or secrets.token_hex(16),
        }
        with bundle.open("rb") as file, self._asked("POST", "/runs:import", file, headers) as answer:
            found: Json = json.loads(answer.read())
            return found

    @contextmanager
    def _asked(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer that is read as it comes, over a connection of its own."""
        lost = (ConnectionError, TimeoutError, http.client.HTTPException)
        connection: http.client.HTTPConnection | None = None
        try:
            connection = self._open()
            sent = {**self._headers(), **(headers or {})}
            with suppress(BrokenPipeError, ConnectionResetError):  # refused before all was sent: the answer says why
                connection.request(method, f"{self._path}/api/v1{target}", body, sent)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise ServiceError(_problem(answer.status, answer.read()))
            yield answer
        except lost as error:
            raise Unreachable(f"the connection is lost: {error}", where=self.url, fix="try again") from None
        finally:
            if connection is not None:
                connection.close()

    def wait(
        self,
        run: str,
        *,
        until: Sequence[str] = ("finished", "failed", "cancelled", "interrupted", "paused"),
        seconds: float = 600.0,
    ) -> Json:
        """The run once it is in one of these states. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while (found := self.run(run))["state"] not in until:
            if time.monotonic() > end:
                raise TimeoutError(f"run {run} is {found['state']} after {seconds:g} s")
            time.sleep(0.1)
        return found

    def stream(self, run: str, *, after: str | None = None) -> Iterator[Message]:
        """What happens, until the run is over. A connection that is lost is made again where it was."""
        lost = 0
        while True:
            try:
                for message in self._events(run, after):
                    after, lost = message.id, 0
                    yield message
                    if message.kind == "end":
                        return
            except (OSError, http.client.HTTPException):
                pass
            lost += 1
            if lost > self._tries:
                raise Unreachable("the stream is lost", where=self.url, fix="is the service there?")
            time.sleep(min(5.0, 0.2 * 2**lost))

    def _events(self, run: str, after: str | None) -> Iterator[Message]:
        connection = self._open()
        try:
            headers = {**self._headers(), "Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
            connection.request("GET", f"{self._path}/api/v1/runs/{_part(run)}/stream", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ServiceError(_problem(answer.status, answer.read()))
            told: dict[str, str] = {}
            for raw in answer:
                line = raw.decode("utf-8").rstrip("\r\n")
                if line:
                    name, _, value = line.partition(": ")
                    told[name] = value
                elif "data" in told:
                    yield Message(told["event"], told["id"], json.loads(told["data"]))
                    told = {}
        finally:
            connection.close()

    # ---- records ----

    def log(self, run: str, step: int, values: Mapping[str, float]) -> int:
        """Record metrics of a step; how many. Harmless when sent again."""
        rows = {"names": list(values), "steps": [step] * len(values), "values": [_number(v) for v in values.values()]}
        return int(self._json("POST", f"/runs/{_part(run)}/metrics:batch", rows, again=True)["stored"])

    def log_rows(self, run: str, rows: Sequence[tuple[str, int, float]]) -> int:
        """(name, step, value) of each; at most 10,000."""
        body = {
            "names": [n for n, _, _ in rows],
            "steps": [s for _, s, _ in rows],
            "values": [_number(v) for _, _, v in rows],
        }
        return int(self._json("POST", f"/runs/{_part(run)}/metrics:batch", body, again=True)["stored"])

    def metrics(self, run: str, names: Sequence[str] = ()) -> Json:
        """{name: {step, value, min, max}} of the newest values."""
        found: Json = self._json("GET", f"/runs/{_part(run)}/metrics", query={"names": ",".join(names)})["metrics"]
        return found

    def history(self, run: str, name: str, *, max_points: int | None = None) -> list[Json]:
        """Points of one metric in order; with ``max_points`` buckets with their means and extremes."""
        path = f"/runs/{_part(run)}/metrics/{quote(name, safe='/')}"
        if max_points is not None:
            buckets: list[Json] = self._json("GET", path, query={"max_points": max_points})["buckets"]
            return buckets
        return list(self._pages(path, "points", {"page_size": 25_000}))

    def events(self, run: str) -> list[Json]:
        return list(self._pages(f"/runs/{_part(run)}/events", "events", {"page_size": 1000}))

    def alarms(self, run: str, state: Literal["open", "acked", "closed"] | None = None) -> list[Json]:
        """Newest first."""
        query = f"?state={state}" if state else ""
        found: list[Json] = self._json("GET", f"/runs/{_part(run)}/alarms{query}")["alarms"]
        return found

    def acknowledge(self, run: str, alarm: int) -> Json:
        """Say that an alarm was seen."""
        return self._json("POST", f"/runs/{_part(run)}/alarms/{alarm}:ack")

    def segments(self, run: str) -> list[Json]:
        """The processes that trained it."""
        found: list[Json] = self._json("GET", f"/runs/{_part(run)}/segments")["segments"]
        return found

    def checkpoints(self, run: str) -> list[Json]:
        found: list[Json] = self._json("GET", f"/runs/{_part(run)}/checkpoints")["checkpoints"]
        return found

    def rollouts(
        self,
        run: str,
        filter: str = "",
        *,
        order_by: str = "trained",
        step: int | None = None,
        fields: Sequence[str] = (),
        page_size: int = 50,
    ) -> Iterator[Json]:
        query = {
            "filter": filter,
            "order_by": order_by,
            "step": step,
            "fields": ",".join(fields),
            "page_size": page_size,
        }
        return self._pages(f"/runs/{_part(run)}/rollouts", "rollouts", query)

    def rollout(self, run: str, rollout: str) -> Json:
        """One, whole."""
        return self._json("GET", f"/runs/{_part(run)}/rollouts/{_part(rollout)}")

    # ---- verifiers ----

    def verify(self, verifier: str, items: Sequence[Mapping[str, str]]) -> list[Json]:
        """The verdict of a registered version on each {gold, completion[, prompt]}. ``verifier``: its digest, or ``NAME@N``, or
        ``NAME`` for the newest."""
        digest = verifier if verifier.startswith("sha256:") else self._version(verifier)
        body = {"verifier": digest, "items": [dict(i) for i in items]}
        found: list[Json] = self._json("POST", "/verify", body, again=True)["verdicts"]
        return found

    def _version(self, named: str) -> str:
        name, _, ordinal = named.partition("@")
        there = self.verifier_versions(name)
        for version in there:  # the newest first
            if ordinal in ("", str(version["ordinal"])):
                return str(version["digest"])
        known = ", ".join(f"{name}@{version['ordinal']}" for version in there)
        raise ConfigError(
            f"no version {named!r:.80} is registered", where="verifier", fix=f"a digest, or one of {known}"
        )

    def verifiers(self) -> Iterator[Json]:
        return self._pages("/verifiers", "verifiers", {})

    def verifier_versions(self, name: str) -> list[Json]:
        """Newest first."""
        found: list[Json] = self._json("GET", f"/verifiers/{_part(name)}/versions")["versions"]
        return found

    def set_verifier_status(
        self, digest: str, status: Literal["active", "deprecated", "quarantined"], reason: str = ""
    ) -> Json:
        path = f"/verifier-versions/{_part(digest)}"
        version = self._json("GET", path)["status_at"] or 0
        return self._json("PATCH", path, {"status": status, "reason": reason}, headers={"If-Match": f'"{version}"'})

    def rescore(self, from_version: str, to_version: str, runs: Sequence[str], **more: Any) -> Json:
        """Judge stored rollouts by another registered version; ``more``: filter, sample, stratify, seed, threshold, again. The
        same question is the same re-scoring: asked again it goes on."""
        body = {"from_version": from_version, "to_version": to_version, "runs": list(runs), **more}
        return self._json("POST", "/rescores", body, headers={"Idempotency-Key": secrets.token_hex(16)})

    def rescores(self) -> list[Json]:
        """Newest first."""
        found: list[Json] = self._json("GET", "/rescores")["rescores"]
        return found

    def rescoring(self, rescore: str) -> Json:
        """How far it is: {state, done, total, verdict, ...}."""
        return self._json("GET", f"/rescores/{_part(rescore)}")

    def rescore_report(self, rescore: str) -> Json:
        return self._json("GET", f"/rescores/{_part(rescore)}/report")

    # ---- where it came from ----

    def provenance(self, kind: str, id: str, *, direction: Literal["back", "forward"] = "back") -> Json:
        """What a checkpoint, run, segment, ... was made of, or what was made of it: {roots, nodes, edges, cut}."""
        return self._json("GET", f"/provenance/{_part(kind)}/{quote(id, safe='/')}", query={"direction": direction})

    def affected(self, verifier_version: str) -> Json:
        """All that a bad verifier version, by its digest, taints: as ``provenance``, with ``runs`` and ``judged``."""
        return self._json("GET", "/provenance/affected", query={"verifier_version": verifier_version})

    def diff(self, a: str, b: str) -> Json:
        """How two runs differ."""
        return self._json("GET", "/runs:diff", query={"a": a, "b": b})

    def verify_run(self, run: str) -> Json:
        """Hold a run's record against its digests: {whole, faults, ...}."""
        return self._json("POST", f"/runs/{_part(run)}:verify", again=True)

    # ---- what runs are made of ----

    def projects(self) -> list[Json]:
        found: list[Json] = self._json("GET", "/projects")["projects"]
        return found

    def datasets(self) -> Iterator[Json]:
        return self._pages("/datasets", "datasets", {})

    def dataset_versions(self, name: str) -> list[Json]:
        found: list[Json] = self._json("GET", f"/datasets/{quote(name, safe='/')}/versions")["versions"]
        return found

    def register_dataset(self, name: str, manifest: Mapping[str, Any]) -> Json:
        """By the manifest that its loader made."""
        path = f"/datasets/{quote(name, safe='/')}/versions"
        return self._json("POST", path, {"manifest": dict(manifest)}, again=True)

    def models(self) -> Iterator[Json]:
        return self._pages("/models", "models", {})

    def register_model(self, name: str, files: Mapping[str, str]) -> Json:
        """``files``: relative path -> sha256:..."""
        return self._json("POST", "/models", {"name": name, "files": dict(files)}, again=True)

    # ---- underneath ----

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of a request under ``/api/v1``. ``again``: doing it twice does no harm; so too with a GET or
        an Idempotency-Key."""
        asked = {name: value for name, value in (query or {}).items() if value not in (None, "")}
        target = f"{self._path}/api/v1{path}" + (f"?{urlencode(asked)}" if asked else "")
        data = None if body is None else json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        sent = {
            **self._headers(),
            **({"Content-Type": "application/json"} if data is not None else {}),
            **(headers or {}),
        }
        repeatable = again or method == "GET" or "Idempotency-Key" in sent
        for attempt in range(1, self._tries + 1):
            last = attempt == self._tries or not repeatable
            try:
                if time.monotonic() - self._used > KEPT_SECONDS:
                    self.close()  # the service may be about to, and what cannot be repeated would be lost on it
                if self._connection is None:
                    self._connection = self._open()
                self._connection.request(method, target, data, sent)
                answer = self._connection.getresponse()
                status, told, found = answer.status, dict(answer.getheaders()), answer.read()
                self._used = time.monotonic()
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if last:
                    raise Unreachable(
                        f"no answer: {error}", where=self.url, fix="is the service there? jurat serve"
                    ) from None
                time.sleep(min(2.0, 0.05 * 2**attempt))
                continue
            if status in _AGAIN and not last:
                time.sleep(min(10.0, float(told.get("retry-after", "0.2"))))
                continue
            if status >= 400:
                raise ServiceError(_problem(status, found))
            return status, told, found
        raise AssertionError("unreachable")

    def _open(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._netloc, timeout=self._timeout)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _json(self, method: str, path: str, body: Any = None, **more: Any) -> Json:
        found: Json = json.loads(self.request(method, path, body, **more)[2])
        return found

    def _pages(self, path: str, name: str, query: Mapping[str, Any]) -> Iterator[Json]:
        token: str | None = None
        while True:
            page = self._json("GET", path, query={**query, "page_token": token})
            yield from page[name]
            token = page["next_page_token"]
            if token is None:
                return


def _part(text: str) -> str:
    """One part of a path."""
    return quote(text, safe="")


def _number(value: float) -> float | str:
    value = float(value)
    if value != value:
        return "NaN"
    return value if abs(value) != float("inf") else "Infinity" if value > 0 else "-Infinity"


def _problem(status: int, body: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        found = None
    return (
        found
        if isinstance(found, dict)
        else {"status": status, "type": "", "title": f"HTTP {status}", "detail": f"HTTP {status}"}
    )
