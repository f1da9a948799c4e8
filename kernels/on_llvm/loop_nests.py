"""Loops over arrays as LLVM's intermediate representation: elementwise expressions and reductions, LANES numbers of the innermost dimension
at a time.

In: LoopNests: arrays that lie anywhere, and nests one after the other, each with the dimensions it goes over, what it computes of an
element and where that is stored. Out: a function of one address, at which a table of whole numbers stands: the extents of all dimensions,
then for each array its address and its strides in elements. A result's bits depend on the elements it is made of alone, not on how many
there are.

    mean[m](x[s,m] ** 2)      for s: sums = 0; for m by LANES: sums += square(x[s, m]); r[s] = sum of the lanes / extent of m
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import inf
from typing import TypeAlias, assert_never

from einpage.kernels.on_llvm.compile import NativeCall, compiled
from einpage.kernels.on_llvm.functions import DECLARATIONS, Functions, number
from einpage.kernels.on_llvm.ir import FLOATS, INTS, LANES, Ir, everywhere


class Element(Enum):
    """What an array consists of: LLVM's type, in memory."""

    FP32 = "float"
    INT32 = "i32"
    TRUTH = "i8"


class Spacing(Enum):
    """What lies between an array's neighbours along a dimension."""

    NONE = 0
    """It has not that dimension: one element is all."""
    ONE = 1
    MANY = 2
    """So many elements as the table says."""


@dataclass(frozen=True, slots=True)
class Array:
    element: Element
    steps: tuple[Spacing, ...]
    """By dimension."""


@dataclass(frozen=True, slots=True)
class Constant:
    value: float | bool


@dataclass(frozen=True, slots=True)
class Loaded:
    array: int


@dataclass(frozen=True, slots=True)
class Applied:
    op: str
    """A key of functions.OPS."""
    args: tuple[int, ...]
    """Values before this one."""


Computed: TypeAlias = "Constant | Loaded | Applied"


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops over `dims`, ascending; the last is innermost, and goes by LANES."""

    dims: tuple[int, ...]
    values: tuple[Computed, ...]
    stores: tuple[tuple[int, int], ...]
    """(array, value); of a nest that reduces one alone."""
    reduction: str | None = None
    """`sum`, `mean`, `max` or `min`."""
    over: frozenset[int] = frozenset()
    """The dimensions that it reduces: among them the innermost, and each is after all that it does not reduce."""


@dataclass(frozen=True, slots=True)
class LoopNests:
    dims: int
    arrays: tuple[Array, ...]
    nests: tuple[Nest, ...]

    def address_at(self, array: int) -> int:
        """Where the table has the address of an array; its strides are after it."""
        return self.dims + array * (1 + self.dims)

    @property
    def table_size(self) -> int:
        """Whole numbers in the table."""
        return self.address_at(len(self.arrays))


@cache
def loop_nests(nests: LoopNests, holds_lock: bool = False) -> NativeCall:
    """The function of a table's address."""
    return compiled(loop_nests_text(nests), "loop_nests", "p", holds_lock)


def loop_nests_text(nests: LoopNests) -> str:
    """The text of `loop_nests`."""
    writer = _LoopsText(nests)
    for nest in nests.nests:
        _NestText(writer, nest).write()
    return writer.ir.function("loop_nests", ("ptr %table",), (*DECLARATIONS, *_MEMORY))


_MASK = f"<{LANES} x i1>"
_ADDRESSES = f"<{LANES} x ptr>"
_LANES_64 = f"<{LANES} x i64>"


def _vector(element: Element) -> str:
    return f"<{LANES} x {element.value}>"


def _suffix(element: Element) -> str:
    return f"v{LANES}{'f32' if element is Element.FP32 else element.value}"


