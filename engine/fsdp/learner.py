"""The port ``Learner`` over several ranks: what goes to which rank, and what comes back as one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from jurat.engine import compute
from jurat.engine.fsdp.optim import MOMENTS
from jurat.engine.fsdp.worker import WIDEST, RankSpec, Updated, buckets_of, places_of, to_columns
from jurat.engine.learner import Snapshot, Tally, reported, worth_training
from jurat.engine.reshard import Carried, Layout, within
from jurat.engine.tensorfile import (
    digest_of,
    lay_out,
    record_digests,
    reserve,
    sync,
    write_side_files,
    write_tensors,
)
from jurat.platform.errors import RunFailed
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import FloatArray, Microbatch, Rounds, UpdateReport

P = ParamSpec("P")
T = TypeVar("T")
BUCKET_BYTES = 1 << 26
"""Weights on their way to the sampler: shared memory that a publish takes."""
POLL_SECONDS = 0.2
"""Between questions whether a checkpoint is written; each waits for the update that runs."""
WRITE_SECONDS, SLOWEST_DISK = 600.0, 1 << 22
"""A checkpoint is waited for so long, and a second more for so many bytes of it."""
SHARED = Path("/dev/shm")


class Hosts(Protocol):
    """Where ranks live: processes of this machine, or actors elsewhere (which would need another ``pull``)."""

    failed: str
    """Why they have ended; '' while they have not."""
    moves: int
    """Grows while ranks get further."""

    def meeting(self) -> str:
        """A new place where ranks find one another: a URL for torch.distributed."""
        ...

    def call(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call ``method`` of the first ``len(arguments)`` ranks at once; what each returned. Raises RunFailed."""
        ...

    def close(self) -> None: ...


class FsdpScorer:
    """Log-probs of weights that the ranks of a learner keep under a name: a reference model."""

    def __init__(self, learner: FsdpLearner, name: str) -> None:
        self.ranks, self._learner, self._name = learner.ranks, learner, name

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        return await self._learner.run(self._learner._score, rounds, self._name)


