"""Expressions compiled to torch calls: equal sub-expressions once, numbers folded.

In: expressions over letters, the views their loads name. Out: an `InstructionList`. Values are fp32 (or truths), indices int64; Python's
meaning of truth, floor division and modulo holds. What cannot be an index raises Unsupported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import torch
from torch import Tensor

from einpage.einsum_front.algebra.arithmetic import constant
from einpage.einsum_front.algebra.expr import COMPARISONS, Acc, Axis, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Reduction, Unary
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import View
from einpage.kernels.errors import Unsupported
from einpage.kernels.instructions import calls
from einpage.kernels.instructions.builder import InstructionBuilder
from einpage.kernels.instructions.instruction_list import AccAt, InstructionList, Iota, LoadAt, LookUp, Ref
from einpage.kernels.instructions.value_kind import ValueKind, computed
from einpage.kernels.layout.affine import Affine, ascending


def compile_instructions(
    stores: Sequence[Expr],
    order: Sequence[Letter],
    extent: Mapping[Letter, int],
    reads: Sequence[View],
    direct: Sequence[frozenset[Letter] | None],
    computed_first: bool = False,
) -> InstructionList:
    """The calls that compute `stores`. `extent` is that of letters that a reduction binds.

    `direct[i]` is the letters a value must have to be computed straight into result window i (fp32), or None where it must be copied there.
    With `computed_first` all are computed before the first is written: one window may be what another value is made of. Raises Unsupported.
    """
    compiler = _ExpressionCompiler(tuple(order), extent, reads, {})
    if computed_first:
        for e in stores:
            compiler.value(e)
    for i, (e, letters) in enumerate(zip(stores, direct, strict=True)):
        compiler.builder.store(i, compiler.value(e), letters)
    return compiler.builder.finish()


def compile_epilogue(
    e: Expr,
    order: Sequence[Letter],
    extent: Mapping[Letter, int],
    reads: Sequence[View],
    accs: Mapping[int, frozenset[Letter]],
    direct: frozenset[Letter] | None,
) -> InstructionList:
    """As `compile_instructions`, for one expression that reads accumulators, each over the letters that `accs` gives; they are scratch,
    and may be written over."""
    compiler = _ExpressionCompiler(tuple(order), extent, reads, accs)
    compiler.builder.store(0, compiler.value(e), direct)
    return compiler.builder.finish()


def compile_indices(
    checks: Sequence[tuple[Expr, Callable[[Tensor], None]]], order: Sequence[Letter], extent: Mapping[Letter, int], reads: Sequence[View]
) -> InstructionList:
    """The calls that compute index expressions and hand each to its check."""
    compiler = _ExpressionCompiler(tuple(order), extent, reads, {})
    for e, check in checks:
        compiler.builder.check(compiler.index(e), check)
    return compiler.builder.finish()


class _ExpressionCompiler:
    def __init__(
        self, order: tuple[Letter, ...], extent: Mapping[Letter, int], reads: Sequence[View], accs: Mapping[int, frozenset[Letter]]
    ) -> None:
        self.builder = InstructionBuilder(order)
        self._order, self._extent, self._reads, self._accs = order, extent, reads, accs
        self._operand_by_name = {v.name: i for i, v in enumerate(reads)}
        self._memo: dict[tuple[Expr, bool], Ref] = {}

    def value(self, e: Expr, index: bool = False) -> Ref:
        """`e` in fp32 (or bool), or in int64 where it is part of an index."""
        key = (e, index)
        if key not in self._memo:
            self._memo[key] = self._value(e, index)
        return self._memo[key]

    def index(self, e: Expr) -> Ref:
        """`e` in int64, or a number: as an index, a truth is 1 or 0."""
        return self._arithmetic(self.value(e, True), True)

    def _value(self, e: Expr, index: bool) -> Ref:
        known = constant(e)
        if known is not None:
            return self.builder.number(known)
        match e:
            case Num():
                raise AssertionError("a number is constant")
            case Axis(letter):
                return self.builder.source(Iota(letter, computed(index)), frozenset((letter,)), computed(index))
            case Acc(i):
                return self.builder.source(AccAt(i), self._accs[i], ValueKind.FLOAT)
            case Load():
                return self._load(e, index)
            case Unary(op, x):
                return self._unary(op, self.value(x, index), index)
            case Binary(op, x, y):
                if index and op in ("//", "%") and constant(y) in (None, 0):
                    return self._checked_division(e, self.index(x), self.index(y))
                return self._binary(op, self.value(x, index), self.value(y, index), index)
            case Call(fn, args):
                return self._call(fn, [self.value(a, index) for a in args], index)
            case Reduce(op, letters, body):
                return self._reduce(op, frozenset(letters), self.value(body), index)
            case Name(word):
                raise AssertionError(f"the name {word} reached a kernel unresolved")
        assert_never(e)

    def _load(self, e: Load, index: bool) -> Ref:
        operand = self._operand_by_name[e.name]
        view = self._reads[operand]
        indices = self._indices(e, view)
        letters = frozenset(letter for i in indices if isinstance(i, Affine) for letter, _ in i.terms)
        kind = ValueKind.FLOAT if view.dtype is DType.FP32 else ValueKind.STORED
        affine_indices = tuple(i for i in indices if isinstance(i, Affine))
        if len(affine_indices) == len(indices):
            ref = self.builder.source(LoadAt(operand, affine_indices), letters, kind)
        else:
            computed = tuple(i for i in indices if isinstance(i, Ref))
            letters = letters.union(*(i.letters for i in computed))
            ref = self.builder.source(LookUp(operand, indices), letters, kind, tuple(i.slot for i in computed))
        if index:
            if view.dtype.is_float:
                raise Unsupported(f"{e.name} is {view.dtype.value} and cannot be an index: use an integer tensor")
            return self.builder.call(calls.to_int, ValueKind.INT, ref)
        return ref if view.dtype is DType.FP32 else self.builder.call(calls.to_float, ValueKind.FLOAT, ref)

    def _indices(self, e: Load, view: View) -> tuple[Affine | Ref, ...]:
        """Each index as a stride where it can be one, else as a computed tensor.

        An affine index stays a stride only while its letters are none of a looked-up index, and no tile ends along its dimension.
        """
        forms = [ascending(i) for i in e.indices]
        while True:
            looked_up = frozenset().union(*(self.value(i, True).letters for f, i in zip(forms, e.indices, strict=True) if f is None))
            shared = [f is not None and any(letter in looked_up for letter, _ in f.terms) for f in forms]
            if not any(shared):
                break
            forms = [None if s else f for f, s in zip(forms, shared, strict=True)]
        split = [len({(b.start[d], b.end[d]) for b in view.boxes}) > 1 for d in range(len(forms))]
        if None in forms and any(s for s, f in zip(split, forms, strict=True) if f is not None):
            forms = [None if f is not None and f.terms else f for f in forms]
        return tuple(self._as_index(self.index(i)) if f is None else f for f, i in zip(forms, e.indices, strict=True))

    def _as_index(self, ref: Ref) -> Ref:
        return self.builder.call(calls.to_int_tensor, ValueKind.INT, ref) if ref.is_number else ref

    def _arithmetic(self, ref: Ref, index: bool) -> Ref:
        """`ref` as a number: bools become 0 and 1."""
        if ref.kind is ValueKind.BOOL:
            return self.builder.call(calls.to_int if index else calls.to_float, computed(index), ref)
        return ref

    def _truth(self, ref: Ref) -> Ref:
        return ref if ref.kind is ValueKind.BOOL else self.builder.call(calls.is_true, ValueKind.BOOL, ref)

    def _left(self, ref: Ref, index: bool) -> Ref:
        """A number as a tensor, for calls whose first argument must be one."""
        if not ref.is_number:
            return ref
        value = torch.tensor(ref.value, dtype=torch.int64 if index else torch.float32)
        return self.builder.slot(frozenset(), computed(index), value)

    def _unary(self, op: str, x: Ref, index: bool) -> Ref:
        if op == "not":
            return self.builder.call(torch.logical_not, ValueKind.BOOL, self._left(x, index))
        x = self._left(self._arithmetic(x, index), index)
        return self.builder.call(torch.neg, x.kind, x)

    def _binary(self, op: str, x: Ref, y: Ref, index: bool) -> Ref:
        if op in ("and", "or"):
            return self._logic(op, x, y)
        if op == "/" and index:
            raise Unsupported("a true division in an index: use //")
        x, y = self._arithmetic(x, index), self._arithmetic(y, index)
        if op in ("+", "*") and x.is_number:
            x, y = y, x
        kind = ValueKind.BOOL if op in COMPARISONS else computed(index)
        may_overflow = op == "%" and not index and not (y.is_number and abs(y.value) >= 1)
        return self.builder.call(calls.remainder if may_overflow else calls.BINARY[op], kind, self._left(x, index), y)

    def _checked_division(self, e: Binary, x: Ref, y: Ref) -> Ref:
        """`e` in an index, its operands given: integers have no quotient by 0, so that one is an error that says where it is."""
        letters = tuple(letter for letter in self._order if letter in y.letters)
        checked = calls.CheckedDivision(calls.BINARY[e.op], e, letters)
        numbers = (self.value(Axis(letter), True) for letter in letters)
        return self.builder.call(checked, ValueKind.INT, self._left(x, True), self._left(y, True), *numbers)

    def _logic(self, op: str, x: Ref, y: Ref) -> Ref:
        if x.is_number:
            return self._truth(y) if bool(x.value) == (op == "and") else self.builder.number(int(op == "or"))
        return self.builder.call(torch.logical_and if op == "and" else torch.logical_or, ValueKind.BOOL, self._truth(x), self._truth(y))

    def _where(self, condition: Ref, then: Ref, other: Ref, index: bool) -> Ref:
        then, other = self._left(self._arithmetic(then, index), index), self._left(self._arithmetic(other, index), index)
        return self.builder.call(calls.POINTWISE["where"], computed(index), condition, then, other)

    def _call(self, fn: str, args: list[Ref], index: bool) -> Ref:
        if fn == "where":
            condition, then, other = args
            if condition.is_number:
                return then if condition.value else other
            return self._where(self._truth(condition), then, other, index)
        args = [self._arithmetic(a, index) for a in args]
        if index and FUNCTIONS[fn].interval is None:
            raise Unsupported(f"{fn} in an index: an index is made of integers")
        return self.builder.call(calls.POINTWISE[fn], computed(index), *(self._left(a, index) for a in args))

    def _reduce(self, op: Reduction, letters: frozenset[Letter], x: Ref, index: bool) -> Ref:
        if index:
            raise Unsupported(f"{op.value} in an index")
        absent = math.prod(self._extent[letter] for letter in letters - x.letters)
        present = tuple(d for d, letter in enumerate(self._order) if letter in letters & x.letters)
        x = self._arithmetic(x, False)
        if op is Reduction.SUM and absent != 1:
            x = self._binary("*", x, self.builder.number(absent), False)
        if op is Reduction.SOFTMAX:
            if x.is_number or not present:
                x = self._left(x, False)
            return self.builder.call(calls.RowSoftmax(present, absent), ValueKind.FLOAT, x)
        if not present:
            return x
        return self.builder.call(calls.RowReduction(calls.REDUCTIONS[op], present), ValueKind.FLOAT, x, letters=x.letters - letters)
