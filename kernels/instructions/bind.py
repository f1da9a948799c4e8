"""A tape bound to one block of a job: every source becomes a window, a number row or a look-up, ready to run.

In: a tape, a region, the views it reads. Out: an `Op` that runs the tape on the job's memory. Nothing is computed here that a call could
share with another; what depends on the region alone (windows, letter numbers) is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.instructions.instruction_list import AccAt, Iota, LoadAt, LookUp, Ref, ResultAt, Source, Tape
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import Region
from einpage.kernels.layout.window import TORCH_DTYPE, Memory, Op, Tile, Window, row_major, tiles

Fetch: TypeAlias = Callable[[Memory, list[Any]], Tensor]


def bind(tape: Tape, region: Region, reads: Sequence[View], accs: Mapping[int, Tile], results: Sequence[Window]) -> Op:
    """`tape` over `region`. `accs` are where accumulators lie; `results` the windows to fill, axes as in the tape's order."""
    steps: list[tuple[Callable[..., Any], bool, int, tuple[int, ...], int, tuple[int, ...]]] = []
    for step in tape.steps:
        if step.fn is None:
            fetch = _fetch(tape.sources[step.out], tape.order, region, reads, accs, results)
            steps.append((fetch, True, step.out, step.args, step.into, step.drop))
        else:
            steps.append((step.fn, False, step.out, step.args, step.into, step.drop))
    template = list(tape.template)

    def run(memory: Memory) -> None:
        slots: list[Any] = template.copy()
        for fn, is_source, out, args, into, drop in steps:
            if is_source:
                slots[out] = fn(memory, slots)
            elif into < 0:
                slots[out] = fn(*[slots[a] for a in args])
            else:
                slots[out] = fn(*[slots[a] for a in args], out=slots[into])
            for a in drop:
                slots[a] = None

    return run


def _fetch(
    source: Source, order: Sequence[Letter], region: Region, reads: Sequence[View], accs: Mapping[int, Tile], results: Sequence[Window]
) -> Fetch:
    match source:
        case Iota(letter, kind):
            start, stop = region[letter]
            numbers = _numbers(start, stop, kind == "i").view([-1 if x == letter else 1 for x in order])
            return lambda memory, slots: numbers
        case AccAt(index):
            return _look(accs[index].window(order, region))
        case ResultAt(index):
            return _look(results[index])
        case LoadAt(operand, dims):
            return _straight(reads[operand], operand, dims, order, region)
        case LookUp(operand, dims):
            return _look_up(reads[operand], operand, dims, order, region)


@lru_cache(maxsize=256)
def _numbers(start: int, stop: int, is_index: bool) -> Tensor:
    return torch.arange(start, stop, dtype=torch.int64 if is_index else torch.float32)


def _look(window: Window) -> Fetch:
    operand, tile, size, stride, offset = window.operand, window.tile, window.size, window.stride, window.offset

    def fetch(memory: Memory, slots: list[Any]) -> Tensor:
        t = memory[operand][tile]
        return t.as_strided(size, stride, t.storage_offset() + offset)

    return fetch


def _straight(view: View, operand: int, dims: tuple[Affine, ...], order: Sequence[Letter], region: Region) -> Fetch:
    """A window of the one tile that holds the region, or the region assembled from several tiles."""
    found = [t for t in tiles(view, operand, dims) if t.intersects(region)]
    for t in found:
        if t.contains(region):
            return _look(t.window(order, region))
    hull = [a.hull(region) for a in dims]
    box = Box(tuple(lo for lo, _ in hull), tuple(hi for _, hi in hull))
    gathered = assemble(view, operand, box)
    letters = {letter for a in dims for letter, _ in a.terms}
    size = [region[x][1] - region[x][0] if x in letters else 1 for x in order]
    stride = [0] * len(order)
    offset = 0
    for a, lo, step in zip(dims, box.start, row_major(box.shape), strict=True):
        offset += (a.const - lo) * step
        for letter, c in a.terms:
            offset += c * region[letter][0] * step
            stride[list(order).index(letter)] += c * step
    return lambda memory, slots: gathered(memory).as_strided(size, stride, offset)


def assemble(view: View, operand: int, box: Box, holes: bool = False) -> Callable[[Memory], Tensor]:
    """A packed copy of `box`, which several tiles of the view hold together; with `holes`, all of it that is read."""
    copies = []
    covered = 0
    for j, b in enumerate(view.boxes):
        if b.intersects(box):
            start = tuple(map(max, b.start, box.start))
            stop = tuple(map(min, b.end, box.end))
            inner = Box(start, stop)
            covered += inner.size
            copies.append(
                (
                    Window(operand, j, inner.shape, row_major(b.shape), _offset(b, start)),
                    inner.shape,
                    row_major(box.shape),
                    _offset(box, start),
                )
            )
    assert holes or covered == box.size, f"the tiles of {view.name} hold {covered} of the {box.size} elements of {box}"
    dtype, shape = TORCH_DTYPE[view.dtype], box.shape

    def gathered(memory: Memory) -> Tensor:
        out = torch.empty(shape, dtype=dtype)
        for window, size, stride, offset in copies:
            out.as_strided(size, stride, offset).copy_(window.of(memory))
        return out

    return gathered