class FsdpLearner:
    """A model cut over ``processes`` (``ranks`` FSDP parts of ``tp`` tensor-parallel ones each), learning as one.

    Calls are made one at a time, in a thread of the learner's own: the event loop and the sampler's thread stay free.
    ``spec.rank`` and ``spec.rendezvous`` are filled in here. Raises RunFailed if a rank dies or stands still; then only
    ``close`` is left. A critic lives beside its ``policy``, in the same ranks and after the same thread.
    """

    def __init__(self, spec: RankSpec, processes: Hosts, *, policy: FsdpLearner | None = None) -> None:
        self.source, self.spec, self.processes = spec.folder, spec, processes
        self.role, self._prefix = ("critic", "critic.") if policy else ("policy", "")
        self.ranks = spec.ranks // spec.tp
        """Those with microbatches of their own."""
        self.published: Carried | None = None
        """The last ``pull``."""
        self._thread: ThreadPoolExecutor = (
            policy._thread if policy else ThreadPoolExecutor(1, thread_name_prefix="fsdp")
        )
        self._shared: tuple[Mapping[str, torch.dtype], np.memmap[Any, np.dtype[np.uint8]]] | None = None
        meeting = "" if policy else processes.meeting()
        specs = [dataclasses.replace(spec, rank=rank, rendezvous=meeting) for rank in range(spec.ranks)]
        opened = self.wait(processes.call, "open_critic" if policy else "open", [(each,) for each in specs])
        self.shapes: Mapping[str, tuple[int, ...]]
        self.layout: Layout
        self.shapes, self.layout = opened[0]

    @property
    def learned(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes of what learns."""
        return self.shapes

    @property
    def parameters(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values())

    def critic(self, optim: Optim, total: int) -> FsdpLearner:
        """A value model cut alike, which begins with the weights as they are now. It ends with this learner."""
        spec = dataclasses.replace(self.spec, optim=optim, total=total, adapters=None)
        return FsdpLearner(spec, self.processes, policy=self)

    def close(self) -> None:
        """End the ranks and their processes."""
        self.leave()
        self.processes.close()

    def leave(self) -> None:
        """End the ranks; their processes can be opened again."""
        if not self.processes.failed:
            self.wait(self.processes.call, "shut", [()] * self.spec.ranks)
        self._thread.shutdown()

    def wait(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have ``work`` done in the learner's thread; not from that thread."""
        return self._thread.submit(work, *args, **kwargs).result()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await compute.ended(self._thread.submit(work, *args, **kwargs))

    def _everywhere(self, method: str, *args: Any) -> list[Any]:
        return self.processes.call(self._prefix + method, [args] * self.spec.ranks)

    def _dealt(self, method: str, rounds: Rounds, *args: Any) -> list[Any]:
        """Call ``method`` with each rank's microbatches; tensor-parallel ranks get the same ones."""
        dealt = [[to_columns(each[rank]) for each in rounds] for rank in range(self.ranks)]
        shares = [(dealt[rank // self.spec.tp], *args) for rank in range(self.spec.ranks)]
        return self.processes.call(self._prefix + method, shares)

    # ---- learning ----

    async def score(self, rounds: Rounds) -> Sequence[Sequence[FloatArray]]:
        return await self.run(self._score, rounds)

    def _score(self, rounds: Rounds, of: str = "") -> list[list[FloatArray]]:
        asked = tuple(tuple(mb if bool(mb.loss_mask.any()) else nothing(mb) for mb in each) for each in rounds)
        found = self._dealt("score", asked, of)
        return [
            [
                found[rank * self.spec.tp][r] if len(asked[r][rank].tokens) else np.zeros(len(mb.tokens), np.float32)
                for rank, mb in enumerate(each)
            ]
            for r, each in enumerate(rounds)
        ]

    async def update(self, rounds: Rounds, objective: Objective, *, clip_norm: float | None = None) -> UpdateReport:
        """One optimiser step; a non-finite loss or gradient on any rank is ``skipped`` and changes no weight."""
        return await self.run(self._update, rounds, objective, clip_norm)

    def _update(self, rounds: Rounds, objective: Objective, clip_norm: float | None) -> UpdateReport:
        trained = trimmed(rounds, objective)
        parts: list[Updated] = self._dealt("update", trained, objective, clip_norm)
        tally = summed([part.tally for part in parts[:: self.spec.tp]])
        seconds = {name: max(part.seconds[name] for part in parts) for name in parts[0].seconds}
        return reported(self.role, tally, parts[0].stepped, objective, clip_norm=clip_norm, seconds=seconds)

    def keep(self, name: str) -> FsdpScorer:
        """A scorer with a copy of the weights as they are now, cut as they are."""
        self.wait(self._everywhere, "keep", name)
        return FsdpScorer(self, name)

    async def peaks(self) -> Mapping[str, int]:
        """{"rank" and, of GPUs, "rank gpu": most bytes that one of them has had since it was last asked}."""
        found = await self.run(self._everywhere, "peaks")
        return {f"rank {what}".removesuffix(" host"): max(each[what] for each in found) for what in found[0]}

    def snapshot(self) -> Snapshot:
        """Copies of all that an update reads and changes, cut as the ranks are."""
        found = self.wait(self._everywhere, "snapshot")
        return Snapshot([arrays for arrays, _ in found], dict(found[0][1]))

    def restore(self, snapshot: Snapshot) -> None:
        """Be as when ``snapshot`` was made, by as many ranks."""
        parts = [(part, snapshot.counters) for part in snapshot.parts]
        self.wait(self.processes.call, self._prefix + "resume", parts)

    # ---- storing ----

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of tensors that ``save`` writes."""
        return 3 * 4 * self.parameters

    async def save(self, folder: Path) -> None:
        """What ``LocalLearner.save`` writes, moments by name; each rank writes its slices into the laid-out files."""
        await (await self.stage(folder))

    async def stage(self, folder: Path) -> Coroutine[Any, Any, None]:
        """Copy what ``save`` writes to memory of the CPU and begin to write it: later updates do not reach it.

        What this returns ends when all is on the disk; until then ranks hold a copy of their slices and moments.
        """
        await self.run(self._stage, folder)
        return self._settled(folder)

    def _stage(self, folder: Path) -> None:
        self.write_side_files(folder)
        files = [
            (folder / name, what, lay_out(folder / name, shapes, dtype=torch.float32))
            for name, (shapes, what) in self.files().items()
        ]
        self._everywhere("stage", files)
        (folder / "learner.json").write_text(json.dumps(self.state(), indent=2, sort_keys=True) + "\n")

    async def _settled(self, folder: Path) -> None:
        patience = WRITE_SECONDS + self.checkpoint_bytes / SLOWEST_DISK
        end = time.monotonic() + patience
        while not all(written := await self.run(self._everywhere, "staged")):
            if time.monotonic() > end:
                late = [str(rank) for rank, done in enumerate(written) if not done]
                raise RunFailed(
                    f"rank{'s' * (len(late) > 1)} {', '.join(late)} of {len(written)} did not write the checkpoint within "
                    f"{patience:.0f} s", where=str(folder),
                    fix="see that its disk answers and has room, then jurat train --resume RUN",
                )  # fmt: skip
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(seal, folder, list(self.files()))

    def files(self) -> dict[str, tuple[Mapping[str, tuple[int, ...]], str]]:
        """{file of a checkpoint: (shapes of its tensors, what they are)}."""
        moments = {f"{moment}.{name}": shape for moment in MOMENTS for name, shape in self.learned.items()}
        return {"model.safetensors": (self.shapes, "weights"), "optimizer.safetensors": (moments, "moments")}

    def write_side_files(self, folder: Path) -> None:
        write_side_files(self.source, folder, dtype=torch.float32)

    def state(self) -> dict[str, Any]:
        """What ``learner.json`` holds."""
        return {"role": self.role, "optimizer": dict(self._everywhere("counters")[0]), "moments": "named"}

    async def load(self, folder: Path, *, weights_only: bool = False) -> None:
        """Continue from a checkpoint of any world size; ``weights_only`` starts optimiser and schedule anew."""
        await self.run(self._load, folder, weights_only)

    def _load(self, folder: Path, weights_only: bool) -> None:
        self._everywhere("read", folder)
        self._everywhere("forget") if weights_only else self._everywhere("restore", folder)

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the weights of another model of the same shapes, from whole tensors of this process."""
        self.wait(self._fill, tensors)

    def _fill(self, tensors: Mapping[str, Tensor]) -> None:
        with tempfile.TemporaryDirectory(dir=_shared_folder(4 * self.parameters), prefix="jurat-weights-") as folder:
            write_tensors(Path(folder) / "model.safetensors", tensors)
            self._everywhere("read", Path(folder))

    # ---- publishing ----

    def pull(self, into: Mapping[str, Tensor]) -> Carried:
        """Copy the weights into whole tensors of this process, each in its own dtype, a bucket at a time.

        Ranks write their pieces of a bucket side by side into shared memory; nobody holds more than its own and that.
        """
        return self.wait(self._pull, into)

    def _pull(self, into: Mapping[str, Tensor]) -> Carried:
        began, moved = time.perf_counter(), 0
        dtypes = {name: tensor.dtype for name, tensor in into.items()}
        if self._shared is None or self._shared[0] != dtypes:
            self._shared = (dtypes, self._share(dtypes))
        shared = torch.from_numpy(self._shared[1])
        for number, bucket in enumerate(buckets_of(self.shapes, self.layout, BUCKET_BYTES)):
            self._everywhere("put", number)
            for piece, place in places_of(bucket, dtypes):
                view = within(into[piece.name], Layout().box(piece.name, self.shapes[piece.name], 0), piece.box)
                size = view.numel() * view.element_size()
                view.copy_(shared[place : place + size].view(view.dtype).view(view.shape))
                moved += size
        seconds = time.perf_counter() - began
        self.published = Carried(bytes_sent=0, bytes_received=moved, seconds=seconds, peak_bytes=BUCKET_BYTES)
        return self.published

    def _share(self, dtypes: Mapping[str, torch.dtype]) -> np.memmap[Any, np.dtype[np.uint8]]:
        """One bucket of memory that all processes see."""
        size = min(BUCKET_BYTES, WIDEST * self.parameters)
        with tempfile.NamedTemporaryFile(dir=_shared_folder(size), prefix="jurat-weights-") as file:
            reserve(file.fileno(), size)
            self._everywhere(
                "share", Path(file.name), {k: str(v).removeprefix("torch.") for k, v in dtypes.items()}, BUCKET_BYTES
            )
            return np.memmap(file.name, np.uint8, "r+")  # mapped everywhere: it needs no name any more


def seal(folder: Path, large: Sequence[str]) -> None:
    """See that files of ``folder``, those of ``large`` written by others, are on the disk; record their digests."""
    with ThreadPoolExecutor(len(large)) as hashing:
        digests = dict(zip(large, hashing.map(lambda name: digest_of(folder / name), large), strict=True))
    for name in large:
        sync(folder / name)
    for part in {Path(name).parent for name in large}:
        known = {Path(name).name: digest for name, digest in digests.items() if Path(name).parent == part}
        record_digests(folder / part, known)


def _shared_folder(size: int) -> Path | None:
    """Where processes share ``size`` bytes: memory, else (None) the disk."""
    return SHARED if SHARED.is_dir() and shutil.disk_usage(SHARED).free > 2 * size else None


def trimmed(rounds: Rounds, objective: Objective) -> Rounds:
    """Microbatches without what has no gradient, and without rounds in which no rank has work."""
    kept = (tuple(worth_training(mb, objective) if len(mb.tokens) else mb for mb in each) for each in rounds)
    return tuple(each for each in kept if any(len(mb.tokens) for mb in each))


def nothing(mb: Microbatch) -> Microbatch:
    return mb.select(mb.offsets[:0])


def summed(tallies: Sequence[Tally]) -> Tally:
    """What ranks counted, as one."""
    whole = Tally()
    for each in dataclasses.fields(Tally):
        values = [getattr(tally, each.name) for tally in tallies]
        if each.name == "metrics":
            names = dict.fromkeys(name for value in values for name in value)
            setattr(whole, each.name, {name: sum(value.get(name, 0.0) for value in values) for name in names})
        else:
            setattr(whole, each.name, max(values) if each.name == "diff_max" else sum(values))
    return whole
