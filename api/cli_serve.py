"""``jurat serve`` and ``jurat auth``: the service and the keys to it; ``jurat gc`` and ``jurat scrub``: what its store need not,
and must not, keep."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Annotated

import typer

from jurat.api import terminal
from jurat.platform.errors import ConfigError, install

auth_app = typer.Typer(name="auth", no_args_is_help=True, help="Keys to the service.")


def register(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command(rich_help_panel="Serve")(serve)
    app.add_typer(auth_app, rich_help_panel="Serve")
    app.command(rich_help_panel="Set up")(gc)
    app.command(rich_help_panel="Set up")(scrub)


def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on. Anything but this machine's own needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8642,
    host_name: Annotated[
        list[str] | None,
        typer.Option(help="Another name by which clients may call it; repeat for more.", show_default=False),
    ] = None,
    recipes: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of recipes that may be launched, beside those that ship.", show_default=False),
    ] = None,
    verifier_file: Annotated[
        list[str] | None, typer.Option(help="File of verifiers that POST /verify may run.", show_default=False)
    ] = None,
    slots: Annotated[int, typer.Option(min=0, help="Runs at once; 0: none is launched.")] = 1,
    gpus: Annotated[
        int | None,
        typer.Option(min=0, help="GPUs that runs may take together, by their recipes.", show_default=False),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            show_default=False,
            help="Launch runs as Ray Jobs on the cluster whose head has this address, as in http://head:8265.",
        ),
    ] = None,
    lease_seconds: Annotated[
        float, typer.Option(min=1.0, help="How long a run without a heartbeat counts as alive.")
    ] = 45.0,
    key_rate: Annotated[
        float, typer.Option(min=0.1, help="Requests a second of one key; four times as many at once.")
    ] = 2000.0,
    durable: Annotated[
        bool, typer.Option("--durable", help="Wait for the disk with every commit, so that a power cut loses nothing.")
    ] = False,
    insecure_no_auth: Annotated[
        bool, typer.Option("--insecure-no-auth", help="Let everybody who reaches the port do everything.")
    ] = False,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Serve runs, metrics, rollouts and verdicts over REST, and launch runs. Ctrl-C stops it; runs go on."""
    needs_service()
    from jurat.api.server.service import Settings
    from jurat.api.server.serving import run
    from jurat.platform import logs

    logs.configure(logging.INFO)
    run(
        Settings(
            home=terminal.home(), database=database, host=host, port=port, host_names=tuple(host_name or ()),
            recipes=tuple(recipes or ()), verifiers=tuple(verifier_file or ()), slots=slots, gpus=gpus, ray=ray,
            lease_seconds=lease_seconds, open_to_all=insecure_no_auth, rate=key_rate, durable=durable,
        ),
        terminal.note,
        terminal.print_json if as_json else lambda _: None,
    )  # fmt: skip


def needs_service() -> None:
    """Raises ConfigError where the extra is not installed."""
    if absent := [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the service needs {' and '.join(absent)}", where="jurat serve", fix=install("api"))


Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        help="What it may do; repeat for more. All there are: runs:read, runs:write, runs:launch, verifiers:write, data:read, admin.",
        show_default=False,
    ),
]


@auth_app.command("init")
def init(database: terminal.Database = None, as_json: terminal.AsJson = False) -> None:
    """Make the first key, which may do everything. It is shown this once."""
    from jurat.platform import access
    from jurat.platform.runs.store import Store

    store = Store.open(database, terminal.home())
    try:
        if store.read(access.any_key):
            raise ConfigError(
                "there is a key already",
                where="jurat auth init",
                fix="jurat auth create NAME --scope ... makes another",
            )
        kept, key = store.write(lambda c: access.make_key(c, "first", ["admin"]))
    finally:
        store.close()
    _show(kept.key_id, key, as_json=as_json)


