"""One rank of a sharded learner: a plain class, so that a process of ours or a Ray actor can host it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jurat.engine import threads
from jurat.engine.folders import weight_files
from jurat.engine.fsdp.network import PARTIAL, ShardedNetwork, tied
from jurat.engine.fsdp.optim import ShardedAdamW
from jurat.engine.fsdp.storing import Boxes
from jurat.engine.learner import Tally, on_device
from jurat.engine.reshard import Bucket, Carried, Layout, Piece, carry, count, plan, within
from jurat.platform.errors import ModelError
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import FloatArray, Microbatch

Columns = Mapping[str, Any]
"""A microbatch as numpy arrays, on its way to a rank; empty for a rank without work."""
WIDEST = 4
"""Bytes of the widest number that is published; each piece begins at a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """What a rank is made of; the same for all but ``rank``."""

    folder: Path
    rank: int = 0
    ranks: int
    tp: int = 1
    rendezvous: str = ""
    """``file:///path`` or ``tcp://host:port``, as torch.distributed takes it."""
    device: str = "cpu"
    """``cpu`` (gloo) or ``cuda`` (NCCL, and gloo for what is on the CPU)."""
    dtype: str = "bfloat16"
    temperature: float = 1.0
    checkpointing: bool = False
    offload: bool = False
    threads: int = 1
    optim: Optim = field(default_factory=Optim)
    total: int = 1
    timeout: float = 600.0
    """Seconds a collective may wait for other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updated:
    """One rank's part of an update."""

    tally: Tally
    stepped: Mapping[str, float]
    seconds: Mapping[str, float]


