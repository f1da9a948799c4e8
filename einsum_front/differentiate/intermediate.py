"""What gradients read of a model: values inside its statements, computed once or, where attention keeps them to itself, again.

In: a Program and the values that a gradient is wanted of. Out, before its gradients are made, the same Program in more statements:

    y[b,f] = gelu(sum[i](x[b,i] * w[f,i]) + c[f])       in_y[b,f] = sum[i](x[b,i] * w[f,i]) + c[f];  y[b,f] = gelu(in_y[b,f])
    o[s,d] = sum[t](softmax[t](r[s,t]) * v[t,d])        in_o[s,t] = softmax[t](r[s,t]);  o[s,d] = sum[t](in_o[s,t] * v[t,d])

The derivative of a function, and of a product of two factors, reads what is inside: a product of matrices there would be computed again.
Out, after, the same where gradients read copies of the scores and weights of attentions that the model alone would fuse: `again_a` instead
of `a`. An attention stays one operation. The copy stands before the first gradient that reads it, and no value of the size of all pairs of
positions lives from a layer's turn forward to its turn back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from einpage.einsum_front.algebra.expr import (
    Axis,
    Binary,
    Call,
    Expr,
    Letter,
    Load,
    Num,
    Reduce,
    Reduction,
    Unary,
    free_letters,
    loads,
    rebuild,
    walk,
)
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.differentiate.rules import value_loads
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.fuse.hoist import is_contraction
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Program

ATTENTION_ALONE = FuseOptions(attention=True, maps=False, epilogues=False)


def with_intermediates(program: Program, wanted: Collection[str]) -> Program:
    """`program` with what gradients read of its statements in statements of their own, before these."""
    names = {x.name for x in program.definitions} | {w.name for w in program.weights} | {i.name for i in program.inputs}
    definitions: list[Definition] = []
    for definition in program.definitions:
        found = definition
        if definition.name in wanted:
            found, made = _Parts(program, definition, wanted, names).found()
            definitions += made
        definitions.append(found)
    return replace(program, definitions=tuple(definitions))


class _Parts:
    """One definition taken apart."""

    def __init__(self, program: Program, definition: Definition, wanted: Collection[str], names: set[str]) -> None:
        self._program, self._definition, self._wanted, self._names = program, definition, wanted, names
        self._made: list[Definition] = []
        self._letters: tuple[Letter, ...] = ()

    def found(self) -> tuple[Definition, list[Definition]]:
        """The definition, and those that it reads now."""
        parts = []
        for part in self._definition.parts:
            self._letters = tuple(i.letter for i in part.target if isinstance(i, Axis))
            parts.append(Part(part.target, self._inner(part.expr, is_linear=True, is_guarded=False)))
        return replace(self._definition, parts=tuple(parts)), self._made

    def _is_wanted(self, e: Expr) -> bool:
        return any(load.name in self._wanted for load in value_loads(e))

    def _apart(self, e: Expr, *, is_linear: bool, is_guarded: bool) -> Expr:
        """`e` with what is inside it read from values; all of it, where gradients read that. Under a condition, only what is finite."""
        if not self._is_wanted(e):
            return e
        is_softmax = isinstance(e, Reduce) and e.op is Reduction.SOFTMAX and set(e.letters) <= free_letters(e)
        is_read = is_softmax or (not is_linear and _is_product(e, self._is_wanted))
        if is_read and not (is_guarded and any(map(_may_be_infinite, walk(e)))):
            return self._named(self._inner(e, is_linear=True, is_guarded=False))
        return self._inner(e, is_linear=is_linear, is_guarded=is_guarded)

    def _inner(self, e: Expr, *, is_linear: bool, is_guarded: bool) -> Expr:
        """`e` with its operands taken apart: they count linearly where `e` does and is linear in them."""

        def operand(x: Expr, *, linear: bool = False) -> Expr:
            guarded = is_guarded or (isinstance(e, Call) and e.fn == "where")
            return self._apart(x, is_linear=is_linear and linear, is_guarded=guarded)

        match e:
            case Unary("-", x) | Reduce(Reduction.SUM | Reduction.MEAN, _, x):
                return rebuild(e, lambda _: operand(x, linear=True))
            case Binary("+" | "-" | "%", x, y):
                return replace(e, x=operand(x, linear=True), y=operand(y, linear=e.op != "%"))
            case Binary("*", x, y):
                return replace(e, x=operand(x, linear=not self._is_wanted(y)), y=operand(y, linear=not self._is_wanted(x)))
            case Binary("/", x, y):
                return replace(e, x=operand(x, linear=not self._is_wanted(y)), y=operand(y))
            case Binary("**", x, y):
                return replace(e, x=operand(x), y=operand(y))
            case Call("where", (condition, x, y)):
                return replace(e, args=(condition, operand(x, linear=True), operand(y, linear=True)))
            case Call(_, args):
                return replace(e, args=tuple(map(operand, args)))
            case Reduce(_, _, x):
                return replace(e, body=operand(x))
            case _:
                return e

    def _named(self, e: Expr) -> Load:
        """A value that holds `e`."""
        letters = free_letters(e)
        dims = tuple(dict.fromkeys((*(x for x in self._letters if x in letters), *sorted(letters))))
        name, again = f"in_{self._definition.name}", 2
        while name in self._names:
            name, again = f"in_{self._definition.name}_{again}", again + 1
        self._names.add(name)
        axes, d = tuple(map(Axis, dims)), self._definition
        shape = tuple(self._program.extents[letter] for letter in dims)
        self._made.append(Definition(name, f"in_{d.base}", shape, (Part(axes, e),), d.loop, d.span, dtype=d.dtype))
        return Load(name, axes)


def _is_product(e: Expr, wanted: Callable[[Expr], bool]) -> bool:
    """Whether `e` is a product of matrices, or such a one scaled and shifted."""
    match e:
        case Reduce():
            return is_contraction(e)
        case Unary("-", x):
            return _is_product(x, wanted)
        case Binary("+" | "-", x, y):
            return _is_product(x, wanted) or _is_product(y, wanted)
        case Binary("*" | "/", x, y):
            return (_is_product(x, wanted) and not wanted(y)) or (e.op == "*" and _is_product(y, wanted) and not wanted(x))
        case _:
            return False


def _may_be_infinite(e: Expr) -> bool:
    """Whether `e` or its derivative may be infinite where its operands are finite."""
    match e:
        case Binary("/", _, y):
            return not isinstance(y, Num)
        case Binary("**", _, y):
            return not (isinstance(y, Num) and isinstance(y.value, int) and y.value >= 0)
        case Call(fn, _):
            return not FUNCTIONS[fn].finite
        case _:
            return False


def kept_by_attention(program: Program) -> frozenset[str]:
    """The values of `program` that are computed inside attentions alone."""
    graph = fuse(program, [o.name for o in program.outputs], ATTENTION_ALONE)
    computed = {op.value for op in graph.ops}
    used = {load.name for d in program.definitions for part in d.parts for load in loads(part.expr)}
    return frozenset(d.name for d in program.definitions if d.name not in computed and d.name in used)


def with_copies(program: Program, model: Program) -> Program:
    """`program`, which adds definitions to those of `model`, with copies of what attentions of `model` keep to themselves."""
    kept = kept_by_attention(model)
    own = len(model.definitions)
    by_name = {d.name: d for d in model.definitions}
    copied: dict[str, str] = {}
    definitions = list(program.definitions[:own])

    def copy(name: str) -> str:
        """The name of the copy, which stands among `definitions`."""
        if name not in copied:
            original = by_name[name]
            parts = tuple(Part(p.target, renamed(p.expr)) for p in original.parts)
            copied[name] = f"again_{name}"
            definitions.append(replace(original, name=copied[name], base=f"again_{original.base}", parts=parts))
        return copied[name]

    def renamed(e: Expr) -> Expr:
        found = rebuild(e, renamed)
        return replace(found, name=copy(found.name)) if isinstance(found, Load) and found.name in kept else found

    for definition in program.definitions[own:]:
        made = tuple(Part(p.target, renamed(p.expr)) for p in definition.parts)
        definitions.append(replace(definition, parts=made))
    return replace(program, definitions=tuple(definitions))
