"""The host gather: rows of a table that stays on the host, brought straight into a result tile.

In: a GatherJob, the table's and the indices' tiles. Out: the rows, and how many bytes crossed the link (the result's: never the table's).
Indices are checked: one outside the table is an error that names it and where it stands.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from types import EllipsisType

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.graph.job import Box, GatherJob, Range, View, range_by_letter
from einpage.kernels.errors import IndexOutOfRange
from einpage.kernels.instructions.bind import assemble
from einpage.kernels.instructions.torch_kernel import Operands
from einpage.kernels.layout.affine import Affine, affine
from einpage.kernels.layout.window import row_major


@dataclass(frozen=True, slots=True)
class _Look:
    """One table tile: which rows it holds, how its element [row, rest letters] lies, and which part of the result it fills."""

    tile: int
    start: int
    stop: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    part: tuple[slice, ...]
    """Per rest letter, counted from the job's own start."""


@dataclass(frozen=True, slots=True)
class HostGather:
    """A prepared GatherJob. Call it on the engine that owns the link."""

    job: GatherJob
    at: int
    """The table's dimension that is looked up."""
    index_letters: tuple[Letter, ...]
    rest: tuple[Letter, ...]
    looks: tuple[_Look, ...]
    rows: int
    scratch_bytes: int

    def __call__(self, operands: Operands, result: Tensor, workspace: Tensor | None = None) -> int:
        """Fill `result`; bytes moved. Raises IndexOutOfRange."""
        job = self.job
        index = self._indices(operands)
        flat = index.reshape(-1)
        self._check(index, flat)
        target = result.permute([job.target.index(x) for x in (*self.index_letters, *self.rest)])
        if not index.dim():
            index, target = index[None], target[None]
        for look in self.looks:
            rows = operands[0][look.tile].as_strided(look.size, look.stride, operands[0][look.tile].storage_offset() + look.offset)
            if len(self.looks) == 1:
                self._fill(rows, flat - look.start, target)
            else:
                here = ((index >= look.start) & (index < look.stop)).nonzero(as_tuple=True)
                within: tuple[EllipsisType | slice, ...] = (..., *look.part)
                target[within][here] = rows[index[here] - look.start].to(result.dtype)
        return result.nbytes

    def _fill(self, rows: Tensor, flat: Tensor, target: Tensor) -> None:
        if target.is_contiguous() and rows.dtype == target.dtype:
            torch.index_select(rows, 0, flat, out=target.view(flat.numel(), *rows.shape[1:]))
        else:
            target.copy_(rows[flat].view(target.shape))

    def _indices(self, operands: Operands) -> Tensor:
        """The index tensor, axes as in `index_letters`, int64."""
        load = _inner(self.job)
        view = self.job.reads[1]
        range_ = range_by_letter(self.job)
        dims = [_form(i) for i in load.indices]
        hull = [a.hull({x: (r.start, r.end) for x, r in range_.items()}) for a in dims]
        box = Box(tuple(lo for lo, _ in hull), tuple(hi for _, hi in hull))
        held = assemble(view, 1, box)(operands)
        size = [range_[x].extent for x in self.index_letters]
        stride, offset = _strides(dims, box, self.index_letters, range_)
        return held.as_strided(size, stride, offset).to(torch.int64)

    def _check(self, index: Tensor, flat: Tensor) -> None:
        if not flat.numel():
            return
        least, most = (int(x) for x in flat.aminmax())
        if least < 0 or most >= self.rows:
            bad = least if least < 0 else most
            first = tuple(int(x) for x in (index == bad).nonzero()[0])
            ranges = range_by_letter(self.job)
            position = tuple(p + ranges[x].start for p, x in zip(first, self.index_letters, strict=True))
            raise IndexOutOfRange(self.job.reads[0].name, self.at, bad, self.rows, position)


