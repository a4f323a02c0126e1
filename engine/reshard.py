"""Moving weights between layouts without a full copy anywhere: who sends which slice to whom, and the sending.

A *layout* says which box of each tensor each rank holds: first tensor parallelism cuts a dimension of its own per tensor,
then FSDP cuts what is left along dimension 0. Both cut as ``torch.chunk`` does, so the last parts may be short or empty.
``plan`` is pure: every rank makes the same plan. Axes: F FSDP parts, T tensor-parallel parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Box = tuple[tuple[int, int], ...]
"""[start, stop) in each dimension."""
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Ranks ``first .. first + F T - 1`` hold a model; rank ``first + f T + t`` has part f of part t of each tensor.

    Example: ``Layout(fsdp=2, tp=2, dims={"q.weight": 0, "o.weight": 1})``; ``Layout()`` is one rank with everything.
    """

    fsdp: int = 1
    tp: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    """Dimension that tensor parallelism cuts; tensors without one are whole on each of the T."""
    first: int = 0

    @property
    def ranks(self) -> range:
        return range(self.first, self.first + self.fsdp * self.tp)

    def box(self, name: str, shape: Shape, rank: int) -> Box:
        """What ``rank`` holds of a tensor; empty in some dimension if it holds nothing."""
        f, t = divmod(rank - self.first, self.tp)
        box = [(0, size) for size in shape]
        if name in self.dims:
            box[self.dims[name]] = _chunk(box[self.dims[name]], self.tp, t)
        if box:
            box[0] = _chunk(box[0], self.fsdp, f)
        return tuple(box)

    def owns(self, name: str, rank: int) -> bool:
        """Whether ``rank`` is the one that answers for its box: copies over tensor-parallel ranks count once."""
        return name in self.dims or (rank - self.first) % self.tp == 0


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of one tensor that goes from one rank to another (to itself where it is there already)."""

    name: str
    box: Box
    source: int
    target: int


Bucket = tuple[Piece, ...]


def plan(
    shapes: Mapping[str, Shape], source: Layout, target: Layout, *, bucket_bytes: int, itemsize: int = 2
) -> tuple[Bucket, ...]:
    """Buckets that turn ``source`` into ``target``: each element of each target box comes in exactly one piece.

    In one bucket no rank stages (sends and receives together) more than ``bucket_bytes``. A piece is never larger than
    that; where several ranks hold it, the target itself or else the one that has sent least so far gives it.
    """
    largest = max(1, bucket_bytes // itemsize)
    sent = dict.fromkeys(source.ranks, 0)
    buckets: list[list[Piece]] = []
    staged: dict[int, int] = {}
    for piece in _pieces(shapes, source, target, largest, sent):
        size = count(piece.box)
        both = {piece.source, piece.target}
        if not buckets or any(staged.get(rank, 0) + size > largest for rank in both):
            buckets.append([])
            staged = {}
        buckets[-1].append(piece)
        if piece.source != piece.target:
            for rank in both:
                staged[rank] = staged.get(rank, 0) + size
    return tuple(map(tuple, buckets))


def _pieces(
    shapes: Mapping[str, Shape], source: Layout, target: Layout, largest: int, sent: dict[int, int]
) -> Iterator[Piece]:
    for name, shape in shapes.items():
        holders: dict[Box, list[int]] = {}
        for rank in source.ranks:
            holders.setdefault(source.box(name, shape, rank), []).append(rank)
        for receiver in target.ranks:
            wanted = target.box(name, shape, receiver)
            for held, ranks in holders.items():
                for box in split(overlap(held, wanted), largest):
                    giver = receiver if receiver in ranks else min(ranks, key=sent.__getitem__)
                    if giver != receiver:
                        sent[giver] += count(box)
                    yield Piece(name, box, giver, receiver)


def count(box: Box) -> int:
    """Elements of a box."""
    return math.prod(stop - start for start, stop in box)


def overlap(one: Box, other: Box) -> Box:
    """What two boxes share; empty boxes have a dimension of size 0."""
    return tuple((max(a, c), max(a, c, min(b, d))) for (a, b), (c, d) in zip(one, other, strict=True))


def split(box: Box, largest: int) -> Iterator[Box]:
    """Parts of at most ``largest`` elements, cut along the first dimension that needs it; nothing for an empty box."""
    size = count(box)
    if size == 0:
        return
    if size <= largest:
        yield box
        return
    dim = next(d for d, (start, stop) in enumerate(box) if stop - start > 1)
    start, stop = box[dim]
    rows = max(1, largest * (stop - start) // size)
    for at in range(start, stop, rows):
        yield from split((*box[:dim], (at, min(at + rows, stop)), *box[dim + 1 :]), largest)


def within(tensor: Tensor, held: Box, box: Box) -> Tensor:
    """The view of ``box`` in ``tensor``, which holds ``held``."""
    return tensor[tuple(slice(start - at, stop - at) for (at, _), (start, stop) in zip(held, box, strict=True))]


def _chunk(span: tuple[int, int], parts: int, index: int) -> tuple[int, int]:
    """Part ``index`` of [start, stop) cut into ``parts`` of equal size, the last ones short."""
    start, stop = span
    size = -(-(stop - start) // parts)
    return min(stop, start + index * size), min(stop, start + (index + 1) * size)


# ---- sending -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What one rank moved."""

    bytes_sent: int
    bytes_received: int
    seconds: float
    peak_bytes: int
    """Most that was staged at once."""

    def share_of(self, link_bytes_per_second: float) -> float:
        """Of the speed of the link."""
        return max(self.bytes_sent, self.bytes_received) / max(self.seconds, 1e-9) / link_bytes_per_second


