"""The keys (or values) of an attention as a loop reads them: one pointer a tile, a block of offsets made before the loop, one step; or
by the copy engine (TMA).

In: a load, the letter the loop runs over, the letters within a block. Out: `KeyAddresses`, or None where its tiles do not lie so plainly
(split within a head, say); `RowDescriptor`, or None where the engine cannot read them so. Where keys lie in several tiles, a loop over the
tiles chooses the pointer, and the loop over keys stays within one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.graph.job import Range
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import Affine, address
from einpage.kernels.layout.blocks import whole
from einpage.kernels.writer.descriptor import ALIGNED, joined
from einpage.kernels.writer.launch import Descriptor
from einpage.kernels.writer.linear_index import offset
from einpage.kernels.writer.values import NONE, Val
from einpage.kernels.writer.writer import Scope, Writer

MOST_DIMENSIONS = 5
"""Of what the copy engine reads."""


@dataclass(frozen=True, slots=True)
class KeyAddresses:
    """The addresses of keys (or values) as a pointer to a part of them and a block of offsets."""

    name: str
    """The variable that holds the pointer."""
    pointers: tuple[str, ...]
    """For each part of the row, where its first key would lie for key 0 of the job."""
    offsets: str
    """The variable that holds a block's offsets."""
    step: int
    """Elements from one key to the next."""

    def block(self, start: str, wide: bool) -> str:
        """The addresses of the block of keys from `start` on."""
        return f"{self.name} + {start} * {f'tl.full((), {self.step}, tl.int64)' if wide else self.step} + {self.offsets}"


@dataclass(frozen=True, slots=True)
class RowDescriptor:
    """Keys, values or queries that the copy engine reads, block by block: [batch letters, row, element], zero beyond the last row."""

    name: str
    """The parameter with the descriptor."""
    batch: tuple[str, ...]
    """The place along each batch letter."""

    def block(self, start: str, shape: str) -> str:
        """The block of rows from `start` on."""
        loaded = f"{self.name}.load([{', '.join((*self.batch, start, '0'))}])"
        return f"tl.reshape({loaded}, {shape})" if self.batch else loaded


def rows_by_engine(
    w: Writer, load: Load, rows: Sequence[Letter], batch: Sequence[Letter], lanes: Sequence[Letter], block: tuple[int, int]
) -> Descriptor | None:
    """The descriptor of blocks of so many `rows` (keys, or queries) by so many `lanes` (elements of a head).

    Its dimensions are those of `batch` that move the load, outermost first, then rows, then lanes. None where the engine cannot read them:
    they lie in several tiles, rows or lanes are no one index, lanes are not contiguous or do not fill the block (the engine would bring
    the next head's), places are no multiples of 16 bytes, there are more than five dimensions.
    """
    operand, indices = w.operand_by_name[load.name], w.affine_indices(load)
    view, extent = w.reads[operand], {x: r.extent for x, r in w.range_by_letter.items()}
    met = [j for j, box in enumerate(view.boxes) if w.meets(box, indices)]
    if len(met) != 1 or any(index is None for index in indices):
        return None
    box, outer = view.boxes[met[0]], batch_of(w, load, batch)
    strides = {x: c for x, c in address(box, indices).terms if extent[x] > 1}
    runs = [joined(w, letters, [strides]) for letters in (rows, lanes)]
    if any(len(run) != 1 for run in runs) or not set(strides) <= {*rows, *lanes, *outer}:
        return None
    row, lane = (run[0][-1] for run in runs)
    steps = (*(strides[x] for x in outer), strides.get(row, 0))
    places = (*steps, w.lowest_reached(box, indices))
    if strides.get(lane, 0) != 1 or prod(extent[x] for x in lanes) != block[1] or len(steps) >= MOST_DIMENSIONS:
        return None
    if min(steps) <= 0 or any(n * view.dtype.nbytes % ALIGNED for n in places):
        return None
    shape = (*(extent[x] for x in outer), prod(extent[x] for x in rows), block[1])
    return Descriptor(operand, met[0], places[-1], shape, (*steps, 1), (*(1 for _ in outer), *block))


def batch_of(w: Writer, load: Load, batch: Sequence[Letter]) -> list[Letter]:
    """The letters of `batch` that move a load, those of the largest steps first."""
    indices = w.affine_indices(load)
    steps = {x: c for box in w.boxes(load) for x, c in address(box, indices).terms if x in batch and w.range_by_letter[x].extent > 1}
    return sorted(steps, key=lambda x: (-steps[x], batch.index(x)))


def parts_of_row(w: Writer, row: Letter, among: Sequence[Load]) -> list[Range]:
    """The row's range, split where a tile of any of these loads ends."""
    every = w.range_by_letter[row]
    places = {every.start, every.end}
    for load in among:
        for d, index in enumerate(load.indices):
            if index == Axis(row):
                places |= {p for b in w.boxes(load) for p in (b.start[d], b.end[d]) if every.start < p < every.end}
    return [Range(row, a, b) for a, b in pairwise(sorted(places))]


def key_addresses(
    w: Writer,
    load: Load,
    row: Letter,
    parts: Sequence[Range],
    batch: Mapping[Letter, Val],
    lanes: Mapping[Letter, Val],
    keys: str,
    full: str,
) -> KeyAddresses | None:
    """Lines for what is the same in every step; `keys` are the lanes of a block's keys, `full` its shape."""
    indices = w.affine_indices(load)
    if any(index is None for index in indices):
        return None
    start = w.range_by_letter[row].start
    scope = Scope({**batch, row: Val("0", NONE, ValueKind.INT), **{x: Val("0", NONE, ValueKind.INT) for x in lanes}}, {})
    pointers, strides = [], []
    for part in parts:
        with w.over((part,)):
            pointer = _pointer(w, load, indices, scope)
            strides += [dict(address(box, indices).terms) for box in w.boxes(load) if w.meets(box, indices)]
        step = strides[-1].get(row, 0)
        if pointer is None:
            return None
        pointers.append(f"{pointer} - {(part.start - start) * step}" if part.start > start else pointer)
    steps = [{x: stride.get(x, 0) for x in (row, *lanes)} for stride in strides]
    if any(s != steps[0] for s in steps):
        return None
    terms = offset({x: c for x, c in steps[0].items() if x != row and w.range_by_letter[x].extent > 1}, lanes, w.linear_indices)
    zeros = [] if terms else [f"tl.zeros({full}, tl.int32)"]
    offsets = w.assign(f"{load.name}_inside", " + ".join([*terms, f"{keys} * {steps[0][row]}", *zeros]))
    return KeyAddresses(w.fresh(f"{load.name}_at"), tuple(pointers), offsets, steps[0][row])


def _pointer(w: Writer, load: Load, indices: Sequence[Affine | None], scope: Scope) -> str | None:
    """Where the element at letter 0 of all but the batch lies; None where which tile holds it depends on more than the batch."""
    operand = w.operand_by_name[load.name]
    view, region = w.reads[operand], whole(w.range_by_letter.values())
    parts = []
    for j, box in enumerate(view.boxes):
        conditions = w.conditions(view, box, indices, {}, scope.letters)
        if conditions is None:
            continue
        for index, low, high in zip(indices, box.start, box.end, strict=True):
            hull = (0, 0) if index is None else index.hull(region)
            moves = index is not None and any(scope.letters[x].text == "0" for x, _ in index.terms)
            if moves and (hull[0] < low or high < hull[1]):
                return None
        parts.append((" & ".join(conditions), w.element(operand, j, indices, scope.letters)))
    return w.choice(f"{load.name}_from", parts) if parts else None
