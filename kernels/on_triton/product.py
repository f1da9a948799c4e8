"""Triton source of the sums of a matrix product: the loop over the inner letters, addresses hoisted out of it.

In: a writer, the contractions of a job, a block of rows and columns. Out: lines, and a variable [ROWS, COLS] for each contraction. Where
a load lies in several tiles the loop is cut where they end along the inner letters, and the pointer is chosen once a row where they end
elsewhere. Contractions that share a factor and their letters run in one loop, which loads the factor once. Only the last step of a loop
is masked, and only where its length is ragged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Letter, Load
from einpage.einsum_front.graph.job import Box, Contraction, Range
from einpage.kernels.layout.affine import linear
from einpage.kernels.tiles.tiles import Tiles
from einpage.kernels.writer.descriptor import described, joined
from einpage.kernels.writer.values import NONE, Val
from einpage.kernels.writer.writer import Frame, Writer, coefficients

Piece = tuple[Range, ...]
"""The inner letters of one loop and the part of their ranges that it goes through."""
Side = tuple[Load, str]
"""A factor and the axis of the block it runs along: r (it stands on the left) or c."""


@dataclass(frozen=True, slots=True)
class Term:
    """One contraction of a job: what stands on the left, what on the right."""

    number: int
    left: Load
    right: Load
    letters: tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """The pointers of one factor, made before the loop."""

    name: str
    step: Mapping[Letter, int]
    """Elements from one value of an inner letter to the next."""
    axes: frozenset[str]
    mask: str


@dataclass(frozen=True, slots=True)
class Described:
    """A factor that the copy engine brings."""

    name: str
    first: str
    """The variable with the block's first row (or column)."""
    turned: bool
    """Whether its rows (or columns) lie side by side, not its inner index."""


@dataclass(frozen=True, slots=True)
class Loop:
    """Terms summed together over one piece of their letters."""

    terms: tuple[Term, ...]
    piece: Piece
    runs: tuple[tuple[Letter, ...], ...]
    """The piece's letters, outermost first."""
    hoisted: bool
    """Whether addresses move by one number a step; else each step works out every letter of every lane."""

    @property
    def extents(self) -> list[int]:
        extent = {r.letter: r.extent for r in self.piece}
        return [prod(extent[x] for x in run) for run in self.runs]


def together(contractions: Sequence[Contraction], crossed: Sequence[bool]) -> list[tuple[Term, ...]]:
    """The terms that one loop can sum: the same letters, and a factor in common with the first of them."""
    out: list[list[Term]] = []
    for n, (c, swap) in enumerate(zip(contractions, crossed, strict=True)):
        term = Term(n, c.y, c.x, c.letters) if swap else Term(n, c.x, c.y, c.letters)
        for group in out:
            first = group[0]
            if set(first.letters) == set(term.letters) and (first.left == term.left or first.right == term.right):
                group.append(term)
                break
        else:
            out.append([term])
    return [tuple(group) for group in out]


def loops(w: Writer, terms: tuple[Term, ...]) -> Iterator[Loop]:
    """One loop for every part of the inner letters in which no factor goes from one tile to the next."""
    factors = list(dict.fromkeys(load for t in terms for load in (t.left, t.right)))
    letters = terms[0].letters
    forms_by_load = {load: [linear(i) for i in load.indices] for load in factors}
    borders = {x: {w.range_by_letter[x].start, w.range_by_letter[x].end} for x in letters}
    for load in factors:
        for d, index in enumerate(load.indices):
            if isinstance(index, Axis) and index.letter in borders:
                r = w.range_by_letter[index.letter]
                borders[index.letter] |= {p for b in _view_boxes(w, load) for p in (b.start[d], b.end[d]) if r.start < p < r.end}
    for spans in product(*(pairwise(sorted(borders[x])) for x in letters)):
        piece = tuple(Range(x, *span) for x, span in zip(letters, spans, strict=True))
        with w.over(piece):
            moves = [[coefficients(b, f) for b in _view_boxes(w, load) if w.meets(b, f)] for load, f in forms_by_load.items()]
            orders = dict.fromkeys([letters, *(_in_order(load, letters) for load in factors)])
            best = min((joined(w, order, [m for ms in moves for m in ms]) for order in orders), key=len)
            last = prod(w.range_by_letter[x].extent for x in best[-1]) if best else 1
            alike = all(len({m.get(x, 0) for m in ms}) == 1 for ms in moves for x in letters)
            yield Loop(terms, piece, tuple(best), alike and (len(best) <= 1 or last % 16 == 0))


def _in_order(load: Load, letters: tuple[Letter, ...]) -> tuple[Letter, ...]:
    """`letters` as they lie in `load`, outermost first."""
    place = {i.letter: d for d, i in enumerate(load.indices) if isinstance(i, Axis)}
    return tuple(sorted(letters, key=lambda x: place.get(x, -1)))


