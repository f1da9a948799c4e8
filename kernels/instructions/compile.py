"""Expressions compiled to a tape: equal sub-expressions once, numbers folded, temporaries written over at their last use.

In: expressions over letters, the views their loads name. Out: a `Tape`. Values are fp32 (or truths), indices int64; Python's meaning of
truth, floor division and modulo holds. What cannot be an index raises Unsupported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Reduction, Unary
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import View
from einpage.kernels.errors import Unsupported
from einpage.kernels.instructions import calls as calls
from einpage.kernels.instructions.instruction_list import AccAt, Iota, Kind, LoadAt, LookUp, Ref, ResultAt, Source, Step, Tape
from einpage.kernels.layout.affine import Affine, affine


def compile_tape(
    stores: Sequence[Expr],
    order: Sequence[Letter],
    row: Mapping[Letter, int],
    reads: Sequence[View],
    direct: Sequence[frozenset[Letter] | None],
) -> Tape:
    """The tape of `stores`. `row` gives the extent of letters that a reduction binds.

    `direct[i]` is the letters a value must have to be computed straight into result window i (fp32), or None where it must be copied there.
    """
    builder = _Builder(tuple(order), row, tuple(reads))
    for i, (e, letters) in enumerate(zip(stores, direct, strict=True)):
        builder.store(i, builder.value(e), letters)
    return builder.finish()


class _Builder:
    def __init__(self, order: tuple[Letter, ...], row: Mapping[Letter, int], reads: tuple[View, ...]) -> None:
        self.order, self.row, self.reads = order, row, reads
        self.operand_by_name = {v.name: i for i, v in enumerate(reads)}
        self.template: list[object] = []
        self.refs: list[Ref] = []
        self.steps: list[Step] = []
        self.sources: dict[int, Source] = {}
        self.memo: dict[tuple[Expr, bool], Ref] = {}
        self.owned: set[int] = set()
        self.stored: list[int] = []

    def _slot(self, letters: frozenset[Letter], kind: Kind, initial: object = None, value: float | int | bool = 0) -> Ref:
        ref = Ref(len(self.refs), letters, kind, value)
        self.refs.append(ref)
        self.template.append(initial)
        return ref

    def _number(self, value: float | int | bool) -> Ref:
        return self._slot(frozenset(), "c", value, value)

    def _source(self, source: Source, letters: frozenset[Letter], kind: Kind, args: tuple[int, ...] = ()) -> Ref:
        ref = self._slot(letters, kind)
        self.sources[ref.slot] = source
        self.steps.append(Step(None, ref.slot, args))
        if isinstance(source, LookUp | AccAt) and kind == "f":
            self.owned.add(ref.slot)
        return ref

    def _step(self, fn: Callable[..., Any], kind: Kind, *args: Ref, letters: frozenset[Letter] | None = None) -> Ref:
        if letters is None:
            letters = frozenset().union(*(a.letters for a in args))
        ref = self._slot(letters, kind)
        self.steps.append(Step(fn, ref.slot, tuple(a.slot for a in args)))
        self.owned.add(ref.slot)
        return ref

    def store(self, index: int, ref: Ref, direct: frozenset[Letter] | None) -> None:
        """Arrange that `ref` ends in result window `index`."""
        target = self._slot(frozenset(), "r")
        self.sources[target.slot] = ResultAt(index)
        place = Step(None, target.slot, ())
        last = self.steps[-1] if self.steps else None
        if (
            direct is not None
            and last is not None
            and last.out == ref.slot
            and last.into < 0
            and last.fn in calls.OUTABLE
            and ref.kind == "f"
            and ref.letters == direct
        ):
            self.steps[-1:] = [place, replace(last, into=target.slot)]
            self.owned.discard(ref.slot)
        else:
            done = self._slot(frozenset(), "r")
            self.steps += [place, Step(calls.fill if ref.kind == "c" else calls.copy, done.slot, (target.slot, ref.slot))]
        self.stored.append(ref.slot)

    def check(self, ref: Ref, check: Callable[[Tensor], None]) -> None:
        """Call `check` with the value of `ref`."""
        self.steps.append(Step(check, self._slot(frozenset(), "r").slot, (ref.slot,)))

    def value(self, e: Expr, index: bool = False) -> Ref:
        """`e` in fp32 (or bool), or in int64 where it is part of an index."""
        key = (e, index)
        if key not in self.memo:
            self.memo[key] = self._value(e, index)
        return self.memo[key]

    def _value(self, e: Expr, index: bool) -> Ref:
        match e:
            case Num(value):
                return self._number(value)
            case Axis(letter):
                return self._source(Iota(letter, "i" if index else "f"), frozenset((letter,)), "i" if index else "f")
            case Acc(i):
                return self.acc(i)
            case Load():
                return self._load(e, index)
            case Unary(op, x):
                return self._unary(op, self.value(x, index), index)
            case Binary(op, x, y):
                return self._binary(op, self.value(x, index), self.value(y, index), index)
            case Call(fn, args):
                return self._call(fn, [self.value(a, index) for a in args], index)
            case Reduce(op, letters, body):
                return self._reduce(op, frozenset(letters), self.value(body), index)
            case Name(word):
                raise AssertionError(f"the name {word} reached a kernel unresolved")
        assert_never(e)

    def acc(self, i: int) -> Ref:
        raise AssertionError(f"accumulator {i} outside an epilogue")

    def _load(self, e: Load, index: bool) -> Ref:
        operand = self.operand_by_name[e.name]
        view = self.reads[operand]
        forms = [affine(i) for i in e.indices]
        while True:  # an affine index stays a stride only while its letters are none of a looked-up index, and no box cuts it
            looked_up = frozenset().union(*(self.value(i, True).letters for f, i in zip(forms, e.indices, strict=True) if f is None))
            tied = [f is not None and any(letter in looked_up for letter, _ in f.terms) for f in forms]
            if not any(tied):
                break
            forms = [None if t else f for f, t in zip(forms, tied, strict=True)]
        if any(f is None for f in forms) and any(
            len({(b.start[d], b.end[d]) for b in view.boxes}) > 1 for d, f in enumerate(forms) if f is not None
        ):
            forms = [None if f is not None and f.terms else f for f in forms]
        dims = tuple(self._int(self.value(i, True)) if f is None else f for f, i in zip(forms, e.indices, strict=True))
        affine_letters = frozenset(letter for d in dims if isinstance(d, Affine) for letter, _ in d.terms)
        straight = tuple(d for d in dims if isinstance(d, Affine))
        if len(straight) == len(dims):
            ref = self._source(LoadAt(operand, straight), affine_letters, "f" if view.dtype is DType.FP32 else "r")
        else:
            slots = tuple(d for d in dims if isinstance(d, Ref))
            letters = affine_letters.union(*(d.letters for d in slots))
            ref = self._source(LookUp(operand, dims), letters, "f" if view.dtype is DType.FP32 else "r", tuple(d.slot for d in slots))
        if index:
            if view.dtype.is_float:
                raise Unsupported(f"{e.name} is {view.dtype.value} and cannot be an index: use an integer tensor")
            return self._step(calls.to_int, "i", ref)
        return ref if view.dtype is DType.FP32 else self._step(calls.to_float, "f", ref)

    def _int(self, ref: Ref) -> Ref:
        return self._step(calls.to_int_tensor, "i", ref) if ref.kind == "c" else ref

    def _arithmetic(self, ref: Ref, index: bool) -> Ref:
        """`ref` as a number: bools become 0 and 1."""
        if ref.kind == "b":
            return self._step(calls.to_int if index else calls.to_float, "i" if index else "f", ref)
        return ref

    def _truth(self, ref: Ref) -> Ref:
        return ref if ref.kind == "b" else self._step(calls.is_true, "b", ref)

    def _left(self, ref: Ref, index: bool) -> Ref:
        """A number as a tensor, for calls whose first argument must be one."""
        if ref.kind != "c":
            return ref
        out = self._slot(frozenset(), "i" if index else "f", torch.tensor(ref.value, dtype=torch.int64 if index else torch.float32))
        return out

    def _unary(self, op: str, x: Ref, index: bool) -> Ref:
        if op == "not":
            return self._number(not x.value) if x.kind == "c" else self._step(torch.logical_not, "b", x)
        if x.kind == "c":
            return self._number(-x.value)
        x = self._arithmetic(x, index)
        return self._step(torch.neg, x.kind, x)

    def _binary(self, op: str, x: Ref, y: Ref, index: bool) -> Ref:
        if x.kind == y.kind == "c":
            folded = calls.fold(op, x.value, y.value)
            if folded is not None:
                return self._number(folded)
        if op in ("and", "or"):
            return self._logic(op, x, y, index)
        if op == "/" and index:
            raise Unsupported("a true division in an index: use //")
        x, y = self._arithmetic(x, index), self._arithmetic(y, index)
        if op in ("+", "*") and x.kind == "c":
            x, y = y, x
        kind = "b" if op in calls.COMPARE else "i" if index else "f"
        return self._step(calls.BINARY[op], kind, self._left(x, index), y)

    def _logic(self, op: str, x: Ref, y: Ref, index: bool) -> Ref:
        if x.kind == "c":
            return y if bool(x.value) == (op == "and") else x
        y_is_bool = y.kind == "b" or (y.kind == "c" and isinstance(y.value, bool))
        if x.kind == "b" and y_is_bool:
            if y.kind == "c":
                return x if bool(y.value) == (op == "and") else y
            return self._step(torch.logical_and if op == "and" else torch.logical_or, "b", x, y)
        return self._where(self._truth(x), *((y, x) if op == "and" else (x, y)), index)

    def _where(self, condition: Ref, then: Ref, other: Ref, index: bool) -> Ref:
        then, other = self._left(self._arithmetic(then, index), index), self._left(self._arithmetic(other, index), index)
        return self._step(calls.POINTWISE["where"], "i" if index else "f", condition, then, other)

    def _call(self, fn: str, args: list[Ref], index: bool) -> Ref:
        if fn == "where":
            condition, then, other = args
            if condition.kind == "c":
                return then if condition.value else other
            return self._where(self._truth(condition), then, other, index)
        if all(a.kind == "c" for a in args):
            return self._number(calls.fold_call(fn, [a.value for a in args]))
        args = [self._arithmetic(a, index) for a in args]
        if index and FUNCTIONS[fn].interval is None:
            raise Unsupported(f"{fn} in an index: an index is made of integers")
        return self._step(calls.POINTWISE[fn], "i" if index else "f", *(self._left(a, index) for a in args))

    def _reduce(self, op: Reduction, letters: frozenset[Letter], x: Ref, index: bool) -> Ref:
        if index:
            raise Unsupported(f"{op.value} in an index")
        absent = math.prod(self.row[x_] for x_ in sorted(letters - x.letters))
        present = tuple(d for d, letter in enumerate(self.order) if letter in letters & x.letters)
        x = self._arithmetic(x, False)
        if op is Reduction.SUM and absent != 1:
            x = self._binary("*", x, self._number(absent), False)
        if op is Reduction.SOFTMAX:
            if x.kind == "c" or not present:
                x = self._left(x, False)
            return self._step(calls.SoftMax(present, absent), "f", x)
        if not present:
            return x
        return self._step(calls.Row(calls.ROW[op], present), "f", x, letters=x.letters - letters)

    def finish(self) -> Tape:
        """Last uses, and results written over a temporary that ends with them."""
        last: dict[int, int] = {}
        for n, step in enumerate(self.steps):
            for slot in (*step.args, step.out):
                last[slot] = n
            if step.into >= 0:
                last[step.into] = n
        out: list[Step] = []
        for n, step in enumerate(self.steps):
            ending = tuple(sorted({a for a in step.args if last[a] == n and self.refs[a].kind != "c"}))
            if step.fn in calls.OUTABLE and step.into < 0 and self.refs[step.out].kind == "f":
                ref = self.refs[step.out]
                spare = [a for a in ending if a in self.owned and self.refs[a].kind == "f" and self.refs[a].letters == ref.letters]
                step = replace(step, into=spare[0]) if spare else step
            drop = ending + ((step.out,) if last[step.out] == n and step.into < 0 else ())
            out.append(replace(step, drop=drop))
        return Tape(self.order, tuple(out), tuple(self.template), self.sources, tuple(self.refs), tuple(self.stored))


class EpilogueBuilder(_Builder):
    """A builder whose expressions may read accumulators, each over its own letters."""

    def __init__(
        self, order: tuple[Letter, ...], row: Mapping[Letter, int], reads: tuple[View, ...], accs: Mapping[int, frozenset[Letter]]
    ) -> None:
        super().__init__(order, row, reads)
        self.accs = accs

    def acc(self, i: int) -> Ref:
        return self._source(AccAt(i), self.accs[i], "f")


def compile_epilogue(
    e: Expr,
    order: Sequence[Letter],
    row: Mapping[Letter, int],
    reads: Sequence[View],
    accs: Mapping[int, frozenset[Letter]],
    direct: frozenset[Letter] | None,
) -> Tape:
    """As `compile_tape`, for one expression that reads accumulators; those are scratch, and may be written over."""
    builder = EpilogueBuilder(tuple(order), row, tuple(reads), accs)
    builder.store(0, builder.value(e), direct)
    return builder.finish()


def compile_indices(
    checks: Sequence[tuple[Expr, Callable[[Tensor], None]]], order: Sequence[Letter], row: Mapping[Letter, int], reads: Sequence[View]
) -> Tape:
    """The tape that computes index expressions and hands each to its check."""
    builder = _Builder(tuple(order), row, tuple(reads))
    for e, check in checks:
        builder.check(builder.value(e, True), check)
    return builder.finish()