def carry(
    buckets: Sequence[Bucket],
    shapes: Mapping[str, Shape],
    source: Layout,
    target: Layout,
    *,
    rank: int,
    held: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    dtype: torch.dtype,
    group: ProcessGroup | None = None,
) -> Carried:
    """Carry out a plan point to point; every rank of either layout calls this. One message a bucket and pair of ranks.

    ``held`` are this rank's boxes of ``source`` and ``wanted`` the tensors to fill, its boxes of ``target``; values
    travel as ``dtype``. Device and backend are those of the group: gloo wants tensors on the CPU, NCCL on the GPU.
    """
    import torch.distributed as dist

    began = time.perf_counter()
    sent = received = peak = 0
    for bucket in buckets:
        gives: dict[int, list[Piece]] = {}
        takes: dict[int, list[Piece]] = {}
        for piece in bucket:
            if piece.source == piece.target == rank:
                _place(piece, shapes, target, wanted, _piece(piece, shapes, source, held).to(dtype))
            elif piece.source == rank:
                gives.setdefault(piece.target, []).append(piece)
            elif piece.target == rank:
                takes.setdefault(piece.source, []).append(piece)
        if not gives and not takes:
            continue
        outgoing = {
            peer: torch.cat([_piece(piece, shapes, source, held).to(dtype).reshape(-1) for piece in pieces])
            for peer, pieces in gives.items()
        }
        device = next(iter((held or wanted).values())).device
        incoming = {
            peer: torch.empty(sum(count(piece.box) for piece in pieces), dtype=dtype, device=device)
            for peer, pieces in takes.items()
        }
        moves = [dist.P2POp(dist.isend, flat.view(torch.uint8), peer, group) for peer, flat in outgoing.items()]
        moves += [dist.P2POp(dist.irecv, flat.view(torch.uint8), peer, group) for peer, flat in incoming.items()]
        for work in dist.batch_isend_irecv(moves):
            work.wait()
        for peer, flat in incoming.items():
            parts = flat.split([count(piece.box) for piece in takes[peer]])
            for piece, part in zip(takes[peer], parts, strict=True):
                _place(piece, shapes, target, wanted, part)
        here = [sum(flat.nbytes for flat in each.values()) for each in (outgoing, incoming)]
        sent, received, peak = sent + here[0], received + here[1], max(peak, sum(here))
    return Carried(bytes_sent=sent, bytes_received=received, seconds=time.perf_counter() - began, peak_bytes=peak)


def _piece(piece: Piece, shapes: Mapping[str, Shape], layout: Layout, tensors: Mapping[str, Tensor]) -> Tensor:
    box = layout.box(piece.name, shapes[piece.name], piece.source)
    return within(tensors[piece.name], box, piece.box)


def _place(
    piece: Piece, shapes: Mapping[str, Shape], layout: Layout, tensors: Mapping[str, Tensor], values: Tensor
) -> None:
    box = layout.box(piece.name, shapes[piece.name], piece.target)
    view = within(tensors[piece.name], box, piece.box)
    view.copy_(values.view(view.shape))
