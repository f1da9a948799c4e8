"""Triton source of the sums of a matrix product: loops over the inner letters, addresses hoisted out of them.

In: a writer, the loops of a job, a block of rows and columns. Out: lines, and a variable [ROWS, COLS] for each contraction. Where a load
lies in several tiles along rows or columns the pointer is chosen once a row. Only the last step of a loop is masked, and only where its
length is ragged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from einpage.einsum_front.algebra.expr import Letter, Load
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import address
from einpage.kernels.on_triton.product_loops import Loop
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.tiles import Tiles
from einpage.kernels.writer.descriptor import descriptor_of
from einpage.kernels.writer.values import NONE, Val
from einpage.kernels.writer.writer import Scope, Writer

Side = tuple[Load, str]
"""A factor and the axis of the block it runs along: r (it stands on the left) or c."""


@dataclass(frozen=True, slots=True)
class PointerBlock:
    """The pointers of one factor, made before the loop."""

    name: str
    step: Mapping[Letter, int]
    """Elements from one value of an inner letter to the next."""
    axes: frozenset[str]
    mask: str


@dataclass(frozen=True, slots=True)
class DescriptorBlock:
    """A factor that the copy engine (TMA) reads."""

    name: str
    start: str
    """The variable with the block's first row (or column)."""
    transposed: bool
    """Whether its rows (or columns) are contiguous, not its inner index."""


@dataclass(frozen=True, slots=True)
class BlockAxis:
    """The rows or the columns of a block."""

    name: str
    """The variable that numbers them."""
    letters: tuple[Letter, ...]
    count: int
    ragged: bool
    """Whether the last block reaches beyond the end."""


