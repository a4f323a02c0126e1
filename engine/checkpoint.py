"""Checkpoints: folders that are either whole or not there, each file named with its digest.

::

    <folder>/step-000020/
        policy/         a Hugging Face folder (float32 masters, config, tokenizer), optimizer.safetensors, learner.json
        state.json      {"source": cursor, plans, allocator, ...; "meta": run, recipe, reward spec, ...}
        manifest.json   {"format", "step", "parent", "files": {path: sha256}}

A checkpoint is written beside its place, synced to disk, and renamed into it: a process killed at any moment leaves
the one before untouched. Where learners can stage it is written while they go on learning. Nothing is pickled.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
import shutil
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from jurat.engine.tensorfile import DIGESTS, digest_of, load_tensors, sync, write_side_files, write_tensors
from jurat.platform import faults
from jurat.platform.errors import RunFailed
from jurat.platform.ports import Learner, Stages, State
from jurat.platform.types import CheckpointRef

FORMAT = 1
SPARE_BYTES = 1 << 26
"""Room asked for beyond the tensors: config, tokenizer, state."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NAME = re.compile(r"step-(\d{6,})(\.replaced)?")
_log = logging.getLogger("jurat")


class FolderCheckpoints:
    """Writes checkpoints into ``folder`` and keeps the last ``keep`` of them."""

    def __init__(
        self,
        folder: Path,
        *,
        keep: int = 2,
        parent: str = "",
        meta: Mapping[str, Any] | None = None,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """``before`` is called when a checkpoint is whole, before it takes its place, and may refuse by raising."""
        self.folder, self.keep, self.parent, self.meta, self.before = folder, keep, parent, dict(meta or {}), before

    async def save(self, *, step: int, learners: Mapping[str, Learner], source: State) -> CheckpointRef:
        return await (await self.begin(step=step, learners=learners, source=source))

    async def begin(
        self, *, step: int, learners: Mapping[str, Learner], source: State
    ) -> asyncio.Future[CheckpointRef]:
        """The checkpoint, to be awaited before the next is begun: done already, or in writing where learners stage.

        Raises RunFailed when the disk is full, here or when awaited; the checkpoints that were there stay as they were.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in self.folder.glob(".step-*"):  # of a process that was killed
            shutil.rmtree(stale)
        needed = sum(learner.checkpoint_bytes for learner in learners.values()) + SPARE_BYTES
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise _disk_full(self.folder, f"{needed >> 20} MiB are needed and {free >> 20} MiB free")
        draft = self.folder / f".step-{step:06d}"
        written: list[Awaitable[None]] = []
        with self._drafting(draft):
            try:
                for role, learner in learners.items():
                    if isinstance(learner, Stages):
                        written.append(await learner.stage(draft / role))
                    else:
                        await learner.save(draft / role)
                    faults.point("checkpoint.mid_write")
                _write_json(draft / "state.json", {"source": source, "meta": self.meta})
            except BaseException:
                await asyncio.gather(*written, return_exceptions=True)  # nobody writes into a draft that goes
                raise
        if written:
            return asyncio.create_task(self._written(draft, step, written))
        done: asyncio.Future[CheckpointRef] = asyncio.get_running_loop().create_future()
        done.set_result(self._finish(draft, step))
        return done

    async def _written(self, draft: Path, step: int, written: Sequence[Awaitable[None]]) -> CheckpointRef:
        with self._drafting(draft):
            for ended in await asyncio.gather(*written, return_exceptions=True):
                if isinstance(ended, BaseException):
                    raise ended
        return await asyncio.to_thread(self._finish, draft, step)

    @contextmanager
    def _drafting(self, draft: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            if error.errno in NO_ROOM:
                raise _disk_full(self.folder, error.strerror or "no space left") from error
            raise

    def _finish(self, draft: Path, step: int) -> CheckpointRef:
        """Once all files are there: name them with their digests, and rename."""
        final = self.folder / f"step-{step:06d}"
        with self._drafting(draft):
            files = dict(_digests(draft))
            manifest = {"format": FORMAT, "step": step, "parent": self.parent, "files": files}
            _write_json(draft / "manifest.json", manifest)
            sync(draft)
        digest = digest_of(draft / "manifest.json")
        faults.point("checkpoint.before_rename")
        self.before()
        replaced = self.folder / f"{final.name}.replaced"
        if final.exists():  # the step was taken again after a resume from an older checkpoint
            final.rename(replaced)
        draft.rename(final)
        sync(self.folder)
        faults.point("checkpoint.after_rename")
        shutil.rmtree(replaced, ignore_errors=True)
        for _, old in _candidates(self.folder)[self.keep :]:
            shutil.rmtree(old)
        return CheckpointRef(path=str(final), digest=digest, step=step, parent=self.parent, meta=self.meta)


def latest(folder: Path, *, report: Callable[[str], None] = _log.warning) -> CheckpointRef | None:
    """The newest whole checkpoint of ``folder``; each newer one that is incomplete or damaged is reported by name."""
    for _, path in _candidates(folder):
        wrong = damage(path)
        if not wrong:
            return open_checkpoint(path)
        report(f"checkpoint {path} is left out: {wrong}")
    return None


def damage(path: Path) -> str:
    """What is wrong with a checkpoint folder, '' if every file is there with the digest of the manifest."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if manifest["format"] != FORMAT:
            return f"manifest.json has format {manifest['format']!r}, this version reads {FORMAT}"
        files = dict(manifest["files"])
        _ = manifest["step"], manifest["parent"], files["state.json"]  # without them it is no checkpoint
    except FileNotFoundError:
        return "manifest.json is missing"
    except (ValueError, KeyError, TypeError) as error:
        return f"manifest.json cannot be read ({type(error).__name__}: {error})"
    for name, wanted in files.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        found = digest_of(path / name)
        if found != wanted:
            return f"{name} is damaged: its digest is {found[:23]}…, the manifest says {wanted[:23]}…"
    return ""


def open_checkpoint(path: Path) -> CheckpointRef:
    """The reference of a whole checkpoint (see ``damage``)."""
    manifest = json.loads((path / "manifest.json").read_text())
    meta = json.loads((path / "state.json").read_text())["meta"]
    digest = digest_of(path / "manifest.json")
    return CheckpointRef(path=str(path), digest=digest, step=manifest["step"], parent=manifest["parent"], meta=meta)


def state_of(path: Path) -> State:
    """The group source's state that was saved with a checkpoint."""
    state: State = json.loads((path / "state.json").read_text())["source"]
    return state


async def load_into(path: Path, learners: Mapping[str, Learner], *, weights_only: bool = False) -> None:
    """Set each learner to what it was; with ``weights_only`` its optimiser and schedule start anew."""
    for role, learner in learners.items():
        if not (path / role).is_dir():
            raise RunFailed(f"the checkpoint has no learner {role!r}", where=str(path),
                            fix="resume with the recipe that wrote it")  # fmt: skip
        await learner.load(path / role, weights_only=weights_only)


def export(path: Path, out: Path, *, role: str = "policy", dtype: torch.dtype = torch.bfloat16) -> None:
    """Write the model of a checkpoint as a Hugging Face folder (config, tokenizer, weights in ``dtype``)."""
    write_side_files(path / role, out, dtype=dtype)
    write_tensors(out / "model.safetensors", load_tensors(path / role / "model.safetensors", dtype=dtype))


def _candidates(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of finished checkpoints, newest first; one that was being replaced comes after its successor."""
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    found.sort(key=lambda each: (int(each[0][1]), each[0][2] is None), reverse=True)
    return [(int(match[1]), path) for match, path in found]


def _digests(draft: Path) -> Iterator[tuple[str, str]]:
    """(path in the checkpoint, digest) of each file; those that learners recorded are not read again."""
    for path in sorted(draft.rglob("*")):
        if path.is_file():
            recorded = path.parent / DIGESTS
            known = json.loads(recorded.read_text()) if recorded.is_file() else {}
            yield path.relative_to(draft).as_posix(), known.get(path.name) or digest_of(path)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")
    sync(path)


def _disk_full(folder: Path, detail: str) -> RunFailed:
    return RunFailed(f"no room for a checkpoint: {detail}", where=str(folder.resolve()),
                     fix="free disk space, then resume: the last checkpoint is intact")  # fmt: skip