def inner_size(found: Sequence[Loop], most: int) -> int:
    """The length of a step: at most `most`, and one that divides the fastest run wherever runs cannot be joined."""
    size = 16
    while size < most and any(prod(loop.extents) > size for loop in found):
        size *= 2
    for loop in found:
        while loop.hoisted and len(loop.runs) > 1 and loop.extents[-1] % size:
            size //= 2
    return size


@dataclass(frozen=True, slots=True)
class Along:
    """The rows or the columns of a block: what runs along one of its axes."""

    name: str
    """The variable that numbers them."""
    letters: tuple[Letter, ...]
    count: int
    ragged: bool
    """Whether the last block reaches beyond the end."""


class Products:
    """Writes loops for one block of rows and columns."""

    def __init__(
        self, w: Writer, frame: Frame, along: Mapping[str, Along], found: Sequence[Loop], size: Mapping[str, int], tiles: Tiles
    ) -> None:
        self.w, self.frame, self.along, self.size, self.tiles = w, frame, along, size, tiles
        self.inner = size["INNER"]
        self.dtype_by_name = {v.name: v.dtype for v in w.reads}
        self.inside: dict[str, dict[Letter, Val]] = {}
        """Letters held inside their range, for an axis that is ragged."""
        sides = {side for loop in found for t in loop.terms for side in ((t.left, "r"), (t.right, "c"))}
        for axis, a in along.items():
            if a.ragged and any(self._apart(load, axis) for load, other in sides if other == axis):
                held = w.assign(f"{a.name}_inside", f"tl.minimum({a.name}, {a.count - 1})")
                self.inside[axis] = w.split(held, a.letters, axis)

    def write(self, loop: Loop, accs: Mapping[int, str]) -> None:
        """Lines that add `loop` to `accs`."""
        w = self.w
        with w.over(loop.piece):
            count = prod(loop.extents)
            sides = list(dict.fromkeys(side for t in loop.terms for side in ((t.left, "r"), (t.right, "c"))))
            blocks = {side: self._described(side, loop) or self._block(side, loop) for side in sides} if loop.hoisted else {}
            whole = count // self.inner * self.inner
            if whole > self.inner:
                k = w.fresh("inner")
                over = f"tl.range(0, {whole}, INNER, warp_specialize=True)" if self.tiles.specialised else f"range(0, {whole}, INNER)"
                w.line(f"for {k} in {over}:  # [{' '.join(x for run in loop.runs for x in run)}]")
                w.indent += 1
                self._step(loop, blocks, k, None, accs)
                w.indent -= 1
            elif whole:
                self._step(loop, blocks, "0", None, accs)
            if count > whole:
                self._step(loop, blocks, str(whole), count - whole, accs)

    def _step(self, loop: Loop, blocks: Mapping[Side, Block | Described], k: str, real: int | None, accs: Mapping[int, str]) -> None:
        """One step from inner index `k` on; of its lanes the first `real` are real, or all."""
        w = self.w
        held: dict[Side, str] = {}
        for t in loop.terms:
            for side in ((t.left, "r"), (t.right, "c")):
                if side not in held:
                    held[side] = self._hoisted(loop, blocks[side], side, k, real) if loop.hoisted else self._general(loop, side, k, real)
            same = self.dtype_by_name[t.left.name] is self.dtype_by_name[t.right.name]
            left, right = (held[side] + ("" if same else ".to(tl.float32)") for side in ((t.left, "r"), (t.right, "c")))
            w.line(f'{accs[t.number]} = tl.dot({left}, {right}, {accs[t.number]}, input_precision="ieee")')

    # addresses made once

    def _block(self, side: Side, loop: Loop) -> Block:
        """The pointers of a factor at the first step, chosen among its tiles row by row where it lies in several."""
        w, (load, axis) = self.w, side
        operand = w.operand_by_name[load.name]
        view = w.reads[operand]
        forms = [w.form(i) for i in load.indices]
        frame = self._beside(load, axis)
        lanes = f"tl.arange(0, INNER){_ACROSS[axis]}{'.to(tl.int64)' if w.wide else ''}"
        letters = {**frame.letters, **{x: Val("0", NONE, "i") for run in loop.runs for x in run}}
        last = loop.runs[-1][-1] if loop.runs else None
        if last is not None and any(last in form[0] for form in forms if form is not None):
            letters[last] = Val(w.assign(str(last), lanes), frozenset("k"), "i")
        here = Frame(letters, frame.masks)
        text, step = "", None
        for j, box in enumerate(view.boxes):
            conditions = w.conditions(view, box, forms, {}, here)
            if conditions is None:
                continue
            first = w.first.setdefault((operand, j), w.reached(box, forms))
            place = " + ".join([w.pointer(operand, j), *w.address(box, forms, letters, first)])
            text = f"tl.where({' & '.join(conditions)}, {place}, {text})" if text else place
            moved = {x: c for x, c in coefficients(box, forms).items() if any(x in run for run in loop.runs)}
            assert step is None or step == moved, f"tiles of {load.name} differ along summed letters"
            step = moved
        assert step is not None, f"no tile of {load.name} holds what the job reads"
        axes = w.axes(forms, here)
        mask = frame.masks[axis] if axis in axes and axis in frame.masks else ""
        return Block(w.assign(f"{load.name}_at", text), step, axes, mask)

    def _described(self, side: Side, loop: Loop) -> Described | None:
        """A descriptor of the factor, where the tile choice wants one and the factor is one matrix that the copy engine can read."""
        load, axis = side
        a = self.along[axis]
        lanes = self.size["ROWS" if axis == "r" else "COLS"]
        found = described(self.w, load, a.letters, loop.runs, lanes, self.inner) if self.tiles.descriptors else None
        if found is None:
            return None
        d, turned = found
        if d not in self.w.descriptors:
            self.w.descriptors[d] = self.w.fresh(f"{load.name}_desc")
        return Described(self.w.descriptors[d], f"{a.name}_first{'.to(tl.int32)' if self.w.wide else ''}", turned)

    def _hoisted(self, loop: Loop, block: Block | Described, side: Side, k: str, real: int | None) -> str:
        """Load one step of a factor."""
        w, (load, axis) = self.w, side
        if isinstance(block, Described):
            place = f"{k}, {block.first}" if block.turned else f"{block.first}, {k}"
            name = w.assign(load.name, f"{block.name}.load([{place}])")
            return name if block.turned == (axis == "c") else f"{name}.T"
        moves = []
        inner = 1
        for n, (run, extent) in reversed(list(enumerate(zip(loop.runs, loop.extents, strict=True)))):
            at = k if inner == 1 else f"({k} // {inner})"
            at = at if n == 0 else f"{at} % {extent}"
            c = block.step.get(run[-1], 0)
            if c and k != "0":
                at = f"(tl.zeros((1, 1), tl.int64) + {at})" if w.wide else at
                moves.append(at if c == 1 else f"{at} * {c}")
            inner *= extent
        inside = "" if real is None else self._real(real, axis)
        mask = " & ".join(m for m in (block.mask, inside if "k" in block.axes else "") if m)
        where = " + ".join([block.name, *moves])
        name = w.assign(load.name, f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})")
        return self._full(name, block.axes, axis, inside)

    def _real(self, real: int, axis: str) -> str:
        return f"(tl.arange(0, INNER){_ACROSS[axis]} < {real})"

    def _full(self, name: str, axes: frozenset[str], axis: str, inside: str) -> str:
        """`name` as a full [ROWS, INNER] or [INNER, COLS] block, 0 beyond the sum's end."""
        if axes == {axis, "k"}:
            return name
        text = f"tl.broadcast_to({name}, {_SHAPE[axis]})"
        return self.w.assign("block", f"tl.where({inside}, {text}, 0)" if inside and "k" not in axes else text)

    def _beside(self, load: Load, axis: str) -> Frame:
        """Letters and masks for a factor: held inside where its rows (or columns) lie apart in memory, masked where side by side."""
        if axis not in self.inside or not self._apart(load, axis):
            return self.frame
        masks = {a: m for a, m in self.frame.masks.items() if a != axis}
        return Frame({**self.frame.letters, **self.inside[axis]}, masks)

    def _apart(self, load: Load, axis: str) -> bool:
        letters = {x for x, v in self.frame.letters.items() if axis in v.axes}
        forms = [linear(i) for i in load.indices]
        steps = [c for b in _view_boxes(self.w, load) for x, c in coefficients(b, forms).items() if x in letters]
        return bool(steps) and 1 not in steps

    # addresses made in every step

    def _general(self, loop: Loop, side: Side, k: str, real: int | None) -> str:
        w, (load, axis) = self.w, side
        number = w.assign("lane", f"{k} + tl.arange(0, INNER){_ACROSS[axis]}{'.to(tl.int64)' if w.wide else ''}")
        frame = self._beside(load, axis)
        inside = "" if real is None else self._real(real, axis)
        masks = {**frame.masks, **({"k": inside} if inside else {})}
        held = w.load(load, Frame({**frame.letters, **w.split(number, [x for run in loop.runs for x in run], "k")}, masks))
        return self._full(held.text, held.axes, axis, inside)


def _view_boxes(w: Writer, load: Load) -> tuple[Box, ...]:
    return w.reads[w.operand_by_name[load.name]].boxes


_ACROSS = {"r": "[None, :]", "c": "[:, None]"}
_SHAPE = {"r": "(ROWS, INNER)", "c": "(INNER, COLS)"}