class ProductWriter:
    """Writes loops for one block of rows and columns."""

    def __init__(
        self,
        w: Writer,
        scope: Scope,
        axes: Mapping[str, BlockAxis],
        found: Sequence[Loop],
        size: Mapping[str, int],
        tiles: Tiles,
        fp32_products: Fp32Products,
    ) -> None:
        self.w, self.scope, self.axes, self.size, self.tiles, self.fp32_products = w, scope, axes, size, tiles, fp32_products
        self.inner = size["INNER"]
        self.dtype_by_name = {v.name: v.dtype for v in w.reads}
        self.inside: dict[str, dict[Letter, Val]] = {}
        """Letters clamped to their range, for an axis that is ragged."""
        sides = {side for loop in found for t in loop.terms for side in ((t.left, "r"), (t.right, "c"))}
        for axis, a in axes.items():
            if a.ragged and any(self._strided(load, axis) for load, other in sides if other == axis):
                clamped = w.assign(f"{a.name}_inside", f"tl.minimum({a.name}, {a.count - 1})")
                self.inside[axis] = w.split(clamped, a.letters, axis)

    def write(self, loop: Loop, accs: Mapping[int, str]) -> None:
        """Lines that add `loop` to `accs`."""
        w = self.w
        with w.over(loop.ranges):
            count = prod(loop.extents)
            sides = list(dict.fromkeys(side for t in loop.terms for side in ((t.left, "r"), (t.right, "c"))))
            blocks = {side: self._descriptor(side, loop) or self._pointers(side, loop) for side in sides} if loop.hoisted else {}
            whole_steps = count // self.inner * self.inner
            if blocks and all(isinstance(b, DescriptorBlock) for b in blocks.values()):
                whole_steps = -(-count // self.inner) * self.inner  # beyond the end the engine brings zeros
            if whole_steps > self.inner:
                k = w.fresh("inner")
                steps = (
                    f"tl.range(0, {whole_steps}, INNER, warp_specialize=True)"
                    if self.tiles.specialised
                    else f"range(0, {whole_steps}, INNER)"
                )
                with w.loop(k, steps, f"[{' '.join(x for run in loop.runs for x in run)}]"):
                    self._step(loop, blocks, k, None, accs)
            elif whole_steps:
                self._step(loop, blocks, "0", None, accs)
            if count > whole_steps:
                self._step(loop, blocks, str(whole_steps), count - whole_steps, accs)

    def _step(
        self, loop: Loop, blocks: Mapping[Side, PointerBlock | DescriptorBlock], k: str, lanes: int | None, accs: Mapping[int, str]
    ) -> None:
        """One step from inner index `k` on, of its first `lanes` lanes or of all."""
        w = self.w
        loaded: dict[Side, str] = {}
        for t in loop.terms:
            for side in ((t.left, "r"), (t.right, "c")):
                if side not in loaded:
                    loaded[side] = (
                        self._hoisted(loop, blocks[side], side, k, lanes) if loop.hoisted else self._general(loop, side, k, lanes)
                    )
            dtypes = [self.dtype_by_name[load.name] for load in (t.left, t.right)]
            wide = "" if dtypes[0] is dtypes[1] else ".to(tl.float32)"
            left, right = (loaded[side] + wide for side in ((t.left, "r"), (t.right, "c")))
            w.line(f"{accs[t.number]} = {w.dot(left, right, accs[t.number], dtypes, self.fp32_products)}")

    def _pointers(self, side: Side, loop: Loop) -> PointerBlock:
        """The pointers of a factor at the first step, chosen among its tiles row by row where it lies in several."""
        w, (load, axis) = self.w, side
        operand = w.operand_by_name[load.name]
        view = w.reads[operand]
        indices = w.indices(load)
        outer = self._scope_of(load, axis)
        lanes = w.lanes("INNER", _ACROSS[axis])
        letters = {**outer.letters, **{x: Val("0", NONE, ValueKind.INT) for run in loop.runs for x in run}}
        fastest = loop.runs[-1][-1] if loop.runs else None
        if fastest is not None and any(x == fastest for index in indices if index is not None for x, _ in index.terms):
            letters[fastest] = Val(w.assign(str(fastest), lanes), frozenset("k"), ValueKind.INT)
        scope = Scope(letters, outer.masks)
        parts, step = [], None
        for j, box in enumerate(view.boxes):
            conditions = w.conditions(view, box, indices, {}, letters)
            if conditions is None:
                continue
            parts.append((" & ".join(conditions), w.element(operand, j, indices, letters)))
            moved = {x: c for x, c in address(box, indices).terms if any(x in run for run in loop.runs)}
            assert step is None or step == moved, f"tiles of {load.name} differ along summed letters"
            step = moved
        assert step is not None, f"no tile of {load.name} holds what the job reads"
        axes = w.axes(indices, scope)
        mask = scope.masks[axis] if axis in axes and axis in scope.masks else ""
        return PointerBlock(w.assign(f"{load.name}_at", w.choice(f"{load.name}_at", parts)), step, axes, mask)

    def _descriptor(self, side: Side, loop: Loop) -> DescriptorBlock | None:
        """A descriptor of the factor, where the tile choice calls for one and the factor is one matrix that the copy engine can read."""
        load, axis = side
        a = self.axes[axis]
        lanes = self.size["ROWS" if axis == "r" else "COLS"]
        found = descriptor_of(self.w, load, a.letters, loop.runs, lanes, self.inner) if self.tiles.descriptors else None
        if found is None:
            return None
        d, transposed = found
        return DescriptorBlock(self.w.descriptor(d, load.name), f"{a.name}_first{'.to(tl.int32)' if self.w.wide else ''}", transposed)

    def _hoisted(self, loop: Loop, block: PointerBlock | DescriptorBlock, side: Side, k: str, lanes: int | None) -> str:
        """Load one step of a factor."""
        w, (load, axis) = self.w, side
        if isinstance(block, DescriptorBlock):
            place = f"{k}, {block.start}" if block.transposed else f"{block.start}, {k}"
            name = w.assign(load.name, f"{block.name}.load([{place}])")
            return name if block.transposed == (axis == "c") else f"{name}.T"
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
        inside = "" if lanes is None else self._mask(lanes, axis)
        mask = " & ".join(m for m in (block.mask, inside if "k" in block.axes else "") if m)
        where = " + ".join([block.name, *moves])
        name = w.assign(load.name, f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})")
        return self._full(name, block.axes, axis, inside)

    def _mask(self, lanes: int, axis: str) -> str:
        """The first `lanes` of a step."""
        return f"(tl.arange(0, INNER){_ACROSS[axis]} < {lanes})"

    def _full(self, name: str, axes: frozenset[str], axis: str, inside: str) -> str:
        """`name` as a full [ROWS, INNER] or [INNER, COLS] block, 0 beyond the sum's end."""
        if axes == {axis, "k"}:
            return name
        text = f"tl.broadcast_to({name}, {_SHAPE[axis]})"
        return self.w.assign("block", f"tl.where({inside}, {text}, 0)" if inside and "k" not in axes else text)

    def _scope_of(self, load: Load, axis: str) -> Scope:
        """Letters and masks for a factor: clamped where its rows (or columns) lie apart in memory, masked where they are contiguous."""
        if axis not in self.inside or not self._strided(load, axis):
            return self.scope
        masks = {a: m for a, m in self.scope.masks.items() if a != axis}
        return Scope({**self.scope.letters, **self.inside[axis]}, masks)

    def _strided(self, load: Load, axis: str) -> bool:
        """Whether the rows (or columns) of a factor lie apart in memory."""
        letters = {x for x, v in self.scope.letters.items() if axis in v.axes}
        indices = self.w.affine_indices(load)
        steps = [c for b in self.w.boxes(load) for x, c in address(b, indices).terms if x in letters]
        return bool(steps) and 1 not in steps

    def _general(self, loop: Loop, side: Side, k: str, lanes: int | None) -> str:
        """Load one step of a factor, every address worked out anew."""
        w, (load, axis) = self.w, side
        number = w.assign("lane", f"{k} + {w.lanes('INNER', _ACROSS[axis])}")
        outer = self._scope_of(load, axis)
        inside = "" if lanes is None else self._mask(lanes, axis)
        masks = {**outer.masks, **({"k": inside} if inside else {})}
        loaded = w.load(load, Scope({**outer.letters, **w.split(number, [x for run in loop.runs for x in run], "k")}, masks))
        return self._full(loaded.text, loaded.axes, axis, inside)


_ACROSS = {"r": "[None, :]", "c": "[:, None]"}
_SHAPE = {"r": "(ROWS, INNER)", "c": "(INNER, COLS)"}
