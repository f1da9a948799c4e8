"""The keys (or values) of an attention as a loop reads them: one pointer a tile, a block of offsets made before the loop, one step.

In: a load, the letter the loop runs over, the letters within a block. Out: a `Stream`, or None where its tiles do not lie so plainly (cut
within a head, say). Where keys lie in several tiles, a loop over the tiles chooses the pointer, and the loop over keys stays within one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.graph.job import Box, Range
from einpage.kernels.layout.affine import linear
from einpage.kernels.writer.linear_index import offset
from einpage.kernels.writer.values import NONE, Val
from einpage.kernels.writer.writer import Form, Frame, Writer, coefficients


@dataclass(frozen=True, slots=True)
class Stream:
    name: str
    """The variable that holds the pointer."""
    at: tuple[str, ...]
    """For each part of the row, where its first key would lie for key 0 of the job."""
    inside: str
    """The variable that holds a block's offsets."""
    step: int
    """Elements from one key to the next."""

    def block(self, start: str, wide: bool) -> str:
        """The addresses of the block of keys from `start` on."""
        return f"{self.name} + {start} * {f'tl.full((), {self.step}, tl.int64)' if wide else self.step} + {self.inside}"


def parts_of_row(w: Writer, row: Letter, among: Sequence[Load]) -> list[Range]:
    """The row's range, cut where a tile of any of these loads ends."""
    whole = w.range_by_letter[row]
    places = {whole.start, whole.end}
    for load in among:
        for d, index in enumerate(load.indices):
            if index == Axis(row):
                places |= {p for b in _boxes(w, load) for p in (b.start[d], b.end[d]) if whole.start < p < whole.end}
    borders = sorted(places)
    return [Range(row, a, b) for a, b in pairwise(borders)]


def stream(
    w: Writer,
    load: Load,
    row: Letter,
    parts: Sequence[Range],
    batch: Mapping[Letter, Val],
    lanes: Mapping[Letter, Val],
    keys: str,
    full: str,
) -> Stream | None:
    """Lines for what is the same in every step; `keys` are the lanes of a block's keys, `full` its shape."""
    forms = [linear(i) for i in load.indices]
    if any(form is None for form in forms):
        return None
    first = w.range_by_letter[row].start
    here = Frame({**batch, row: Val("0", NONE, "i"), **{x: Val("0", NONE, "i") for x in lanes}}, {})
    at, moves = [], []
    for part in parts:
        with w.over((part,)):
            found = _pointer(w, load, forms, here)
            moves += [coefficients(box, forms) for box in _boxes(w, load) if w.meets(box, forms)]
        step = moves[-1].get(row, 0)
        if found is None:
            return None
        at.append(f"{found} - {(part.start - first) * step}" if part.start > first else found)
    steps = [{x: move.get(x, 0) for x in (row, *lanes)} for move in moves]
    if any(s != steps[0] for s in steps):
        return None
    terms = offset({x: c for x, c in steps[0].items() if x != row and w.range_by_letter[x].extent > 1}, lanes, w.flats)
    zeros = [] if terms else [f"tl.zeros({full}, tl.int32)"]
    inside = w.assign(f"{load.name}_inside", " + ".join([*terms, f"{keys} * {steps[0][row]}", *zeros]))
    return Stream(w.fresh(f"{load.name}_at"), tuple(at), inside, steps[0][row])


def _pointer(w: Writer, load: Load, forms: Sequence[Form | None], here: Frame) -> str | None:
    """Where the element at letter 0 of all but the batch lies; None where which tile holds it depends on more than the batch."""
    operand = w.operand_by_name[load.name]
    view = w.reads[operand]
    text = ""
    for j, box in enumerate(view.boxes):
        conditions = w.conditions(view, box, forms, {}, here)
        if conditions is None:
            continue
        for d, form in enumerate(forms):
            low, high = w.hull(form) if form is not None else (0, 0)
            moved_by = {x for x in form[0] if here.letters[x].text == "0"} if form is not None else set()
            if moved_by and (low < box.start[d] or box.end[d] < high):
                return None
        first = w.first.setdefault((operand, j), w.reached(box, forms))
        place = " + ".join([w.pointer(operand, j), *w.address(box, forms, here.letters, first)])
        text = f"tl.where({' & '.join(conditions)}, {place}, {text})" if text else place
    return text or None


def _boxes(w: Writer, load: Load) -> tuple[Box, ...]:
    return w.reads[w.operand_by_name[load.name]].boxes
