"""An instruction list bound to one block of a job: every source becomes a window, a row of numbers or a look-up, ready to run.

In: an instruction list, a region, the views it reads. Out: a `BoundStep` that runs the list on the job's buffers. Nothing is computed here
that a call could share with another; what depends on the region alone (windows, letter numbers) is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.instructions.instruction_list import AccAt, InstructionList, Iota, LoadAt, LookUp, ResultAt, SlotSource
from einpage.kernels.instructions.look_up import look_up
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.assemble import assemble
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, Window, strided_tile, strided_tiles

Look: TypeAlias = Callable[[JobBuffers], Tensor | Callable[[list[Any]], Tensor]]
"""What a source is on these buffers: a tensor, or what makes one, given the slots filled so far."""


def bind(
    listed: InstructionList, region: Region, reads: Sequence[View], accs: Mapping[int, StridedTile], results: Sequence[Window]
) -> BoundStep:
    """`listed` over `region`. `accs` are where accumulators lie; `results` the windows to fill, axes as in the list's order.

    The step raises IndexOutOfRange where data give an index outside what it looks into.
    """
    looks = {i.out: _look(listed.sources[i.out], listed.order, region, reads, accs, results) for i in listed.instructions if i.fn is None}
    template = list(listed.template)

    def looked_through(buffers: JobBuffers) -> BoundCall:
        """Views of operands, accumulators and results are made here; what is looked up or put together is made in every call."""
        known: list[Any] = template.copy()
        fetch_by_slot: dict[int, Callable[[list[Any]], Tensor]] = {}
        for slot, look in looks.items():
            found = look(buffers)
            if isinstance(found, Tensor):
                known[slot] = found
            else:
                fetch_by_slot[slot] = found
        steps: list[tuple[Callable[..., Any], bool, int, tuple[int, ...], int | None, tuple[int, ...]]] = []
        for i in listed.instructions:
            if i.fn is not None:
                steps.append((i.fn, False, i.out, i.args, i.into, i.dead))
            elif i.out in fetch_by_slot:
                steps.append((fetch_by_slot[i.out], True, i.out, i.args, i.into, i.dead))

        def run() -> None:
            slots = known.copy()
            for fn, is_source, out, args, into, dead in steps:
                if is_source:
                    slots[out] = fn(slots)
                elif into is None:
                    slots[out] = fn(*[slots[a] for a in args])
                else:
                    slots[out] = fn(*[slots[a] for a in args], out=slots[into])
                for a in dead:
                    slots[a] = None

        return run

    return looked_through


def _look(
    source: SlotSource,
    order: Sequence[Letter],
    region: Region,
    reads: Sequence[View],
    accs: Mapping[int, StridedTile],
    results: Sequence[Window],
) -> Look:
    match source:
        case Iota(letter, kind):
            numbers = _numbers(*region[letter], kind is ValueKind.INT).view([-1 if x == letter else 1 for x in order])
            return lambda buffers: numbers
        case AccAt(index):
            return accs[index].window(order, region).of
        case ResultAt(index):
            return results[index].of
        case LoadAt(operand, indices):
            return _load(reads[operand], operand, indices, order, region)
        case LookUp(operand, indices):
            fetch = look_up(reads[operand], operand, indices, order, region)
            return lambda buffers: partial(fetch, buffers)


@lru_cache(maxsize=256)
def _numbers(start: int, end: int, is_index: bool) -> Tensor:
    return torch.arange(start, end, dtype=torch.int64 if is_index else torch.float32)


def _load(view: View, operand: int, indices: tuple[Affine, ...], order: Sequence[Letter], region: Region) -> Look:
    """A window of the one tile that holds the region, or the region assembled from several tiles."""
    for t in strided_tiles(view, operand, indices):
        if t.contains(region):
            return t.window(order, region).of
    hulls = [a.hull(region) for a in indices]
    box = Box(tuple(lo for lo, _ in hulls), tuple(hi for _, hi in hulls))
    assembled, window = assemble(view, operand, box), strided_tile(box, operand, 0, view.dtype, indices).window(order, region)
    return lambda buffers: lambda slots: assembled(buffers).as_strided(window.size, window.stride, window.offset)