def prepare_gather(job: GatherJob) -> HostGather:
    """`job` ready to run on host tensors."""
    table = job.reads[0]
    assert job.load.name == table.name, "a gather reads its table first"
    at = next(d for d, i in enumerate(job.load.indices) if isinstance(i, Load))
    ranges = range_by_letter(job)
    index_letters = tuple(x for x in job.target if any(isinstance(i, Axis) and i.letter == x for i in _inner(job).indices))
    rest = tuple(x for x in job.target if x not in index_letters)
    dims = [None if d == at else _form(i) for d, i in enumerate(job.load.indices)]
    looks = tuple(look for j in range(len(table.boxes)) if (look := _look(table, j, at, dims, rest, ranges)) is not None)
    elements = 1
    for x in index_letters:
        elements *= ranges[x].extent
    result_bytes = job.result.boxes[0].size * job.result.dtype.nbytes
    plain = len(looks) == 1 and job.target == (*index_letters, *rest) and table.dtype is job.result.dtype
    return HostGather(
        job, at, index_letters, rest, looks, max(b.end[at] for b in table.boxes), 24 * elements + (0 if plain else 2 * result_bytes)
    )


def blocks_of(job: GatherJob, nbytes: int) -> Iterator[GatherJob]:
    """`job` cut into jobs of at most `nbytes` of the result each (one element at least), which lie one after the other in it.

    result [b=2, s=5, m=4], 64 bytes of fp32 a block:  b 0, s 0:4   b 0, s 4:5   b 1, s 0:4   b 1, s 4:5
    """
    (box,), shape = job.result.boxes, job.result.boxes[0].shape
    inside = [prod(shape[d + 1 :]) * job.result.dtype.nbytes for d in range(len(shape))]
    at = next((d for d, inner in enumerate(inside) if inner <= nbytes), len(shape) - 1)
    if not shape or inside[0] * shape[0] <= nbytes:
        yield job
        return
    step = max(1, nbytes // inside[at])
    for outer in product(*(range(a, b) for a, b in zip(box.start[:at], box.end[:at], strict=True))):
        for first in range(box.start[at], box.end[at], step):
            start = (*outer, first, *box.start[at + 1 :])
            stop = (*(i + 1 for i in outer), min(first + step, box.end[at]), *box.end[at + 1 :])
            cut = {x: Range(x, a, b) for x, a, b in zip(job.target, start, stop, strict=True)}
            ranges = tuple(cut.get(r.letter, r) for r in job.ranges)
            yield replace(job, ranges=ranges, result=replace(job.result, boxes=(Box(start, stop),)))


def _inner(job: GatherJob) -> Load:
    return next(i for i in job.load.indices if isinstance(i, Load))


def _form(e: object) -> Affine:
    form = affine(e)  # type: ignore[arg-type]
    assert form is not None, "a gather's other indices are letters or numbers"
    return form


def _look(table: View, j: int, at: int, dims: list[Affine | None], rest: tuple[Letter, ...], ranges: dict[Letter, Range]) -> _Look | None:
    """How tile `j` gives rows over the `rest` letters; None for a tile of other columns."""
    box = table.boxes[j]
    step = row_major(box.shape)
    offset, stride, part = 0, dict.fromkeys(rest, 0), {x: (0, ranges[x].extent) for x in rest}
    for d, a in enumerate(dims):
        if a is None:
            continue
        lo, hi = a.hull({x: (r.start, r.end) for x, r in ranges.items()})
        first, last = max(lo, box.start[d]), min(hi, box.end[d])
        if last <= first:
            return None
        offset += (first - box.start[d]) * step[d]
        for letter, c in a.terms:
            stride[letter] += c * step[d]
        if (first, last) != (lo, hi):
            ((letter, c),) = a.terms
            assert c == 1, f"{table.name}: tiles cut a dimension that is read with steps"
            part[letter] = (first - lo, last - lo)
    size = (box.shape[at], *(part[x][1] - part[x][0] for x in rest))
    slices = tuple(slice(*part[x]) for x in rest)
    return _Look(j, box.start[at], box.end[at], size, (step[at], *(stride[x] for x in rest)), offset, slices)


def _strides(dims: list[Affine], box: Box, letters: tuple[Letter, ...], ranges: dict[Letter, Range]) -> tuple[list[int], int]:
    stride = dict.fromkeys(letters, 0)
    offset = 0
    for a, lo, step in zip(dims, box.start, row_major(box.shape), strict=True):
        offset += (a.const - lo) * step
        for letter, c in a.terms:
            offset += c * ranges[letter].start * step
            stride[letter] += c * step
    return [stride[x] for x in letters], offset