_MEMORY = (
    *(f"declare {_vector(e)} @llvm.masked.load.{_suffix(e)}.p0(ptr, i32, {_MASK}, {_vector(e)})" for e in Element),
    *(f"declare {_vector(e)} @llvm.masked.gather.{_suffix(e)}.v{LANES}p0({_ADDRESSES}, i32, {_MASK}, {_vector(e)})" for e in Element),
    f"declare void @llvm.masked.store.{_suffix(Element.FP32)}.p0({FLOATS}, ptr, i32, {_MASK})",
    f"declare void @llvm.masked.scatter.{_suffix(Element.FP32)}.v{LANES}p0({FLOATS}, {_ADDRESSES}, i32, {_MASK})",
)
_IDENTITY = {"sum": 0.0, "mean": 0.0, "max": -inf, "min": inf}


class _LoopsText:
    """The function's body, and the numbers of the table."""

    def __init__(self, nests: LoopNests) -> None:
        self.ir, self.nests = Ir(), nests
        self.extents = [self._number(d) for d in range(nests.dims)]
        self.bases: list[str] = []
        self.strides: list[list[str]] = []
        for n, array in enumerate(nests.arrays):
            at = nests.address_at(n)
            self.bases.append(self.ir.value(f"inttoptr i64 {self._number(at)} to ptr"))
            self.strides.append(
                [self._number(at + 1 + d) if step is Spacing.MANY else str(step.value) for d, step in enumerate(array.steps)]
            )

    def _number(self, at: int) -> str:
        return self.ir.load("i64", self.ir.index("%table", str(at), "i64"), 8)


