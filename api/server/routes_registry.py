"""What runs are made of and grouped by: data sets and models by digest, projects by name."""

from __future__ import annotations

from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Path, Request, Response

from jurat.api.server import pages, shapes, strict
from jurat.api.server.problems import Problem, responses
from jurat.api.server.routes_runs import PageSize, PageToken
from jurat.api.server.service import CanRead, CanWrite, Here, Service, once
from jurat.api.server.shapes import tell
from jurat.datasets.manifest import Manifest
from jurat.platform.db import tables as t
from jurat.platform.db.keyset import Key, after, ordering
from jurat.platform.errors import DataError, NameTaken
from jurat.platform.provenance import folders, versions

router = strict.routes("registry")
_D, _M = t.dataset_version.c, t.model_version.c
Named = Annotated[str, Path(max_length=500)]


@router.get("/projects", summary="Projects that runs name", responses=responses())
def list_projects(service: Here, who: CanRead) -> Response:
    """A project is a label of its runs: it is there while a run has it."""
    c = t.run.c
    query = sa.select(c.project, sa.func.count().label("runs"), sa.func.max(c.created).label("newest"))
    query = query.where(c.project != "", c.deleted_at.is_(None)).group_by(c.project).order_by(c.project).limit(1000)
    return tell({"projects": service.store.read(lambda k: [
        {"name": row.project, "runs": row.runs, "newest": row.newest} for row in k.execute(query)
    ])})  # fmt: skip


@router.get("/datasets", summary="Registered versions of data sets, by name", responses=responses("bad-page-token"))
def list_datasets(service: Here, who: CanRead, page_size: PageSize = 50, page_token: PageToken = None) -> Response:
    query = sa.select(_D.name, _D.digest, _D.split, _D.rows, _D.created)
    return _page(service, "datasets", query, _D.name, _D.digest, page_size, page_token)


@router.get("/models", summary="Registered models, by name", responses=responses("bad-page-token"))
def list_models(service: Here, who: CanRead, page_size: PageSize = 50, page_token: PageToken = None) -> Response:
    query = sa.select(_M.name, _M.digest, _M.created)
    return _page(service, "models", query, _M.name, _M.digest, page_size, page_token)


def _page(
    service: Service, what: str, query: sa.Select[Any], name: Any, digest: Any, size: int, page_token: str | None
) -> Response:
    asked, keys = f"{what}\x00{size}", [Key(column, False, nulls=False) for column in (name, digest)]
    if page_token is not None:
        query = query.where(after(keys, pages.unseal(service.secret, asked, page_token, len(keys))))
    query = query.order_by(*ordering(keys)).limit(size + 1)
    rows = service.store.read(lambda c: [dict(row) for row in c.execute(query).mappings()])
    token = None
    if len(rows) > size:
        token = pages.seal(service.secret, asked, [rows[size - 1]["name"], rows[size - 1]["digest"]])
    return tell({what: rows[:size], "next_page_token": token})


@router.get("/datasets/{name:path}/versions", summary="Versions of a data set, newest first", responses=responses())
def dataset_versions(name: Named, service: Here, who: CanRead) -> Response:
    query = sa.select(_D.digest, _D.split, _D.rows, _D.created, _D.manifest).where(_D.name == name)
    query = query.order_by(_D.created.desc(), _D.digest).limit(1000)
    rows = service.store.read(lambda c: [dict(row) for row in c.execute(query).mappings()])
    if not rows:
        raise Problem("not-found", "no data set of that name is registered")
    return tell({"name": name, "versions": rows})


@router.post("/datasets/{name:path}/versions", status_code=201, summary="Register a version of a data set",
             responses=responses("conflict", "in-flight", "key-reused"))  # fmt: skip
def register_dataset(name: Named, asked: shapes.NewDataset, request: Request, service: Here, who: CanWrite) -> Response:
    """By its manifest alone: nothing is fetched, opened or launched from it. Facts of a version never change."""
    try:
        manifest = Manifest.from_json({**asked.manifest, "source": asked.manifest.get("source", name)})
    except (DataError, TypeError, ValueError, AttributeError) as error:
        said = error.what if isinstance(error, DataError) else "a key has a value of another kind"
        raise _invalid("/manifest", said) from None
    if manifest.source != name:
        raise _invalid("/manifest/source", "the manifest is of another data set")
    if not (isinstance(manifest.rows, int) and isinstance(manifest.split, str) and 0 <= manifest.rows < 1 << 53):
        raise _invalid("/manifest", "rows is a whole number, split a name")
    if not shapes.DIGEST.fullmatch(str(manifest.digest)):
        raise _invalid("/manifest/digest", "a digest is sha256: and 64 hexadecimal digits")

    def register() -> Response:
        try:
            service.writer.call(lambda c: versions.register_dataset(c, asked.manifest | {"source": name}))
        except NameTaken as error:
            raise Problem("conflict", error.what) from None
        service.audit(who.name, "register data set", manifest.digest, request.scope["state"]["request_id"], "done")
        return tell({"name": name, "digest": manifest.digest, "rows": manifest.rows, "split": manifest.split}, 201)

    return once(request, who, register)


@router.post("/models", status_code=201, summary="Register a model by its files' digests",
             responses=responses("in-flight", "key-reused"))  # fmt: skip
def register_model(asked: shapes.NewModel, request: Request, service: Here, who: CanWrite) -> Response:
    """Its digest is that which a run finds for a folder of these files."""
    named = folders.digest_of(asked.files)

    def register() -> Response:
        service.writer.call(lambda c: versions.register_model(c, named, asked.name, asked.files))
        service.audit(who.name, "register model", named, request.scope["state"]["request_id"], "done")
        return tell({"name": asked.name, "digest": named}, 201)

    return once(request, who, register)


def _invalid(pointer: str, message: str) -> Problem:
    return Problem("invalid", f"{pointer}: {message}",
                   errors=[{"pointer": pointer, "code": "invalid", "message": message}])  # fmt: skip