def _offset(box: Box, at: tuple[int, ...]) -> int:
    return sum((a - b) * step for a, b, step in zip(at, box.start, row_major(box.shape), strict=True))


def _look_up(view: View, operand: int, dims: tuple[Affine | Ref, ...], order: Sequence[Letter], region: Region) -> Fetch:
    """Elements at indices known only when the job runs: every tile gives those that lie in it."""
    at = [d for d, a in enumerate(dims) if isinstance(a, Ref)]
    slots_at = [a.slot for a in dims if isinstance(a, Ref)]
    hulls = {d: a.hull(region) for d, a in enumerate(dims) if isinstance(a, Affine)}
    touched = [(j, b) for j, b in enumerate(view.boxes) if all(b.start[d] < hi and lo < b.end[d] for d, (lo, hi) in hulls.items())]
    low = [min(b.start[d] for _, b in touched) for d in at]
    high = [max(b.end[d] for _, b in touched) for d in at]
    rest = [letter for letter in order if any(isinstance(a, Affine) and letter in dict(a.terms) for a in dims)]
    rest_at = [list(order).index(x) for x in rest]

    def laid_out(box: Box) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        """Size, stride and offset of a look into packed `box`: [looked-up dimensions, rest letters]."""
        step = row_major(box.shape)
        size = [box.shape[d] for d in at] + [region[x][1] - region[x][0] for x in rest]
        stride = [sum(dict(a.terms).get(x, 0) * step[d] for d, a in enumerate(dims) if isinstance(a, Affine)) for x in rest]
        return tuple(size), (*(step[d] for d in at), *stride), sum((lo - box.start[d]) * step[d] for d, (lo, _) in hulls.items())

    looks: list[tuple[Callable[[Memory], Tensor], Sequence[int], Sequence[int]]] = []
    if all(b.start[d] <= lo and hi <= b.end[d] for _, b in touched for d, (lo, hi) in hulls.items()):
        for j, box in touched:
            looks.append((Window(operand, j, *laid_out(box)).of, [box.start[d] for d in at], [box.end[d] for d in at]))
    else:
        low_by_dim, high_by_dim = dict(zip(at, low, strict=True)), dict(zip(at, high, strict=True))
        spans = [hulls.get(d) or (low_by_dim[d], high_by_dim[d]) for d in range(len(dims))]
        box = Box(tuple(lo for lo, _ in spans), tuple(hi for _, hi in spans))
        gathered, look = assemble(view, operand, box, holes=True), laid_out(box)
        looks.append((lambda memory: gathered(memory).as_strided(*look), low, high))
    rank = len(order)
    kept = [p for p in range(rank) if p not in rest_at]
    positions = kept + rest_at
    permutation = [positions.index(p) for p in range(rank)]

    def arranged(found: Tensor) -> Tensor:  # [order with rest letters of size 1, rest letters] -> [order]
        return found.reshape([found.shape[p] for p in kept] + list(found.shape[rank:])).permute(permutation)

    def fetch(memory: Memory, slots: list[Any]) -> Tensor:
        indices = [slots[s] for s in slots_at]
        indices = [i.view([1] * rank) if i.dim() == 0 else i for i in indices]
        for d, i, lo, hi in zip(at, indices, low, high, strict=True):
            if i.numel():
                least, most = (int(x) for x in i.aminmax())
                if least < lo or most >= hi:
                    raise IndexOutOfRange(view.name, d, least if least < lo else most, hi)
        if len(looks) == 1:
            look_at, start, _ = looks[0]
            found = look_at(memory)[tuple(i - a for i, a in zip(indices, start, strict=True))]
            return arranged(found if rank else found.clone())  # without letters torch gives a view, and a tape may write over a look-up
        out: Tensor | None = None
        for look_at, start, stop in looks:
            inside = torch.ones((), dtype=torch.bool)
            for i, a, b in zip(indices, start, stop, strict=True):
                inside = inside & (i >= a) & (i < b)
            local = tuple((i - a).clamp(0, b - a - 1) for i, a, b in zip(indices, start, stop, strict=True))
            found = arranged(look_at(memory)[local])
            out = found if out is None else torch.where(inside, found, out)
        assert out is not None
        return out

    return fetch
