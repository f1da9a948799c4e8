"""The keys (or values) of an attention as a loop reads them: one pointer a tile, a block of offsets made before the loop, one step.

In: a load, the letter the loop runs over, the letters within a block. Out: `KeyAddresses`, or None where its tiles do not lie so plainly
(split within a head, say). Where keys lie in several tiles, a loop over the tiles chooses the pointer, and the loop over keys stays
within one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.graph.job import Range
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import Affine, address
from einpage.kernels.layout.blocks import whole
from einpage.kernels.writer.linear_index import offset
from einpage.kernels.writer.values import NONE, Val
from einpage.kernels.writer.writer import Scope, Writer


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