@auth_app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose or what for.")],
    scopes: Scopes = None,
    days: Annotated[float | None, typer.Option(min=0.001, help="How long it is good.", show_default=False)] = None,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Make a key. It is shown this once."""
    from jurat.platform import access
    from jurat.platform.runs.store import Store

    if not scopes:
        raise ConfigError(
            "a key needs a scope", where="jurat auth create", fix=f"--scope, some of {', '.join(access.SCOPES)}"
        )
    store = Store.open(database, terminal.home())
    try:
        kept, key = store.write(
            lambda c: access.make_key(c, name, scopes, seconds=None if days is None else days * 86_400)
        )
    finally:
        store.close()
    _show(kept.key_id, key, as_json=as_json)


def _show(key_id: str, key: str, *, as_json: bool) -> None:
    if as_json:
        terminal.print_json({"key_id": key_id, "key": key})
    else:
        typer.echo(key)
        terminal.note("  keep it: it is not shown again. Send it as  Authorization: Bearer KEY")


@auth_app.command("keys")
def keys(
    revoke: Annotated[str | None, typer.Option(metavar="KEY_ID", help="Revoke this one.", show_default=False)] = None,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """List keys, without their secrets, or revoke one."""
    from jurat.platform import access
    from jurat.platform.runs.store import Store

    store = Store.open(database, terminal.home())
    try:
        if revoke is not None and not store.write(lambda c: access.revoke(c, revoke)):
            raise ConfigError(
                f"there is no key {revoke!r} that is still good", where="--revoke", fix="jurat auth keys lists them"
            )
        found = store.read(access.keys)
    finally:
        store.close()
    if as_json:
        terminal.print_json(
            {
                "keys": [
                    {name: getattr(key, name) for name in key.__slots__ if name not in ("run_id", "epoch")}
                    for key in found
                ]
            }
        )
        return
    terminal.print_table(
        ["key id", "name", "scopes", "state"],
        [(key.key_id, key.name, " ".join(key.scopes), "revoked" if key.revoked_at else "good") for key in found],
    )


# ---- what is kept ------------------------------------------------------------------------------------------------


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would go.")] = False,
    days: Annotated[float, typer.Option(min=0, help="How long a deleted run keeps its files.")] = 30.0,
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Remove what no record names and what deleted runs left: drafts, parts without a row, unused blobs, files, metrics.

    What the lineage of anything needs stays: rows, digests, edges, and checkpoints that another run began from.
    """
    from jurat.platform.errors import RunFailed
    from jurat.platform.runs.gc import collect

    with terminal.store(database) as store:
        try:
            found = collect(store, dry_run=dry_run, kept_days=days)
        except OSError as error:
            raise RunFailed(f"a file cannot be removed: {error.strerror}", where=str(error.filename or "")) from None
    total = sum(each.bytes for each in found)
    if as_json:
        things = [{"kind": each.kind, "name": each.name, "bytes": each.bytes} for each in found]
        terminal.print_json({"removed": things, "bytes": total, "dry_run": dry_run})
        return
    terminal.print_table(
        ["kind", "name", "bytes"], [(each.kind, each.name, f"{each.bytes:,}") for each in found], right=(2,)
    )
    terminal.note(f"{len(found)} things, {total:,} bytes {'would go' if dry_run else 'are gone'}")


def scrub(
    run: Annotated[str, typer.Argument(help="The run's name, or the beginning of it.")],
    database: terminal.Database = None,
    as_json: terminal.AsJson = False,
) -> None:
    """Blot out what looks like a secret in a run's record: recipe, tags, command line, patch. Exits with 1 if an event holds one,
    as events cannot be changed."""
    from jurat.platform.provenance.bundle import write_record
    from jurat.platform.provenance.scrub import scrub as blot

    with terminal.store(database) as store:
        found = store.run(run)
        done = store.write(lambda connection: blot(connection, found))
        if done.changed and (found.folder / "record.json").is_file():
            write_record(store, store.run(found.id))
    if as_json:
        terminal.print_json({"run": found.id, "changed": done.changed, "left": done.left})
    else:
        for what in done.changed:
            typer.echo(f"blotted  {terminal.clean(what)}")
        for what in done.left:
            typer.echo(f"stays    {terminal.clean(what)}: it cannot be changed")
        if not done.changed and not done.left:
            typer.echo("nothing looks like a secret")
    if done.left:
        raise typer.Exit(1)
