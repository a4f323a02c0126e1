"""One rank of a sharded learner: a plain class, so that a process of ours or a Ray actor can host it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from jurat.engine import threads
from jurat.engine.folders import weight_files
from jurat.engine.fsdp.network import PARTIAL, ShardedNetwork, ShardedValueNetwork, tied
from jurat.engine.fsdp.optim import ShardedAdamW
from jurat.engine.fsdp.storing import Boxes
from jurat.engine.learner import Tally, on_device
from jurat.engine.lora import FOLDER
from jurat.engine.lora import Layout as Adapters
from jurat.engine.meter import meter
from jurat.engine.reshard import Bucket, Carried, Layout, Piece, carry, count, plan, within
from jurat.platform import faults
from jurat.platform.errors import ModelError
from jurat.platform.ports import Objective
from jurat.platform.recipe import Optim
from jurat.platform.types import FloatArray, Microbatch

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

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
    fused: bool = False
    """Whether a fused head may take the place of the chunked one."""
    threads: int = 1
    adapters: Adapters | None = None
    """What learns in place of the model."""
    seed: int = 0
    """Of the adapters' first values."""
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

    def __init__(self, spec: RankSpec, tick: Callable[[], None] = lambda: None, *, policy: Rank | None = None) -> None:
        """With the rank of a ``policy``: a value model in the same group, which begins with the policy's slices."""
        import torch.distributed as dist

        threads.set_up(spec.threads)
        self.spec, self._tick = spec, tick
        self._kept: dict[str, dict[str, Tensor]] = {}
        self._shared: np.ndarray | None = None
        self._buckets: tuple[Bucket, ...] = ()
        self._dtypes: dict[str, torch.dtype] = {}
        self._published: Mapping[str, Tensor] = {}
        self.writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self._policy = policy
        if policy is not None:
            self._build()
            return
        if spec.device != "cpu":
            torch.cuda.set_device(spec.rank % torch.cuda.device_count())
        dist.init_process_group(
            "gloo" if spec.device == "cpu" else "cpu:gloo,cuda:nccl",
            init_method=spec.rendezvous, rank=spec.rank, world_size=spec.ranks,
            timeout=timedelta(seconds=spec.timeout),
        )  # fmt: skip
        try:
            self._meter = meter(spec.device)
            self._build()
        except BaseException:
            self.close()
            raise

    def _build(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh

        spec, policy = self.spec, self._policy
        shape = (spec.ranks // spec.tp, spec.tp)
        self.mesh: DeviceMesh = (
            policy.mesh if policy
            else init_device_mesh(spec.device.partition(":")[0], shape, mesh_dim_names=("fsdp", "tp"))
        )  # fmt: skip
        make: Callable[..., ShardedNetwork] = ShardedValueNetwork if policy else ShardedNetwork
        if spec.adapters is not None and not policy:
            from jurat.engine.fsdp.lora import ShardedLoRA

            make = partial(ShardedLoRA, adapters=spec.adapters, seed=spec.seed)
        network = self.network = make(
            spec.folder, self.mesh, dtype=getattr(torch, spec.dtype), temperature=spec.temperature,
            checkpointing=spec.checkpointing, offload=spec.offload, fused=spec.fused, tick=self._tick,
        )  # fmt: skip
        self.boxes = Boxes(network.shapes, network.layout, network.rank, self._tick)
        self.learned = Boxes(network.learned_shapes, network.layout, network.rank, self._tick)
        slices = network.learned_slices()
        if policy:
            own = policy.network.published()
            for name, tensor in slices.items():
                tensor.copy_(own[name]) if name in own else tensor.zero_()
        else:
            self.read(spec.folder)
        network.check()
        self.optimizer = ShardedAdamW(
            slices,
            matrices=frozenset(name for name, shape in network.learned_shapes.items() if len(shape) >= 2),
            owned=frozenset(name for name in slices if network.layout.owns(name, network.rank)),
            optim=spec.optim, total=spec.total, device=network.device,
        )  # fmt: skip

    def close(self) -> None:
        import torch.distributed as dist

        self.writer.shutdown()
        if self._policy is None:
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
            faults.point("rank.mid_update")
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
        return {name: (self.learned.box(name), gradient.cpu().numpy()) for name, gradient in gradients.items()}

    def _sum_partial(self, gradients: Mapping[str, Tensor]) -> None:
        import torch.distributed as dist

        if self.spec.tp > 1:
            for name in sorted(name for name in gradients if name.endswith(PARTIAL)):
                dist.all_reduce(gradients[name], group=self.mesh["tp"].get_group())

    def score(self, microbatches: Sequence[Columns], of: str = "") -> list[FloatArray]:
        """[T] log-probs for each round, by the weights kept as ``of`` or, without a name, those of now."""
        with self._weights(of), torch.no_grad():
            return [self._score(columns) for columns in microbatches]

    @contextmanager
    def _weights(self, of: str) -> Iterator[None]:
        """Within, those kept as ``of`` stand in place; adapters have what they began with beneath them."""
        if not of:
            yield
        elif of in self._kept:
            self._swap(of)
            try:
                yield
            finally:
                self._swap(of)
        else:
            with self.network.bare():
                yield

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

    def stage(self, files: Sequence[tuple[Path, str, Mapping[str, int]]]) -> None:
        """Copy this rank's boxes of each (safetensors file that is laid out, what: weights, adapter or moments, {name: its
        first byte}), and write the copies in a thread of their own. No other rank writes the same bytes."""
        assert self._writing is None or self._writing.done()
        copies: list[tuple[Boxes, Path, dict[str, Tensor], Mapping[str, int], str]] = []
        for path, what, offsets in files:
            if what == "weights":
                copies.append((self.boxes, path, self.boxes.copied(self.network.published()), offsets, ""))
            elif what == "adapter":
                copies.append((self.learned, path, self.learned.copied(self.network.learned_slices()), offsets, ""))
            else:
                for moment, tensors in self.optimizer.moments().items():
                    copies.append((self.learned, path, self.learned.copied(tensors), offsets, f"{moment}."))

        def write() -> None:
            while copies:
                boxes, path, tensors, offsets, prefix = copies.pop(0)
                faults.point("rank.mid_save")
                boxes.write(path, tensors, offsets, prefix=prefix)

        self._writing = self.writer.submit(write)

    def staged(self) -> bool:
        """Whether what was staged last is written. Raises what its writing raised."""
        if self._writing is None or not self._writing.done():
            return self._writing is None
        self._writing.result()
        return True

    def read(self, folder: Path) -> None:
        """Fill the slices from the weights of an HF folder. Raises ModelError."""
        self.boxes.read(weight_files(folder), self.network.slices(), spare=tied(self.network.model))
        self.network.begin()

    def restore(self, folder: Path) -> None:
        """Moments and counters of a checkpoint of any world size: by name, or flat as a learner in one process writes."""
        state = json.loads((folder / "learner.json").read_text())
        path, adapters, learned = folder / "optimizer.safetensors", self.spec.adapters, self.network.learned_slices()
        places = state.get("layout")
        if adapters is not None:
            from jurat.engine.fsdp.lora import WEIGHTS, places_of

            places = places_of(adapters)
            self.learned.read([folder / FOLDER / WEIGHTS], learned, spare=set())
        for moment, tensors in self.optimizer.moments().items():
            if state.get("moments") == "named":
                self.learned.read([path], tensors, prefix=f"{moment}.", spare=set())
            elif places:
                self.learned.read_flat(path, moment, tensors, places)
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

    def peaks(self) -> Mapping[str, int]:
        """Most memory that this process has had since it was last asked, as ``engine/meter.py`` has it."""
        return self._meter()

    def snapshot(self) -> tuple[dict[str, dict[str, FloatArray]], Mapping[str, int]]:
        """({learned and each moment: {name: this rank's box}}, counters)."""
        arrays = {kind: {k: t.detach().cpu().numpy() for k, t in each.items()} for kind, each in self._state().items()}
        return arrays, self.optimizer.counters()

    @torch.no_grad()
    def resume(self, arrays: Mapping[str, Mapping[str, FloatArray]], counters: Mapping[str, int]) -> None:
        """Be as when ``snapshot`` was made; what does not learn stays as it is."""
        for kind, tensors in self._state().items():
            for name, tensor in tensors.items():
                tensor.copy_(torch.tensor(arrays[kind][name]))
        self.optimizer.restore(counters)

    def _state(self) -> dict[str, Mapping[str, Tensor]]:
        return {"learned": self.network.learned_slices(), **self.optimizer.moments()}

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
        faults.point("rank.mid_weights")
        network = self.network
        if bucket == 0:
            self._published = network.published()
        slices = self._published
        for piece, place in places_of(self._buckets[bucket], self._dtypes):
            if piece.source == network.rank:
                held = network.layout.box(piece.name, network.shapes[piece.name], network.rank)
                values = within(slices[piece.name], held, piece.box).to(self._dtypes[piece.name]).contiguous().cpu()
                flat = values.reshape(-1).view(torch.uint8).numpy()
                self._shared[place : place + len(flat)] = flat
        if bucket == len(self._buckets) - 1:
            self._published = {}
        self._tick()

    def carried(
        self, target: Layout, dtype: str, bucket_bytes: int, answer: bool = True
    ) -> tuple[dict[str, FloatArray], Carried]:
        """This rank's boxes of ``target`` (none if it is none of its ranks), sent from rank to rank as ``dtype``.

        Without ``answer`` they are not returned: a benchmark need not have them.
        """
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
                network.shapes, network.layout, target, rank=network.rank, held=network.published(), wanted=wanted,
                dtype=kind,
            )  # fmt: skip
        return {name: tensor.float().cpu().numpy() for name, tensor in wanted.items() if answer}, moved

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
