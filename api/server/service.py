"""What the routes share: the store, keys, the reader of rollouts, the launcher, and who calls."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import sqlalchemy as sa
from fastapi import Depends, Request, Response

from jurat.api.server import keys
from jurat.api.server.access import LOCAL, Keys, Principal, blotted
from jurat.api.server.guard import Failures, Rates
from jurat.api.server.problems import Problem
from jurat.api.server.prometheus import Requests
from jurat.platform import access
from jurat.platform.db.writer import Writer
from jurat.platform.errors import ConfigError, JuratError
from jurat.platform.runs import disk
from jurat.platform.runs.records import RunInfo
from jurat.platform.runs.store import Store

if TYPE_CHECKING:
    from jurat.api.server.launcher import Launcher
    from jurat.api.server.reader import Reader
    from jurat.api.server.rescoring import Rescorings
    from jurat.api.server.verdicts import Judges

PORT = 8642


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How ``jurat serve`` was started."""

    home: Path
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = PORT
    host_names: tuple[str, ...] = ()
    """Further names by which the service may be called."""
    recipes: tuple[Path, ...] = ()
    """Folders of the operator's recipes, beside those that ship."""
    verifiers: tuple[str, ...] = ()
    """Files of the operator's verifiers, for ``POST /verify``."""
    slots: int = 1
    """Runs that the launcher keeps going at once; 0: it launches none."""
    gpus: int | None = None
    """GPUs that they may take together, by their recipes; None: as many as they like."""
    ray: str | None = None
    """Address of a Ray cluster's head, on which runs are launched; None: processes of this machine."""
    lease_seconds: float = 45.0
    durable: bool = False
    """Every answer survives a power cut too, not only the death of the process; each commit then waits for the disk."""
    open_to_all: bool = False
    """``--insecure-no-auth``."""
    import_bytes: int = 16 << 30
    """Of a bundle that is taken in over HTTP, at most."""
    rate: float = 2000.0
    """Requests a second of one key, in the long run; four times as many at once."""
    at_once: int = 256
    """Requests of one key that may go on at the same time, streams too."""

    @property
    def loopback(self) -> bool:
        return is_loopback(self.host)

    @property
    def hosts(self) -> frozenset[str]:
        """What a Host header may say."""
        own = {"127.0.0.1", "localhost", "[::1]"} if self.loopback or self.everywhere else {_bracketed(self.host)}
        return frozenset({*own, *(_bracketed(name.lower()) for name in self.host_names)})

    @property
    def everywhere(self) -> bool:
        """It listens on all addresses of this machine, whatever they are."""
        return self.host.strip("[]") in ("0.0.0.0", "::")

    @property
    def url(self) -> str:
        return f"http://{_bracketed(self.host)}:{self.port}"


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


@dataclass(slots=True, kw_only=True)
class Service:
    """One of them a process; closed by whoever made it."""

    settings: Settings
    store: Store
    secret: bytes
    keys: Keys
    writer: Writer
    rates: Rates
    requests: Requests = field(default_factory=Requests)
    failures: Failures = field(default_factory=Failures)
    reader: Reader | None = None
    launcher: Launcher | None = None
    judges: Judges | None = None
    rescorings: Rescorings | None = None

    @classmethod
    def start(cls, settings: Settings) -> Service:
        """Raises ConfigError where the service would listen to others without a key; else what ``Store.open`` raises."""
        from jurat.api.server.reader import Reader
        from jurat.api.server.rescoring import Rescorings
        from jurat.api.server.verdicts import Judges

        disk.reserve()
        store = Store.open(settings.database, settings.home, migrate=False, durable=settings.durable)
        writer = Writer(store.engine)
        made = cls(
            settings=settings, store=store, secret=keys.service_secret(settings.home), writer=writer,
            keys=Keys(store, writer), rates=Rates(settings.rate, settings.at_once),
            reader=Reader(), judges=Judges(settings.verifiers), rescorings=Rescorings(store, settings.verifiers),
        )  # fmt: skip
        if not settings.loopback and not settings.open_to_all and not made.keys.any():
            made.close()
            raise ConfigError(
                "the service has no key, so it listens on this machine alone", where=f"--host {settings.host}",
                fix="jurat auth init makes the first key; or leave --host out",
            )  # fmt: skip
        return made

    @property
    def open(self) -> bool:
        """Whoever reaches the port may do everything: on loopback, until there is a key."""
        return self.settings.open_to_all or (self.settings.loopback and not self.keys.any())

    @property
    def name(self) -> str:
        """Of the service on this home folder, whichever process it is."""
        return hashlib.sha256(b"service\x00" + self.secret).hexdigest()[:16]

    def forget_open(self) -> None:
        """Called by the one process that holds the home folder, before it serves: no request of before goes on."""
        self.writer.call(lambda connection: access.drop_open(connection, self.name))

    def audit(self, who: str, action: str, target: str, request_id: str, outcome: str) -> None:
        """Note what was refused or changed; the note is on its way when this returns."""
        row = {"principal": who, "action": action, "target": target, "request_id": request_id, "outcome": outcome}
        kept = {name: blotted(text)[:200] for name, text in row.items()}
        self.writer.leave(
            lambda connection: access.audit(connection, **kept), f"noting {kept['action']!r} in the audit"
        )

    def close(self) -> None:
        for part in (self.launcher, self.reader, self.judges, self.rescorings, self.writer):
            if part is not None:
                part.close()
        self.store.close()


