"""Where a database file lies: SQLite in WAL shares memory between processes, which no network file system does."""

from __future__ import annotations

import re
from pathlib import Path

import sqlalchemy as sa

from jurat.platform.errors import RunFailed

NETWORK = frozenset({
    "nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "gpfs", "beegfs", "glusterfs", "pvfs2",
    "ncpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.juicefs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone",
})  # fmt: skip
MOUNTS = Path("/proc/self/mountinfo")


def kind_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds ``path``, which is absolute and without links; empty where it is not known.

    ``mounts``: as of ``/proc/self/mountinfo`` (proc_pid_mountinfo(5)).
    """
    best, kind = -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if len(parts := fields.split(" ")) < 5 or not rest:
            continue
        point = Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), parts[4]))
        if path.is_relative_to(point) and len(point.parts) >= best:  # the later of two at one place covers the earlier
            best, kind = len(point.parts), rest.split(" ")[0]
    return kind


def refuse_network(engine: sa.Engine, mounts: Path = MOUNTS) -> None:
    """Raises RunFailed for a SQLite file on a network file system. Only Linux says where a file lies."""
    file = engine.url.database
    if engine.dialect.name != "sqlite" or not file or file == ":memory:":
        return
    try:
        said = mounts.read_text("utf-8", "surrogateescape")
    except OSError:
        return
    kind = kind_of(Path(file).resolve(), said)
    if kind in NETWORK:
        raise RunFailed(
            f"the database would lie on a network file system ({kind}), where SQLite loses writes",
            where=file,
            fix="--home on a local disk (copy runs there with jurat runs export), or --database postgresql://user@host/name",
        )
