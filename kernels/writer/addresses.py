"""Where the elements of a job's tiles lie, as terms of Triton source.

In: a load's indices, the variables of its letters. Out: the text of an address, and the conditions that hold where an element lies in a
tile. A letter's variable counts from 0 whatever the job's range, and boxes are folded into the addresses' constants, so that tiles of
equal shape have equal text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod

from einpage.einsum_front.algebra.expr import Expr, Letter, Load
from einpage.einsum_front.graph.job import Box, Range, View
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import Affine, affine, lowest_reached, meets
from einpage.kernels.layout.affine import address as affine_address
from einpage.kernels.layout.blocks import whole
from einpage.kernels.tiles.tiles import Tiles
from einpage.kernels.writer.kernel_text import KernelText
from einpage.kernels.writer.launch import Launch
from einpage.kernels.writer.linear_index import LinearIndex, offset, times
from einpage.kernels.writer.values import Val


class JobText(KernelText):
    """The text of a kernel over the letters of one job."""

    def __init__(self, reads: Sequence[View], result: View, ranges: Iterable[Range], others: Sequence[View] = ()) -> None:
        super().__init__(reads, result, others)
        self.range_by_letter = {r.letter: r for r in ranges}
        self.operand_by_name = {v.name: i for i, v in enumerate(reads)}
        self.linear_indices: list[LinearIndex] = []
        """What `split` made, for addresses."""

    @contextmanager
    def over(self, ranges: Iterable[Range]) -> Iterator[None]:
        """Write for a part of the job: these ranges stand for those of the same letters."""
        every = self.range_by_letter
        self.range_by_letter = {**every, **{r.letter: r for r in ranges}}
        yield
        self.range_by_letter = every

    def launch(self, name: str, what: str, constants: Mapping[str, int], programs: int, tiles: Tiles) -> Launch:
        """The finished kernel; `what` says in its docstring what it computes."""
        return self.module(name, what, constants, {x: r.start for x, r in self.range_by_letter.items()}, programs, tiles)

    def split(self, index: str, letters: Sequence[Letter], axes: str) -> dict[Letter, Val]:
        """Variables for letters that together run along the linear index `index`, the last one fastest; each counts from 0."""
        out: dict[Letter, Val] = {}
        inner = 1
        for n, letter in reversed(list(enumerate(letters))):
            r = self.range_by_letter[letter]
            text = index if inner == 1 else f"({index} // {inner})"
            outer = prod(self.range_by_letter[x].extent for x in letters[:n])
            text = text if outer == 1 else f"{text} % {r.extent}"
            out[letter] = Val(self.assign(str(letter), text), frozenset(axes), ValueKind.INT)
            inner *= r.extent
        self.linear_indices.append(LinearIndex(index, tuple((x, self.range_by_letter[x].extent) for x in letters), out))
        return out

    def boxes(self, load: Load) -> tuple[Box, ...]:
        """Of the tiles of what a load reads."""
        return self.reads[self.operand_by_name[load.name]].boxes

    def affine_indices(self, load: Load) -> list[Affine | None]:
        """The indices of a load over all their letters; None for one that is not affine."""
        return [affine(i) for i in load.indices]

    def indices(self, load: Load) -> list[Affine | None]:
        """The indices of a load as `index` gives them."""
        return [self.index(i) for i in load.indices]

    def index(self, e: Expr) -> Affine | None:
        """`e` as an affine function, without letters of one value: it is the same along their whole axis. None where it is none."""
        found = affine(e)
        return None if found is None else found.with_numbers({x: r.start for x, r in self.range_by_letter.items() if r.extent == 1})

    def conditions(
        self, view: View, box: Box, indices: Sequence[Affine | None], looked_up: Mapping[int, Val], letters: Mapping[Letter, Val]
    ) -> list[str] | None:
        """Which lanes lie in `box`, as texts; None where none can. A looked-up index is always checked."""
        if not self.meets(box, indices):
            return None
        region, starts = whole(self.range_by_letter.values()), self._starts()
        out: list[str] = []
        for d, index in enumerate(indices):
            if index is None:
                out.append(f"({looked_up[d].text} >= {box.start[d]}) & ({looked_up[d].text} < {box.end[d]})")
                continue
            low, high = index.hull(region)
            text, origin = " + ".join(_products(index, letters)), index.at(starts)
            if low < box.start[d] and len(view.boxes) > 1:
                out.append(f"({text} >= {box.start[d] - origin})")
            if box.end[d] < high and len(view.boxes) > 1:
                out.append(f"({text} < {box.end[d] - origin})")
        return out

    def meets(self, box: Box, indices: Sequence[Affine | None]) -> bool:
        """Whether some lane of a load can lie in `box`."""
        return meets(box, indices, whole(self.range_by_letter.values()))

    def lowest_reached(self, box: Box, indices: Sequence[Affine | None]) -> int:
        """The element of a packed box from which on a load reads."""
        return lowest_reached(box, indices, whole(self.range_by_letter.values()))

    def element(self, operand: int, tile: int, indices: Sequence[Affine | None], letters: Mapping[Letter, Val]) -> str:
        """Where an element of a tile lies; looked-up dimensions are left to the caller."""
        box = self.reads[operand].boxes[tile]
        base = self.base.setdefault((operand, tile), self.lowest_reached(box, indices))
        return " + ".join([self.pointer(operand, tile), *self.address(box, indices, letters, base)])

    def address(self, box: Box, indices: Sequence[Affine | None], letters: Mapping[Letter, Val], base: int = 0) -> list[str]:
        """The terms of an element's offset from element `base` of a packed box."""
        place = affine_address(box, indices)
        const = place.at(self._starts()) - base
        return [*offset(dict(place.terms), letters, self.linear_indices), *([f"({const})"] if const else [])]

    def _starts(self) -> dict[Letter, int]:
        return {x: r.start for x, r in self.range_by_letter.items()}


def _products(index: Affine, letters: Mapping[Letter, Val]) -> list[str]:
    return [times(letters[x].text, c) for x, c in index.terms if letters[x].text != "0"]