def of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


async def _here(request: Request) -> Service:
    """A coroutine: a plain function would be called in a thread."""
    return of(request)


Here = Annotated[Service, Depends(_here)]


# ---- who calls ---------------------------------------------------------------------------------------------------


def principal_of(request: Request) -> Principal:
    """Raises Problem: 401 without a good key, 429 after many bad ones. Unknown and wrong keys are answered alike."""
    service, state = of(request), request.scope["state"]
    if "principal" in state:
        return cast(Principal, state["principal"])
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    found: Principal | None = None
    if shown or not service.open:
        address = request.client.host if request.client else ""
        if scheme.lower() == "bearer":
            found = service.keys.principal(shown.strip())
        if found is None:
            if shown:
                service.failures.refuse(address)  # who shows a good key does not wait for others of the address
                service.failures.failed(address)
                service.audit(
                    "unknown", f"{request.method} {request.url.path}", address, state["request_id"], "unauthenticated"
                )
            raise Problem("unauthenticated", "send Authorization: Bearer KEY", headers={"WWW-Authenticate": "Bearer"})
        leave, refused, first = service.rates.enter(found.name)
        state.setdefault("leaving", []).append(leave)
        if refused is not None:
            if first:  # a row a minute: a flood of refusals is no flood of writes
                service.audit(
                    found.name,
                    f"{request.method} {request.url.path}",
                    address,
                    state["request_id"],
                    "too-many-requests",
                )
            raise refused
    state["principal"] = found or LOCAL
    return cast(Principal, state["principal"])


async def still(request: Request, who: Principal) -> bool:
    """Whether who began a stream may still listen: the key was not revoked, or there still is none."""
    keys_, shown = of(request).keys, request.headers.get("authorization", "").partition(" ")[2].strip()
    if keys_.fresh(shown):
        return True
    try:
        if who is LOCAL:
            return await asyncio.to_thread(lambda: of(request).open)
        return await asyncio.to_thread(keys_.principal, shown) is not None
    except JuratError:  # a store that does not answer
        return True


async def caller(request: Request) -> Principal:
    """``principal_of`` for a route that is a coroutine: a thread is asked only where the key must be looked up."""
    if "principal" in request.scope["state"] or of(request).keys.fresh(
        request.headers.get("authorization", "").partition(" ")[2].strip()
    ):
        return principal_of(request)
    return await asyncio.to_thread(principal_of, request)


def needs(scope: str) -> Any:
    """A dependency: the principal, who has ``scope``. Raises Problem."""

    def check(request: Request) -> Principal:
        found = principal_of(request)
        if not found.may(scope):
            denied(request, found, f"the key has no scope {scope}")
        return found

    return Depends(check)


def denied(request: Request, who: Principal, detail: str) -> None:
    """Note it and raise."""
    state = request.scope["state"]
    of(request).audit(who.name, f"{request.method} {request.url.path}", "", state["request_id"], "forbidden")
    raise Problem("forbidden", detail)


CanRead = Annotated[Principal, needs("runs:read")]
CanWrite = Annotated[Principal, needs("runs:write")]
CanLaunch = Annotated[Principal, needs("runs:launch")]
CanReadData = Annotated[Principal, needs("data:read")]
CanVouch = Annotated[Principal, needs("verifiers:write")]
Admin = Annotated[Principal, needs("admin")]