class Rank:
    """Joins the ranks of ``spec`` and holds its slices. Methods are collective: every rank is called alike, in order.

    ``tick`` is called whenever it gets further: a learner whose ranks stand still hangs.
    """

    def __init__(self, spec: RankSpec, tick: Callable[[], None] = lambda: None) -> None:
        import torch.distributed as dist

        threads.set_up(spec.threads)
        self.spec, self._tick = spec, tick
        self._kept: dict[str, dict[str, Tensor]] = {}
        self._shared: np.ndarray | None = None
        self._buckets: tuple[Bucket, ...] = ()
        self._dtypes: dict[str, torch.dtype] = {}
        if spec.device != "cpu":
            torch.cuda.set_device(spec.rank % torch.cuda.device_count())
        dist.init_process_group(
            "gloo" if spec.device == "cpu" else "cpu:gloo,cuda:nccl",
            init_method=spec.rendezvous, rank=spec.rank, world_size=spec.ranks,
            timeout=timedelta(seconds=spec.timeout),
        )  # fmt: skip
        try:
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        spec = self.spec
        shape = (spec.ranks // spec.tp, spec.tp)
        self.mesh = init_device_mesh(spec.device.partition(":")[0], shape, mesh_dim_names=("fsdp", "tp"))
        network = self.network = ShardedNetwork(
            spec.folder, self.mesh, dtype=getattr(torch, spec.dtype), temperature=spec.temperature,
            checkpointing=spec.checkpointing, offload=spec.offload, tick=self._tick,
        )  # fmt: skip
        self.boxes = Boxes(network.shapes, network.layout, network.rank, self._tick)
        self.read(spec.folder)
        network.check()
        slices = network.slices()
        self.optimizer = ShardedAdamW(
            slices,
            matrices=frozenset(name for name, shape in network.shapes.items() if len(shape) >= 2),
            owned=frozenset(name for name in slices if network.layout.owns(name, network.rank)),
            optim=spec.optim, total=spec.total, device=network.device,
        )  # fmt: skip

    def close(self) -> None:
        import torch.distributed as dist

        dist.destroy_process_group()

    # ---- learning ----

    def update(self, microbatches: Sequence[Columns], objective: Objective, clip_norm: float | None = None) -> Updated:
        """One optimiser step; a microbatch for each round, empty where this rank has no work."""
        began = time.perf_counter()
        tally = Tally()
        for columns in microbatches:
            if columns:
                self.network.backward(self._microbatch(columns), objective, tally)
            else:
                self.network.idle(learning=True)
            self._tick()
        gradients = self.network.gradients()
        self._sum_partial(gradients)
        halfway = time.perf_counter()
        alone = self.network.rank % self.spec.tp == 0  # tensor-parallel ranks have the same loss
        stepped = self.optimizer.step(gradients, loss=tally.loss if alone else 0.0, clip_norm=clip_norm)
        self.network.clear_gradients()
        seconds = {"forward_backward": halfway - began, "optimizer": time.perf_counter() - halfway}
        return Updated(tally=tally, stepped=stepped, seconds=seconds)

    def gradients(
        self, microbatches: Sequence[Columns], objective: Objective
    ) -> dict[str, tuple[tuple[tuple[int, int], ...], FloatArray]]:
        """{name: (box, values)} of the summed gradient, without a step: to look at."""
        for columns in microbatches:
            if columns:
                self.network.backward(self._microbatch(columns), objective, Tally())
            else:
                self.network.idle(learning=True)
        gradients = self.network.gradients()
        self._sum_partial(gradients)
        self.network.clear_gradients()
        network = self.network
        return {
            name: (network.layout.box(name, network.shapes[name], network.rank), gradient.cpu().numpy())
            for name, gradient in gradients.items()
        }

    def _sum_partial(self, gradients: Mapping[str, Tensor]) -> None:
        import torch.distributed as dist

        if self.spec.tp > 1:
            for name in sorted(name for name in gradients if name.endswith(PARTIAL)):
                dist.all_reduce(gradients[name], group=self.mesh["tp"].get_group())

    def score(self, microbatches: Sequence[Columns], of: str = "") -> list[FloatArray]:
        """[T] log-probs for each round, by the weights kept as ``of`` or, without a name, those of now."""
        if of:
            self._swap(of)
        try:
            with torch.no_grad():
                return [self._score(columns) for columns in microbatches]
        finally:
            if of:
                self._swap(of)

    def _score(self, columns: Columns) -> FloatArray:
        self._tick()
        if not columns:
            self.network.idle(learning=False)
            return np.zeros(0, dtype=np.float32)
        found: FloatArray = self.network.logprobs(self._microbatch(columns)).float().cpu().numpy()
        return found

    def keep(self, name: str) -> None:
        """Keep a copy of these slices as ``name``: a reference that costs one slice a rank."""
        self._kept[name] = {key: tensor.clone() for key, tensor in self.network.slices().items()}

    def _swap(self, name: str) -> None:
        for key, tensor in self.network.slices().items():
            kept = self._kept[name][key]
            now = tensor.clone()
            tensor.copy_(kept)
            kept.copy_(now)

    def _microbatch(self, columns: Columns) -> Microbatch:
        return on_device(from_columns(columns), self.network.device)

    # ---- storing ----

    def write(self, path: Path, what: str, offsets: Mapping[str, int]) -> None:
        """Write this rank's boxes of ``what`` ("weights" or "moments") into a safetensors file that is laid out already.

        ``offsets`` are those of each tensor's first byte in the file. No other rank writes the same bytes.
        """
        if what == "weights":
            self.boxes.write(path, self.network.slices(), offsets)
        else:
            for moment, tensors in self.optimizer.moments().items():
                self.boxes.write(path, tensors, offsets, prefix=f"{moment}.")

    def read(self, folder: Path) -> None:
        """Fill the slices from the weights of an HF folder. Raises ModelError."""
        self.boxes.read(weight_files(folder), self.network.slices(), spare=tied(self.network.model))

    def restore(self, folder: Path) -> None:
        """Moments and counters of a checkpoint of any world size: by name, or flat as a learner in one process writes."""
        state = json.loads((folder / "learner.json").read_text())
        path = folder / "optimizer.safetensors"
        for moment, tensors in self.optimizer.moments().items():
            if state.get("moments") == "named":
                self.boxes.read([path], tensors, prefix=f"{moment}.", spare=set())
            elif state.get("layout"):
                self.boxes.read_flat(path, moment, tensors, state["layout"])
            else:
                raise ModelError("the moments of this checkpoint are not those of the whole model", where=str(folder),
                                 fix="begin a run from its weights (jurat export)")  # fmt: skip
        self.optimizer.restore(state["optimizer"])

    def forget(self) -> None:
        """Start the optimiser and its schedule anew."""
        for tensors in self.optimizer.moments().values():
            for tensor in tensors.values():
                tensor.zero_()
        self.optimizer.restore({"step_count": 0, "applied": 0})

    def counters(self) -> Mapping[str, int]:
        return self.optimizer.counters()

    def snapshot(self) -> tuple[dict[str, dict[str, FloatArray]], Mapping[str, int]]:
        """({weights and each moment: {name: this rank's box}}, counters)."""
        kinds = {"weights": self.network.slices(), **self.optimizer.moments()}
        arrays = {k: {name: t.detach().cpu().numpy() for name, t in each.items()} for k, each in kinds.items()}
        return arrays, self.optimizer.counters()

    @torch.no_grad()
    def resume(self, arrays: Mapping[str, Mapping[str, FloatArray]], counters: Mapping[str, int]) -> None:
        """Be as when ``snapshot`` was made."""
        for kind, tensors in {"weights": self.network.slices(), **self.optimizer.moments()}.items():
            for name, tensor in tensors.items():
                tensor.copy_(torch.tensor(arrays[kind][name]))
        self.optimizer.restore(counters)

    def peak_bytes(self) -> int:
        """Most memory that this process has had."""
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

    # ---- publishing ----

    def share(self, path: Path, dtypes: Mapping[str, str], bucket_bytes: int) -> int:
        """Get ready to put buckets of weights into the shared file ``path``; how many there are."""
        self._shared = np.memmap(path, np.uint8, "r+")
        network = self.network
        self._buckets = buckets_of(network.shapes, network.layout, bucket_bytes)
        self._dtypes = {name: getattr(torch, dtype) for name, dtype in dtypes.items()}
        return len(self._buckets)

    @torch.no_grad()
    def put(self, bucket: int) -> None:
        """Write this rank's pieces of a bucket to their places in the shared file, in the dtypes asked for."""
        assert self._shared is not None
        network, slices = self.network, self.network.slices()
        for piece, place in places_of(self._buckets[bucket], self._dtypes):
            if piece.source == network.rank:
                held = network.layout.box(piece.name, network.shapes[piece.name], network.rank)
                values = within(slices[piece.name], held, piece.box).to(self._dtypes[piece.name]).contiguous().cpu()
                flat = values.reshape(-1).view(torch.uint8).numpy()
                self._shared[place : place + len(flat)] = flat
        self._tick()

    def carried(self, target: Layout, dtype: str, bucket_bytes: int) -> tuple[dict[str, FloatArray], Carried]:
        """This rank's boxes of ``target`` (none if it is none of its ranks), sent from rank to rank as ``dtype``."""
        network, kind = self.network, getattr(torch, dtype)
        boxes = {name: target.box(name, shape, network.rank) for name, shape in network.shapes.items()}
        wanted = {
            name: torch.empty([stop - start for start, stop in box], dtype=kind, device=network.device)
            for name, box in boxes.items()
            if network.rank in target.ranks
        }
        with torch.no_grad():
            moved = carry(
                plan(network.shapes, network.layout, target, bucket_bytes=bucket_bytes, itemsize=kind.itemsize),
                network.shapes, network.layout, target, rank=network.rank, held=network.slices(), wanted=wanted,
                dtype=kind,
            )  # fmt: skip
        return {name: tensor.float().cpu().numpy() for name, tensor in wanted.items()}, moved

    def message(self, size: int) -> Carried:
        """One message of ``size`` bytes from rank 0 to rank 1: the link's speed."""
        import torch.distributed as dist

        rank, data = self.network.rank, torch.zeros(size, dtype=torch.uint8, device=self.network.device)
        dist.barrier()
        began = time.perf_counter()
        if rank == 0:
            dist.send(data, 1)
        elif rank == 1:
            dist.recv(data, 0)
        seconds = time.perf_counter() - began
        return Carried(
            bytes_sent=size * (rank == 0), bytes_received=size * (rank == 1), seconds=seconds, peak_bytes=size
        )


def buckets_of(shapes: Mapping[str, tuple[int, ...]], layout: Layout, bucket_bytes: int) -> tuple[Bucket, ...]:
    """The plan that brings everything to one place outside the ranks; any number may be ``WIDEST``."""
    return plan(shapes, layout, Layout(first=layout.ranks.stop), bucket_bytes=bucket_bytes, itemsize=WIDEST)


def places_of(bucket: Bucket, dtypes: Mapping[str, torch.dtype]) -> list[tuple[Piece, int]]:
    """(piece, its first byte in the shared file), in order."""
    placed, at = [], 0
    for piece in bucket:
        placed.append((piece, at))
        at += -(-count(piece.box) * dtypes[piece.name].itemsize // WIDEST) * WIDEST
    return placed


def to_columns(mb: Microbatch) -> Columns:
    """Arrays of a microbatch; none if it has no tokens."""
    if not len(mb.tokens):
        return {}
    found = {each.name: getattr(mb, each.name) for each in fields(mb)}
    return {name: tensor.numpy() for name, tensor in found.items() if tensor is not None}


def from_columns(columns: Columns) -> Microbatch:
    return Microbatch(**{name: torch.from_numpy(array) for name, array in columns.items()})
