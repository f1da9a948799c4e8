"""A program evaluated eagerly with plain torch: slow, obvious, the definition of right.

In: a program, its inputs and weights. Out: the outputs asked for, in fp32 or fp64. Every expression becomes a tensor with one
dimension per letter it depends on, letters aligned by broadcasting; sums of products go through `torch.einsum`. Nothing here is
fused, split or approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Reduction, Unary, text
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.elaborate.implicit_sums import factors
from einpage.einsum_front.graph.program import Definition, Program, needed


def evaluate(
    program: Program,
    inputs: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    dtype: torch.dtype = torch.float32,
    outputs: Sequence[str] | None = None,
) -> dict[str, Tensor]:
    """The outputs named (all of them, by default), each in the shape of its axes and in `dtype`.

    `weights` is keyed by Weight.name and holds tensors of Weight.shape. An input left out takes its default.
    Raises UsageError for an input or weight that is missing or mis-shaped, an unknown output, and an index out of range or divided by 0.
    """
    value_by_output = {o.name: o.value for o in program.outputs}
    asked = tuple(value_by_output) if outputs is None else tuple(outputs)
    for name in asked:
        if name not in value_by_output:
            raise UsageError(f"no output is called `{name}`; there are: {', '.join(value_by_output)}")
    wanted = needed(program, [value_by_output[name] for name in asked])
    values = _inputs(program, inputs, wanted) | _weights(program, weights, wanted)
    for definition in program.definitions:
        if definition.name in wanted:
            values[definition.name] = _define(definition, values, program.extents, dtype)
    return {name: values[value_by_output[name]].to(dtype) for name in asked}


def _inputs(program: Program, given: Mapping[str, Tensor], wanted: frozenset[str]) -> dict[str, Tensor]:
    values: dict[str, Tensor] = {}
    for declared in program.inputs:
        if declared.name not in wanted:
            continue
        is_integer = declared.dtype is not None and not declared.dtype.is_float
        if declared.name in given:
            values[declared.name] = _shaped("input", declared.name, given[declared.name], declared.shape)
        elif declared.default is not None:
            kind = torch.int64 if is_integer else torch.float64
            values[declared.name] = torch.full(declared.shape, declared.default, dtype=kind)
        else:
            raise UsageError(f"the input `{declared.name}` is missing and has no default")
    return values


def _weights(program: Program, given: Mapping[str, Tensor], wanted: frozenset[str]) -> dict[str, Tensor]:
    needed_weights = [w for w in program.weights if w.name in wanted]
    missing = [w.name for w in needed_weights if w.name not in given]
    if missing:
        raise UsageError(f"weights are missing: {', '.join(missing[:12])} ({len(missing)} in all)")
    return {w.name: _shaped("weight", w.name, given[w.name], w.shape) for w in needed_weights}


def _shaped(what: str, name: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise UsageError(f"the {what} `{name}` has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor


def _define(definition: Definition, values: Mapping[str, Tensor], extents: Mapping[Letter, int], dtype: torch.dtype) -> Tensor:
    result = torch.full(definition.shape, torch.nan, dtype=dtype)
    for statement in definition.parts:
        letters = tuple(i.letter for i in statement.target if isinstance(i, Axis))
        where = tuple(int(i.value) if isinstance(i, Num) else slice(None) for i in statement.target)
        found = _TensorEvaluator(values, extents, dtype).value(statement.expr)
        result[where] = found.spread(letters, extents)
    return result


@dataclass(frozen=True, slots=True)
class _Lettered:
    """A tensor with a letter for each of its dimensions."""

    tensor: Tensor
    letters: tuple[Letter, ...]

    def aligned(self, letters: Sequence[Letter]) -> Tensor:
        """Dimensions in the order of `letters`, of extent 1 for a letter that is not its own."""
        order = [self.letters.index(letter) for letter in letters if letter in self.letters]
        tensor = self.tensor.permute(order)
        return tensor[tuple(slice(None) if letter in self.letters else None for letter in letters)]

    def spread(self, letters: Sequence[Letter], extents: Mapping[Letter, int]) -> Tensor:
        """`aligned`, repeated over the letters that are not its own."""
        return self.aligned(letters).expand([extents[letter] for letter in letters])


class _TensorEvaluator:
    """Expressions to tensors over their letters, in one dtype: the run's for values, int64 for indices."""

    def __init__(self, values: Mapping[str, Tensor], extents: Mapping[Letter, int], dtype: torch.dtype) -> None:
        self._values = values
        self._extents = extents
        self._dtype = dtype

    def value(self, e: Expr) -> _Lettered:
        """`e` over all the letters it depends on. Raises UsageError for an index out of range."""
        match e:
            case Num():
                return _Lettered(torch.tensor(e.value, dtype=self._dtype), ())
            case Axis():
                return _Lettered(torch.arange(self._extents[e.letter], dtype=self._dtype), (e.letter,))
            case Load():
                return self._load(e)
            case Unary("-"):
                return self._apply(torch.neg, e.x)
            case Unary():
                return self._apply(lambda x: (x == 0).to(self._dtype), e.x)
            case Binary():
                return self._apply(self._operator(e), e.x, e.y)
            case Call():
                return self._apply(partial(FUNCTIONS[e.fn].meaning, torch), *e.args)
            case Reduce():
                return self._reduce(e)
            case Name() | Acc():
                raise AssertionError(f"not a resolved expression: {text(e)}")

    def _apply(self, f: Callable[..., Tensor], *args: Expr) -> _Lettered:
        found = [self.value(a) for a in args]
        letters = tuple(dict.fromkeys(letter for x in found for letter in x.letters))
        return _Lettered(f(*(x.aligned(letters) for x in found)), letters)

    def _operator(self, e: Binary) -> Callable[..., Tensor]:
        op = e.op
        if op in _TRUTH:
            return lambda x, y: _TRUTH[op](x, y).to(self._dtype)
        if op in ("//", "%") and not self._dtype.is_floating_point:
            return partial(_whole_division, e)
        return _ARITHMETIC[op]

    def _load(self, e: Load) -> _Lettered:
        tensor = self._values[e.name]
        letters = [i.letter for i in e.indices if isinstance(i, Axis)]
        simple = all(isinstance(i, Axis | Num) for i in e.indices) and len(set(letters)) == len(letters)
        if simple:
            picked = tensor[tuple(int(i.value) if isinstance(i, Num) else slice(None) for i in e.indices)]
            return _Lettered(picked.to(self._dtype), tuple(letters))
        return self._gather(e, tensor)

    def _gather(self, e: Load, tensor: Tensor) -> _Lettered:
        whole = _TensorEvaluator(self._values, self._extents, torch.int64)
        indices = [whole.value(i) for i in e.indices]
        for index, extent in zip(indices, tensor.shape, strict=True):
            low, high = int(index.tensor.min()), int(index.tensor.max())
            if low < 0 or high >= extent:
                raise UsageError(f"`{text(e)}`: the index {low if low < 0 else high} is outside 0 … {extent - 1}")
        letters = tuple(dict.fromkeys(letter for index in indices for letter in index.letters))
        return _Lettered(tensor[tuple(index.aligned(letters) for index in indices)].to(self._dtype), letters)

    def _reduce(self, e: Reduce) -> _Lettered:
        if e.op is Reduction.SUM and isinstance(e.body, Binary) and e.body.op in ("*", "/"):
            return self._sum_of_product(e)
        body = self.value(e.body)
        letters = tuple(dict.fromkeys((*body.letters, *e.letters)))
        kept = tuple(letter for letter in letters if letter not in e.letters)
        order = (*kept, *e.letters)
        x = body.aligned(order).expand([self._extents[letter] if letter in e.letters else -1 for letter in order])
        dims = tuple(range(len(kept), len(order)))
        match e.op:
            case Reduction.SUM:
                return _Lettered(x.sum(dims), kept)
            case Reduction.MEAN:
                return _Lettered(x.sum(dims) / prod(self._extents[letter] for letter in e.letters), kept)
            case Reduction.MAX:
                return _Lettered(x.amax(dims), kept)
            case Reduction.MIN:
                return _Lettered(x.amin(dims), kept)
            case Reduction.SOFTMAX:
                return _Lettered(_softmax(x, dims), order)

    def _sum_of_product(self, e: Reduce) -> _Lettered:
        """The factors go to one einsum; a divisor that is not summed over divides the result."""
        factor_list = [(op, self.value(f)) for op, f in factors(e.body)]
        outside = [f for op, f in factor_list if op == "/" and not set(f.letters) & set(e.letters)]
        inside = [f if op == "*" else _Lettered(1 / f.tensor, f.letters) for op, f in factor_list if not any(f is o for o in outside)]
        lettered = dict.fromkeys(letter for f in inside for letter in f.letters)
        inside.extend(_Lettered(torch.ones(self._extents[x], dtype=self._dtype), (x,)) for x in e.letters if x not in lettered)
        kept = tuple(letter for letter in lettered if letter not in e.letters)
        number = {letter: i for i, letter in enumerate(dict.fromkeys((*lettered, *e.letters)))}
        operands = [piece for f in inside for piece in (f.tensor, [number[letter] for letter in f.letters])]
        total = _Lettered(torch.einsum(*operands, [number[letter] for letter in kept]), kept)
        for divisor in outside:
            letters = tuple(dict.fromkeys((*total.letters, *divisor.letters)))
            total = _Lettered(total.aligned(letters) / divisor.aligned(letters), letters)
        return total


def _whole_division(e: Binary, x: Tensor, y: Tensor) -> Tensor:
    """`x // y` or `x % y` of whole numbers. Raises UsageError where y is 0."""
    if not y.all():
        raise UsageError(f"`{text(e.y)}` is 0, and an index divides by it: `{text(e)}`")
    return _ARITHMETIC[e.op](x, y)


def _softmax(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Softmax over `dims`; a row that is all -inf gives 0."""
    top = x.amax(dims, keepdim=True)
    e = torch.exp(x - torch.where(torch.isneginf(top), torch.zeros_like(top), top))
    total = e.sum(dims, keepdim=True)
    return e / torch.where(total == 0, torch.ones_like(total), total)


_TRUTH: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "<": torch.lt, "<=": torch.le, ">": torch.gt, ">=": torch.ge, "==": torch.eq, "!=": torch.ne,
    "and": torch.logical_and, "or": torch.logical_or,
}  # fmt: skip
_ARITHMETIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "+": torch.add, "-": torch.sub, "*": torch.mul, "/": torch.div, "//": torch.floor_divide, "%": torch.remainder, "**": torch.pow,
}  # fmt: skip
