"""Loads at indices known only when the job runs, from however many tiles: a table of embeddings, the last token of each sequence.

In: a load with the slots of its looked-up indices, a region. Out: what fetches its elements once the indices are in their slots. Every
tile gives the elements that lie in it. An index outside all tiles raises IndexOutOfRange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.instructions.instruction_list import Ref
from einpage.kernels.layout.affine import Affine, address, row_major
from einpage.kernels.layout.assemble import assemble
from einpage.kernels.layout.window import JobBuffers, Window

Fetch: TypeAlias = Callable[[JobBuffers, list[Any]], Tensor]
"""The tensor of a source, given the job's buffers and the slots filled so far."""


@dataclass(frozen=True, slots=True)
class _Table:
    """What one tile (or several, assembled) holds: a tensor [looked-up dimensions, rest letters]."""

    read: Callable[[JobBuffers], Tensor]
    start: Sequence[int]
    """Of each looked-up dimension."""
    end: Sequence[int]


def look_up(view: View, operand: int, indices: tuple[Affine | Ref, ...], order: Sequence[Letter], region: Region) -> Fetch:
    """The elements as a tensor with the dimensions of `order`; letters that no index has are of size 1."""
    at = [d for d, a in enumerate(indices) if isinstance(a, Ref)]
    slots_at = [a.slot for a in indices if isinstance(a, Ref)]
    rest = [letter for letter in order if any(isinstance(a, Affine) and letter in dict(a.terms) for a in indices)]
    tables = _tables(view, operand, indices, rest, region)
    low = [min(t.start[n] for t in tables) for n in range(len(at))]
    high = [max(t.end[n] for t in tables) for n in range(len(at))]
    rank, arranged = len(order), _arrangement(order, rest)

    def fetch(buffers: JobBuffers, slots: list[Any]) -> Tensor:
        numbers = [slots[s] for s in slots_at]
        numbers = [i.view([1] * rank) if i.dim() == 0 else i for i in numbers]
        for d, i, lo, hi in zip(at, numbers, low, high, strict=True):
            check_index(view.name, d, i, lo, hi)
        if len(tables) == 1:
            (table,) = tables
            found = table.read(buffers)[tuple(i - a for i, a in zip(numbers, table.start, strict=True))]
            return arranged(found if rank else found.clone())  # without letters torch gives a view, and a look-up may be written over
        out: Tensor | None = None
        for table in tables:
            inside = torch.ones((), dtype=torch.bool)
            for i, a, b in zip(numbers, table.start, table.end, strict=True):
                inside = inside & (i >= a) & (i < b)
            local = tuple((i - a).clamp(0, b - a - 1) for i, a, b in zip(numbers, table.start, table.end, strict=True))
            found = arranged(table.read(buffers)[local])
            out = found if out is None else torch.where(inside, found, out)
        assert out is not None
        return out

    return fetch


def check_index(name: str, dimension: int, index: Tensor, low: int, high: int) -> None:
    """Raise IndexOutOfRange where a number of `index` is outside [low, high)."""
    if index.numel():
        least, most = (int(x) for x in index.aminmax())
        if least < low or most >= high:
            raise IndexOutOfRange(name, dimension, least if least < low else most, high)


def _tables(view: View, operand: int, indices: tuple[Affine | Ref, ...], rest: Sequence[Letter], region: Region) -> list[_Table]:
    """A table a tile; one assembled of all tiles where some tile has only a part of what the affine indices cover."""
    at = [d for d, a in enumerate(indices) if isinstance(a, Ref)]
    hulls = {d: a.hull(region) for d, a in enumerate(indices) if isinstance(a, Affine)}
    touched = [(j, b) for j, b in enumerate(view.boxes) if all(b.start[d] < hi and lo < b.end[d] for d, (lo, hi) in hulls.items())]
    if all(b.start[d] <= lo and hi <= b.end[d] for _, b in touched for d, (lo, hi) in hulls.items()):
        return [
            _Table(Window(operand, j, *_layout(b, indices, rest, region)).of, [b.start[d] for d in at], [b.end[d] for d in at])
            for j, b in touched
        ]
    covered: Mapping[int, tuple[int, int]] = {
        d: hulls.get(d) or (min(b.start[d] for _, b in touched), max(b.end[d] for _, b in touched)) for d in range(len(indices))
    }
    box = Box(tuple(covered[d][0] for d in range(len(indices))), tuple(covered[d][1] for d in range(len(indices))))
    assembled, layout = assemble(view, operand, box, holes=True), _layout(box, indices, rest, region)
    return [_Table(lambda buffers: assembled(buffers).as_strided(*layout), [box.start[d] for d in at], [box.end[d] for d in at])]


def _layout(
    box: Box, indices: tuple[Affine | Ref, ...], rest: Sequence[Letter], region: Region
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Size, stride and offset of packed `box` as [looked-up dimensions, rest letters]."""
    at = [d for d, a in enumerate(indices) if isinstance(a, Ref)]
    step = row_major(box.shape)
    place = address(box, [a if isinstance(a, Affine) else None for a in indices])
    stride = dict(place.terms)
    size = (*(box.shape[d] for d in at), *(region[x][1] - region[x][0] for x in rest))
    return size, (*(step[d] for d in at), *(stride[x] for x in rest)), place.at({x: region[x][0] for x in rest})


def _arrangement(order: Sequence[Letter], rest: Sequence[Letter]) -> Callable[[Tensor], Tensor]:
    """From [order with rest letters of size 1, rest letters] to [order]."""
    rank, rest_at = len(order), [list(order).index(x) for x in rest]
    others = [p for p in range(rank) if p not in rest_at]
    positions = others + rest_at
    permutation = [positions.index(p) for p in range(rank)]
    return lambda found: found.reshape([found.shape[p] for p in others] + list(found.shape[rank:])).permute(permutation)
