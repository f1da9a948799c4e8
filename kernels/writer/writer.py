"""Expressions as lines of Triton source: letters become variables, loads become masked `tl.load`s, sums are written by the caller.

In: an expression and a scope, which says which variable holds each letter's numbers and along which axes of the block they run. Out:
lines, and the text of the value. Arithmetic is fp32 whatever the dtype of the operands; what is made of letters and integers alone is
compared, and divided by a number, as integers. Where a letter's own value is needed, its start is added, which a launch passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from einpage.einsum_front.algebra.arithmetic import constant
from einpage.einsum_front.algebra.expr import (
    COMPARISONS,
    Acc,
    Axis,
    Binary,
    Call,
    Expr,
    Letter,
    Load,
    Name,
    Num,
    Reduce,
    Unary,
    free_letters,
    walk,
)
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import FLAG, Checked, DType
from einpage.einsum_front.graph.job import Box, Range, View
from einpage.kernels.errors import Unsupported
from einpage.kernels.instructions.value_kind import ValueKind, computed
from einpage.kernels.layout.affine import Affine, integral, row_major
from einpage.kernels.writer.addresses import JobText
from einpage.kernels.writer.preamble import NAME_IN_KERNEL
from einpage.kernels.writer.values import NONE, BlockAxes, Val, arithmetic, logic, number, power_text, tensor, truth

TL_DTYPE = {DType.FP32: "tl.float32", DType.BF16: "tl.bfloat16", DType.FP16: "tl.float16", DType.INT32: "tl.int32", DType.INT64: "tl.int64"}


@dataclass(slots=True)
class Scope:
    """Where an expression is evaluated."""

    letters: Mapping[Letter, Val]
    masks: Mapping[str, str]
    """Per axis, the variable that says which of its lanes count; none for an axis whose lanes all do."""
    memo: dict[tuple[Expr, bool], Val] = field(default_factory=dict)
    """By expression, and whether it is part of an index."""
    accs: Mapping[int, Val] = field(default_factory=dict)
    rebound: frozenset[Letter] = frozenset()
    """Letters that a reduction has bound anew here, so that what is known of rows does not hold for them."""


class Writer(JobText):
    """Writes expressions over the letters of one job."""

    def __init__(self, reads: Sequence[View], result: View, ranges: Iterable[Range], others: Sequence[View] = ()) -> None:
        super().__init__(reads, result, ranges, others)
        self.fixed: dict[Expr, Val] = {}
        """Reductions already computed, by expression."""
        self.reduce: Callable[[Reduce, Scope], Val] | None = None
        """Writes a reduction that is not, and gives its value."""
        self._integers = frozenset(v.name for v in reads if not v.dtype.is_float)
        self._uses: Counter[Expr] = Counter()

    def expect(self, expressions: Iterable[Expr]) -> None:
        """Count sub-expressions, so that those used more than once get a variable."""
        for e in expressions:
            self._uses.update(n for n in walk(e) if not isinstance(n, Num | Axis | Acc))

    def value(self, e: Expr, scope: Scope, index: bool = False) -> Val:
        """`e` in fp32 (or truth), or in int64 where it is part of an index. Raises Unsupported."""
        key = (e, index)
        if e in self.fixed and not free_letters(e) & scope.rebound:
            return self.fixed[e]
        if key not in scope.memo:
            val = self._value(e, scope, index)
            if self._uses[e] > 1 and not isinstance(e, Load | Num | Axis | Acc) and not val.is_number:
                val = Val(self.assign("v", val.text), val.axes, val.kind)
            scope.memo[key] = val
        return scope.memo[key]

    def _value(self, e: Expr, scope: Scope, index: bool) -> Val:
        known = constant(e)
        if known is not None:
            return number(int(known) if index and int(known) == known else known)
        match e:
            case Num():
                raise AssertionError("a number is constant")
            case Axis(letter):
                found = self._letter(letter, scope)
                text = f"({found.text} + {self.start(letter)})"
                return Val(text, found.axes, ValueKind.INT) if index else Val(f"{text}.to(tl.float32)", found.axes, ValueKind.FLOAT)
            case Acc(i):
                return scope.accs[i]
            case Load():
                return self._load(e, scope, index)
            case Unary(op, x):
                return self._unary(op, self.value(x, scope, index), index)
            case Binary(op, x, y):
                divides = op in ("//", "%") and constant(y) not in (None, 0)  # integers have neither infinity nor NaN for a quotient by 0
                whole = not index and (op in COMPARISONS or divides) and integral(x, self._integers) and integral(y, self._integers)
                val = self._binary(op, self.value(x, scope, index or whole), self.value(y, scope, index or whole), index or whole)
                return Val(f"{val.text}.to(tl.float32)", val.axes, ValueKind.FLOAT) if whole and val.kind is ValueKind.INT else val
            case Call(fn, args):
                return self._call(fn, [self.value(a, scope, index) for a in args], index)
            case Reduce():
                if self.reduce is None:
                    raise Unsupported(
                        "a reduction within a product's epilogue or an attention's score: give it a name of its own in the spec"
                    )
                return self.reduce(e, scope)
            case Name(word):
                raise AssertionError(f"the name {word} reached a kernel unresolved")
        assert_never(e)

    def _letter(self, letter: Letter, scope: Scope) -> Val:
        if letter not in scope.letters:
            raise Unsupported(
                f"{letter} is free inside a reduction over other letters of the result: give it a name of its own in the spec"
            )
        return scope.letters[letter]

    def _unary(self, op: str, x: Val, index: bool) -> Val:
        x = tensor(x)
        if op == "not":
            return Val(f"({truth(x)} == 0)" if x.kind is not ValueKind.BOOL else f"(~{x.text})", x.axes, ValueKind.BOOL)
        x = arithmetic(x, index)
        return Val(f"(-{x.text})", x.axes, x.kind)

    def _binary(self, op: str, x: Val, y: Val, index: bool) -> Val:
        if x.is_number and y.is_number:
            x = tensor(x)
        if op in ("and", "or"):
            return logic(op, x, y)
        if op == "/" and index:
            raise Unsupported("a true division in an index: use //")
        x, y, axes, kind = arithmetic(x, index), arithmetic(y, index), x.axes | y.axes, computed(index)
        if op in COMPARISONS:
            return Val(f"({x.text} {op} {y.text})", axes, ValueKind.BOOL)
        if op == "//" or op == "%":
            name = ("floor_div" if op == "//" else "floor_mod") + ("_int" if index else "")
            return Val(f"{name}({x.text}, {y.text})", axes, kind)
        if op == "**":
            return Val(power_text(x, y), axes, kind)
        return Val(f"({x.text} {op} {y.text})", axes, kind)

    def _call(self, fn: str, args: list[Val], index: bool) -> Val:
        if fn == "where":
            condition, then, other = args
            if condition.is_number:
                return then if condition.number else other
            args = [Val(truth(condition), condition.axes, ValueKind.BOOL), arithmetic(then, index), arithmetic(other, index)]
        else:
            args = [arithmetic(a, index) for a in args]
            args[0] = tensor(args[0]) if all(a.is_number for a in args) else args[0]
        if index and FUNCTIONS[fn].interval is None:
            raise Unsupported(f"{fn} in an index: an index is made of integers")
        text = f"{NAME_IN_KERNEL[fn]}({', '.join(a.text for a in args)})"
        return Val(text, NONE.union(*(a.axes for a in args)), computed(index))

    def _load(self, e: Load, scope: Scope, index: bool) -> Val:
        view = self.reads[self.operand_by_name[e.name]]
        raw = self.load(e, scope)
        if index:
            if view.dtype.is_float:
                raise Unsupported(f"{e.name} is {view.dtype.value} and cannot be an index: use an integer tensor")
            return Val(f"{raw.text}.to(tl.int64)", raw.axes, ValueKind.INT)
        return Val(raw.text if view.dtype is DType.FP32 else f"{raw.text}.to(tl.float32)", raw.axes, ValueKind.FLOAT)

    def load(self, e: Load, scope: Scope) -> Val:
        """A variable that holds `e` as stored; masked lanes hold 0."""
        key = (Load(f"{e.name} as stored", e.indices), False)
        if key in scope.memo:
            return scope.memo[key]
        operand = self.operand_by_name[e.name]
        view = self.reads[operand]
        indices = self.indices(e)
        looked_up = {d: self._index(i, scope) for d, (a, i) in enumerate(zip(indices, e.indices, strict=True)) if a is None}
        axes = self.axes(indices, scope).union(*(v.axes for v in looked_up.values()))
        parts = []
        for j, box in enumerate(view.boxes):
            conditions = self.conditions(view, box, indices, looked_up, scope.letters)
            if conditions is None:
                continue
            mask = " & ".join([*(scope.masks[a] for a in sorted(axes) if a in scope.masks), *conditions])
            where = " + ".join([self.element(operand, j, indices, scope.letters), *_looked_up_terms(box, looked_up)])
            parts.append((" & ".join(conditions), f"tl.load({where}, mask={mask}, other=0)" if mask else f"tl.load({where})"))
        assert parts, f"no tile of {e.name} holds what the job reads"
        scope.memo[key] = Val(self.assign(e.name, self.choice(e.name, parts)), axes, ValueKind.STORED)
        return scope.memo[key]

    def axes(self, indices: Sequence[Affine | None], scope: Scope) -> BlockAxes:
        """The axes of an affine address; a letter of extent 1 moves none."""
        vals = {x: self._letter(x, scope) for a in indices if a is not None for x, _ in a.terms}
        return NONE.union(*(v.axes for x, v in vals.items() if self.range_by_letter[x].extent > 1))

    def _index(self, e: Expr, scope: Scope) -> Val:
        val = arithmetic(self.value(e, scope, True), True)  # a truth is 1 or 0
        return val if val.is_number else Val(self.assign("index", val.text), val.axes, ValueKind.INT)

    def store(self, target: Sequence[Expr], value: Val, scope: Scope, axes: str, result: int = 0) -> None:
        """Write `value` to the result of that number at `target`, over all of `axes`."""
        indices = [self.index(i) for i in target]
        value = arithmetic(value, False)
        shape = _shape(axes)
        across = [] if self.axes(indices, scope) == frozenset(axes) else [f"tl.zeros(({shape}), tl.int{64 if self.wide else 32})"]
        view = self.results[result]
        where = " + ".join([self.outs[result], *across, *self.address(view.boxes[0], indices, scope.letters)])
        mask = " & ".join(scope.masks[a] for a in axes if a in scope.masks)
        stored, flag = self._stored(value, axes, view), self.flag_address(self.outs[result], view)
        if flag is not None:
            stored = self.assign("stored", stored)
        self.line(f"tl.store({where}, {stored}{f', mask={mask}' if mask else ''})")
        if flag is not None:  # all programs that write it write the same, after another kernel wrote 0
            bad = f"~(tl.abs({stored}.to(tl.float32)) < float('inf'))"
            found = self.assign("not_finite", f"tl.max(({f'{bad} & {mask}' if mask else bad}).to(tl.int32))")
            self.line(f"tl.store({flag}, 1.0, mask={found} > 0)")

    def flag_address(self, pointer: str, view: View, tile: int = 0) -> str | None:
        """Where the flag behind a tile lies, which `pointer` points to; None where there is none."""
        if not isinstance(view.element_type, Checked):
            return None
        at = view.element_type.flag_at(view.boxes[tile].size) // view.dtype.nbytes
        return f"({pointer} + {at}).to(tl.pointer_type({TL_DTYPE[FLAG]}))"

    def store_block(self, descriptor: str, place: Sequence[str], value: Val, axes: str) -> None:
        """Have the copy engine write `value`, over all of `axes`, from `place` on."""
        self.line(f"{descriptor}.store([{', '.join(place)}], {self._stored(arithmetic(value, False), axes, self.result)})")

    def _stored(self, value: Val, axes: str, view: View) -> str:
        """`value` over all of `axes`, in the dtype of a result."""
        text = f"tl.full((1, 1), {value.text}, tl.float32)" if value.axes == NONE else value.text
        text = text if value.axes == frozenset(axes) else f"tl.broadcast_to({text}, ({_shape(axes)}))"
        return f"({text}).to({TL_DTYPE[view.dtype]})"


def _looked_up_terms(box: Box, looked_up: Mapping[int, Val]) -> list[str]:
    step = row_major(box.shape)
    return [f"({v.text} - {box.start[d]}) * {step[d]}" if box.start[d] else f"{v.text} * {step[d]}" for d, v in looked_up.items()]


def _shape(axes: str) -> str:
    return ", ".join(SHAPE[a] for a in axes) + (", 1" if len(axes) == 1 else "")


SHAPE = {"r": "ROWS", "c": "COLS", "h": "HALF", "k": "INNER", "w": "WIDTH"}
"""The constant that gives each axis its length; h are the columns of half a block."""