def run_named(service: Service, run: str) -> RunInfo:
    """A run by its whole id. Raises Problem."""
    try:
        found = service.store.run(run)
    except ConfigError:
        found = None
    if found is None or found.id != run or found.deleted_at is not None:
        raise no_run()
    return found


def no_run() -> Problem:
    return Problem("not-found", "there is no such run")


# ---- once --------------------------------------------------------------------------------------------------------


def once(
    request: Request,
    who: Principal,
    do: Callable[[], Response],
    again: Callable[[str], Response] | None = None,
) -> Response:
    """``do``, or, where the request carries an Idempotency-Key that was seen, the answer of that time; ``again`` makes it
    for a run that was made (``noted``) by a process that ended before it could answer."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return do()
    if not 0 < len(key) <= 255 or not key.isprintable():
        raise Problem("invalid", "Idempotency-Key has 1 to 255 printable characters",
                      errors=[{"pointer": "Idempotency-Key", "code": "invalid",
                      "message": "too long, or not printable"}])  # fmt: skip
    service = of(request)
    route, sha256 = f"{request.method} {request.url.path}", hashlib.sha256(request.scope["state"]["body"]).hexdigest()
    seen = service.writer.call(
        lambda connection: access.begin_request(
            connection, who.name, key, route=route, body_sha256=sha256, by=service.name
        )
    )
    if seen is not None:
        if (seen.route, seen.body_sha256) != (route, sha256):
            raise Problem("key-reused", "this Idempotency-Key was used for another request",
                          errors=[{"pointer": "Idempotency-Key", "code": "key-reused",
                          "message": "take a new one"}])  # fmt: skip
        if seen.made is not None and again is not None:
            answer = again(seen.made)
            answer.headers["Idempotent-Replayed"] = "true"
            return answer
        if seen.status is None:
            raise Problem("in-flight", "the first request with this key goes on", headers={"Retry-After": "1"})
        return Response(seen.body, seen.status, {**(seen.headers or {}), "Idempotent-Replayed": "true"})
    try:
        made = do()
        kept = {name: value for name, value in made.headers.items() if name.lower() not in ("content-length", "date")}
        service.writer.call(
            lambda connection: access.answer_request(
                connection, who.name, key, status=made.status_code, headers=kept, body=bytes(made.body)
            )
        )
    except BaseException:
        service.writer.call(lambda connection: access.drop_request(connection, who.name, key))
        raise
    return made


def noted(request: Request, who: Principal) -> Callable[[sa.Connection, str], None]:
    """Called in the transaction that makes a run: its Idempotency-Key then stands for it."""
    key = request.headers.get("idempotency-key")

    def note(connection: sa.Connection, run: str) -> None:
        if key is not None:
            access.note_made(connection, who.name, key, run)

    return note


# ---- versions ----------------------------------------------------------------------------------------------------


def etag(version: int) -> str:
    return f'"{version}"'


def refuse_stale(request: Request, version: int) -> None:
    """``If-Match`` by strong comparison: 428 without it, 412 if it names another version."""
    given = request.headers.get("if-match")
    if given is None:
        raise Problem("version-required", "send If-Match with the ETag that you read")
    if given.strip() != "*" and etag(version) not in [tag.strip() for tag in given.split(",")]:
        raise Problem("stale-version", "it has changed since; read it again", headers={"ETag": etag(version)})


def unchanged(request: Request, version: int) -> bool:
    """``If-None-Match`` by weak comparison."""
    given = request.headers.get("if-none-match")
    if given is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in given.split(",")]
    return "*" in tags or etag(version) in tags


def masked(
    body: Mapping[str, Any], fields: str | None, *, default: frozenset[str], known: frozenset[str]
) -> dict[str, Any]:
    """The fields that were asked for; ``id`` always. Raises Problem for one there is not."""
    wanted = default if fields is None else frozenset(each.strip() for each in fields.split(",") if each.strip())
    if unknown := sorted(wanted - known):
        raise Problem("invalid", f"there is no field {unknown[0][:80]!r}; there are {', '.join(sorted(known))}",
                      errors=[{"pointer": "fields", "code": "unknown-field", "message": "not a field"}])  # fmt: skip
    return {name: value for name, value in body.items() if name in wanted or name == "id"}
