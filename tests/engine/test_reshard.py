"""Who sends which slice to whom: pure."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from jurat.engine.reshard import Layout, count, overlap, plan, split, within

SIZES = st.integers(min_value=1, max_value=17)
SHAPES = st.dictionaries(st.sampled_from("abcdef"), st.lists(SIZES, min_size=1, max_size=3).map(tuple), min_size=1)


@st.composite
def layouts(draw, shapes, first):
    names = draw(st.sets(st.sampled_from(sorted(shapes))))
    dims = {name: draw(st.integers(0, len(shapes[name]) - 1)) for name in names}
    return Layout(fsdp=draw(st.integers(1, 4)), tp=draw(st.integers(1, 4)), dims=dims, first=first)


@st.composite
def moves(draw):
    shapes = draw(SHAPES)
    source = draw(layouts(shapes, 0))
    target = draw(layouts(shapes, draw(st.sampled_from([0, 2, len(source.ranks)]))))  # colocated, overlapping, apart
    return shapes, source, target, draw(st.integers(1, 40))


@given(moves())
def test_every_element_of_the_target_comes_once_from_a_rank_that_has_it(move):
    shapes, source, target, largest = move
    buckets = plan(shapes, source, target, bucket_bytes=4 * largest, itemsize=4)
    arrived = {
        (rank, name): torch.zeros([stop - start for start, stop in target.box(name, shape, rank)])
        for rank in target.ranks
        for name, shape in shapes.items()
    }
    for piece in (piece for bucket in buckets for piece in bucket):
        shape = shapes[piece.name]
        held = source.box(piece.name, shape, piece.source)
        assert overlap(held, piece.box) == piece.box and count(piece.box) > 0
        within(arrived[piece.target, piece.name], target.box(piece.name, shape, piece.target), piece.box).add_(1)
    assert all(bool((seen == 1).all()) for seen in arrived.values())


@given(moves())
def test_no_rank_stages_more_than_a_bucket(move):
    shapes, source, target, largest = move
    for bucket in plan(shapes, source, target, bucket_bytes=4 * largest, itemsize=4):
        for rank in {*source.ranks, *target.ranks}:
            staged = sum(count(p.box) for p in bucket if p.source != p.target and rank in (p.source, p.target))
            assert staged <= largest


@given(moves())
def test_what_a_rank_has_already_does_not_travel(move):
    shapes, source, target, largest = move
    for piece in (p for bucket in plan(shapes, source, target, bucket_bytes=largest * 4, itemsize=4) for p in bucket):
        if piece.target in source.ranks and piece.source != piece.target:
            held = source.box(piece.name, shapes[piece.name], piece.target)
            assert count(overlap(held, piece.box)) == 0


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 4))
def test_boxes_are_those_of_torch(rows, fsdp, tp):
    """Tensor parallelism first, FSDP on what is left, both as ``torch.chunk``; ``owns`` counts every element once."""
    tensor = torch.arange(rows * 6).view(rows, 6)
    for dims in ({}, {"x": 0}, {"x": 1}):
        layout = Layout(fsdp=fsdp, tp=tp, dims=dims)
        owned = torch.zeros(rows, 6)
        for rank in layout.ranks:
            f, t = divmod(rank, tp)
            part = _part(tensor, tp, t, dims["x"]) if dims else tensor
            part = _part(part, fsdp, f, 0)
            box = layout.box("x", (rows, 6), rank)
            assert torch.equal(within(tensor, ((0, rows), (0, 6)), box), part)
            if layout.owns("x", rank):
                within(owned, ((0, rows), (0, 6)), box).add_(1)
        assert bool((owned == 1).all())


def _part(tensor, parts, index, dim):
    found = tensor.chunk(parts, dim)
    return found[index] if index < len(found) else tensor.narrow(dim, 0, 0)


def test_senders_share_the_work():
    """Copies over tensor-parallel ranks send in turn."""
    buckets = plan({"a": (64, 8)}, Layout(tp=4), Layout(first=4), bucket_bytes=256, itemsize=2)
    sent = [sum(count(p.box) for bucket in buckets for p in bucket if p.source == rank) for rank in range(4)]
    assert sent == [128] * 4
    assert len(buckets) == 4


@pytest.mark.parametrize(("box", "largest", "wanted"), [
    (((0, 4), (0, 3)), 6, [((0, 2), (0, 3)), ((2, 4), (0, 3))]),
    (((2, 3), (0, 5)), 2, [((2, 3), (0, 2)), ((2, 3), (2, 4)), ((2, 3), (4, 5))]),
    (((0, 2), (1, 1)), 2, []),
])  # fmt: skip
def test_split(box, largest, wanted):
    assert list(split(box, largest)) == wanted