class _NestText:
    def __init__(self, writer: _LoopsText, nest: Nest) -> None:
        self.writer, self.ir, self.nest = writer, writer.ir, nest
        self.arrays, self.functions = writer.nests.arrays, Functions(writer.ir)
        self.inner = nest.dims[-1] if nest.dims else None
        assert not nest.over or self.inner in nest.over
        loaded = [value.array for value in nest.values if isinstance(value, Loaded)]
        self.used = list(dict.fromkeys((*loaded, *(array for array, _ in nest.stores))))

    def write(self) -> None:
        """The loops."""
        kept = [d for d in self.nest.dims[:-1] if d not in self.nest.over]
        self._outer(kept, {array: self.writer.bases[array] for array in self.used})

    def _outer(self, dims: Sequence[int], at: dict[int, str]) -> None:
        """Loops over dimensions that are kept, and what is in them; `at` is where each array is looked at."""
        if dims:

            def body(i: str, _: object) -> list[str]:
                self._outer(dims[1:], self._moved(at, dims[0], i))
                return []

            self.ir.loop(self.writer.extents[dims[0]], body)
        elif self.nest.reduction is None:
            self._elements(at)
        else:
            self._reduced(at, self.nest.reduction)

    def _moved(self, at: dict[int, str], dim: int, i: str) -> dict[int, str]:
        """Where arrays are looked at when dimension `dim` is at `i`."""
        ir, found = self.ir, dict(at)
        for array, address in at.items():
            if self.arrays[array].steps[dim] is not Spacing.NONE:
                shift = i
                if self.arrays[array].steps[dim] is Spacing.MANY:
                    shift = ir.value(f"mul i64 {i}, {self.writer.strides[array][dim]}")
                found[array] = ir.index(address, shift, self.arrays[array].element.value)
        return found

    def _elements(self, at: dict[int, str]) -> None:
        """The innermost loop of a nest that stores what it computes."""
        everywhere_same = self._same_everywhere(at)

        def some(here: dict[int, str], mask: str | None) -> None:
            values = self._values(here, mask, everywhere_same)
            for array, value in self.nest.stores:
                self._store(array, here[array], values[value], mask)

        if self.inner is None:
            some(at, _first_lanes(self.ir, "1"))
            return

        def whole(i: str, _: object) -> list[str]:
            some(self._moved(at, self._inner, self.ir.value(f"mul i64 {i}, {LANES}")), None)
            return []

        def rest(_: str, __: object) -> list[str]:
            some(self._moved(at, self._inner, done), _first_lanes(self.ir, left))
            return []

        blocks, done, left, there = self._blocks()
        self.ir.loop(blocks, whole)
        self.ir.loop(there, rest)

    @property
    def _inner(self) -> int:
        assert self.inner is not None
        return self.inner

    def _blocks(self) -> tuple[str, str, str, str]:
        """Of the innermost dimension: how many whole vectors, their elements, how many elements are left, and 1 where any are, else 0."""
        ir, extent = self.ir, self.writer.extents[self._inner]
        blocks = ir.value(f"udiv i64 {extent}, {LANES}")
        done = ir.value(f"mul i64 {blocks}, {LANES}")
        left = ir.value(f"sub i64 {extent}, {done}")
        return blocks, done, left, ir.value(f"zext i1 {ir.value(f'icmp ne i64 {left}, 0')} to i64")

    def _reduced(self, at: dict[int, str], reduction: str) -> None:
        """What the dimensions that are reduced add up to: vectors first, their lanes in one order last."""
        ((target, value),) = self.nest.stores
        outer = [d for d in self.nest.dims[:-1] if d in self.nest.over]
        (total,) = self._sums(outer, at, reduction, [number(_IDENTITY[reduction])], value)
        if reduction in ("sum", "mean"):
            (scalar,) = self.ir.sums([total])
        else:
            scalar = self._extreme_lane(total, reduction == "max")
        found = self.ir.all_lanes("float", scalar)
        if reduction == "mean":
            count = "1"
            for d in self.nest.over:
                count = self.ir.value(f"mul i64 {count}, {self.writer.extents[d]}")
            found = self.functions.binary("fdiv", found, self.ir.all_lanes("float", self.ir.value(f"uitofp i64 {count} to float")))
        self._store(target, at[target], found, _first_lanes(self.ir, "1"), is_one=True)

    def _sums(self, dims: Sequence[int], at: dict[int, str], reduction: str, sums: Sequence[str], value: int) -> list[str]:
        if dims:
            inner = dims[1:]
            return self.ir.loop(
                self.writer.extents[dims[0]], lambda i, s: self._sums(inner, self._moved(at, dims[0], i), reduction, s, value), sums
            )
        everywhere_same = self._same_everywhere(at)

        def added(here: dict[int, str], mask: str | None, sums: Sequence[str]) -> list[str]:
            found = self._values(here, mask, everywhere_same)[value]
            if mask is not None:
                found = self.functions.where(mask, found, number(_IDENTITY[reduction]))
            if reduction in ("sum", "mean"):
                return [self.functions.binary("fadd", sums[0], found)]
            return [self.functions.extreme(reduction == "max", sums[0], found)]

        blocks, done, left, there = self._blocks()
        sums = self.ir.loop(blocks, lambda i, s: added(self._moved(at, self._inner, self._elements_before(i)), None, s), sums)
        return self.ir.loop(there, lambda _, s: added(self._moved(at, self._inner, done), _first_lanes(self.ir, left), s), sums)

    def _elements_before(self, block: str) -> str:
        return self.ir.value(f"mul i64 {block}, {LANES}")

    def _extreme_lane(self, vector: str, is_max: bool) -> str:
        width = LANES
        while width > 1:
            width //= 2
            lanes = ", ".join(f"i32 {(n + width) % LANES}" for n in range(LANES))
            other = self.ir.value(f"shufflevector {FLOATS} {vector}, {FLOATS} poison, <{LANES} x i32> <{lanes}>")
            vector = self.functions.extreme(is_max, vector, other)
        return self.ir.value(f"extractelement {FLOATS} {vector}, i32 0")

    def _same_everywhere(self, at: dict[int, str]) -> dict[int, str]:
        """By array, the vectors of those that have one element along the innermost dimension."""
        out: dict[int, str] = {}
        for value in self.nest.values:
            if isinstance(value, Loaded) and (self.inner is None or self.arrays[value.array].steps[self.inner] is Spacing.NONE):
                element = self.arrays[value.array].element
                out[value.array] = self._as_value(element, self.ir.all_lanes(element.value, self.ir.load(element.value, at[value.array])))
        return out

    def _values(self, at: dict[int, str], mask: str | None, same: dict[int, str]) -> list[str]:
        """What every value is, of LANES elements."""
        out: list[str] = []
        for value in self.nest.values:
            match value:
                case Constant(bool() as truth):
                    out.append(everywhere("i1", int(truth)))
                case Constant(c):
                    out.append(number(c))
                case Loaded(array):
                    out.append(same[array] if array in same else self._load(array, at[array], mask))
                case Applied(op, args):
                    out.append(self.functions.apply(op, [out[a] for a in args]))
                case _:
                    assert_never(value)
        return out

    def _as_value(self, element: Element, vector: str) -> str:
        """A vector as it lies in memory as one to be computed with."""
        match element:
            case Element.FP32:
                return vector
            case Element.INT32:
                return self.ir.value(f"sitofp {INTS} {vector} to {FLOATS}")
            case Element.TRUTH:
                return self.ir.value(f"icmp ne {_vector(element)} {vector}, zeroinitializer")
        assert_never(element)

    def _load(self, array: int, address: str, mask: str | None) -> str:
        element, vector = self.arrays[array].element, _vector(self.arrays[array].element)
        align = 1 if element is Element.TRUTH else 4
        if self.arrays[array].steps[self._inner] is Spacing.MANY:
            places, all_lanes = self._places(array, address), mask or everywhere("i1", 1)
            call = f"@llvm.masked.gather.{_suffix(element)}.v{LANES}p0({_ADDRESSES} {places}, i32 {align}, {_MASK} {all_lanes}"
            return self._as_value(element, self.ir.value(f"call {vector} {call}, {vector} zeroinitializer)"))
        if mask is None:
            return self._as_value(element, self.ir.load(vector, address, align))
        call = f"@llvm.masked.load.{_suffix(element)}.p0(ptr {address}, i32 {align}, {_MASK} {mask}, {vector} zeroinitializer)"
        return self._as_value(element, self.ir.value(f"call {vector} {call}"))

    def _store(self, array: int, address: str, value: str, mask: str | None, is_one: bool = False) -> None:
        suffix = _suffix(Element.FP32)
        if not is_one and self.inner is not None and self.arrays[array].steps[self.inner] is Spacing.MANY:
            places, all_lanes = self._places(array, address), mask or everywhere("i1", 1)
            self.ir.do(
                f"call void @llvm.masked.scatter.{suffix}.v{LANES}p0({FLOATS} {value}, {_ADDRESSES} {places}, i32 4, {_MASK} {all_lanes})"
            )
        elif mask is None:
            self.ir.do(f"store {FLOATS} {value}, ptr {address}, align 4")
        else:
            self.ir.do(f"call void @llvm.masked.store.{suffix}.p0({FLOATS} {value}, ptr {address}, i32 4, {_MASK} {mask})")

    def _places(self, array: int, address: str) -> str:
        """The addresses of LANES elements from `address` on along the innermost dimension."""
        ir, stride = self.ir, self.writer.strides[array][self._inner]
        lanes = f"<{', '.join(f'i64 {n}' for n in range(LANES))}>"
        one = ir.value(f"insertelement {_LANES_64} poison, i64 {stride}, i32 0")
        strides = ir.value(f"shufflevector {_LANES_64} {one}, {_LANES_64} poison, <{LANES} x i32> zeroinitializer")
        offsets = ir.value(f"mul {_LANES_64} {strides}, {lanes}")
        return ir.value(f"getelementptr {self.arrays[array].element.value}, ptr {address}, {_LANES_64} {offsets}")


def _first_lanes(ir: Ir, count: str) -> str:
    """A mask of the first `count` lanes, an i64."""
    lanes = ir.all_lanes("i32", ir.value(f"trunc i64 {count} to i32"))
    return ir.value(f"icmp ult {INTS} <{', '.join(f'i32 {n}' for n in range(LANES))}>, {lanes}")
