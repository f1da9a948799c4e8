"""Reverse-mode differentiation: a Program with a scalar output to one that also has gradients.

In: a Program, the name of the scalar output, the names of weights and float inputs. Out: the Program with more definitions, after its own
and in the reverse of their order, and an output `d_NAME` for each name (Griewank and Walther, Evaluating Derivatives, 2008, chapter 3). The
gradient of a value is one value, the sum of what each of its readers adds; nothing is made for values that no wanted gradient goes through.
Every statement made is one that a person could have written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, free_letters, loads
from einpage.einsum_front.base.errors import Span, UsageError, did_you_mean, listing
from einpage.einsum_front.base.interval import UNBOUNDED, Interval
from einpage.einsum_front.differentiate.adjoint import ONE, ZERO, Adjoint
from einpage.einsum_front.differentiate.assemble import assembled, dimension_letters, shapes_of
from einpage.einsum_front.differentiate.intermediate import with_copies, with_intermediates
from einpage.einsum_front.differentiate.rules import Rules, value_loads
from einpage.einsum_front.differentiate.scatter import Contribution, Scatter
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Output, Program, fresh_name, needed


def with_gradients(program: Program, loss: str, names: Sequence[str]) -> Program:
    """`program` with an output `d_NAME`, the gradient of the output `loss` by it, for each weight or float input of `names`.

    Raises UsageError for a loss that is no output or no single number, for a name that is neither a weight nor a float input, and for one
    on which the loss does not depend.
    """
    value = _loss_value(program, loss)
    _refuse_unknown(program, names)
    wanted = wanted_values(program, names)
    on_the_way = needed(program, [value]) & wanted
    for name in names:
        if name not in on_the_way or value not in wanted:
            cure = "ask for one of those on which it does; comparisons, `//` and indices have no gradient"
            raise UsageError(f"{program.path}: the output `{loss}` does not depend on `{name}`: it has no gradient; {cure}")
    inner = with_intermediates(program, on_the_way)
    made = _ReverseMode(inner, value, names, needed(inner, [value]) & wanted_values(inner, names)).run()
    return with_copies(made, inner)


def wanted_values(program: Program, names: Iterable[str]) -> frozenset[str]:
    """`names` and every value that a gradient could reach them from."""
    found = set(names)
    for definition in program.definitions:
        if any(load.name in found for part in definition.parts for load in value_loads(part.expr)):
            found.add(definition.name)
    return frozenset(found)


def gradient_reaches(program: Program, loss: str) -> frozenset[str]:
    """Every name that a gradient of the value `loss` could be of."""
    found = {loss}
    for definition in reversed(program.definitions):
        if definition.name in found:
            found.update(load.name for part in definition.parts for load in value_loads(part.expr))
    return frozenset(found)


def _loss_value(program: Program, loss: str) -> str:
    output = next((o for o in program.outputs if o.name == loss), None)
    if output is None:
        names = [o.name for o in program.outputs]
        cure = did_you_mean(loss, names) or "declare it under `outputs:`"
        raise UsageError(f"{program.path}: no output is called `{loss}`; there are: {listing(names)}; {cure}")
    if output.shape:
        letters = ",".join(output.letters)
        cure = f"a gradient is of one number: sum it, as in `{loss}_sum = sum[{letters}]({loss}[{letters}])`"
        raise UsageError(f"{program.path}: the output `{loss}` has shape {output.shape}; {cure}")
    return output.value


def _refuse_unknown(program: Program, names: Sequence[str]) -> None:
    floats = [*(w.name for w in program.weights), *(i.name for i in program.inputs if i.dtype is None or i.dtype.is_float)]
    integers = {i.name for i in program.inputs} - set(floats)
    for name in names:
        if name in integers:
            raise UsageError(
                f"{program.path}: the input `{name}` holds whole numbers, which have no gradient; there is one of: {listing(floats)}"
            )
        if name not in floats:
            cure = did_you_mean(name, floats) or "a gradient is by weights and inputs"
            raise UsageError(f"{program.path}: no weight or input is called `{name}`; there are: {listing(floats)}; {cure}")


@dataclass(frozen=True, slots=True)
class _Gradient:
    """That of a value: another value of its shape, or one number everywhere."""

    value: str | None
    """None: the loss itself, whose gradient is 1."""

    def at(self, indices: tuple[Expr, ...]) -> Expr:
        return ONE if self.value is None else Load(self.value, indices)


class _ReverseMode:
    """The definitions, last first, each handing what it gets on to what it reads."""

    def __init__(self, program: Program, loss: str, names: Sequence[str], wanted: frozenset[str]) -> None:
        self.program, self.loss, self.names, self.wanted = program, loss, names, wanted
        self.extents = dict(program.extents)
        self.made: list[Definition] = []
        self.contributions: dict[str, list[Contribution]] = {}
        self.gradients: dict[str, _Gradient] = {}
        self.definition = Definition("", "", (), (), (), Span(1, 1))
        """The one whose parts are being differentiated."""
        self.shapes = shapes_of(program)
        self.dtypes = {d.name: d.dtype for d in program.definitions} | {i.name: i.dtype for i in program.inputs}
        self.used = set(self.shapes)
        self.words = {*self.shapes, *program.extents, *program.sizes, *program.scalars, *program.lists}
        self.dims = dimension_letters(program, wanted, self.extents, self.another)
        integers = {
            i.name: UNBOUNDED if i.range is None else Interval(*i.range)
            for i in program.inputs
            if i.dtype is not None and not i.dtype.is_float
        }
        self.rules = Rules(self.extents, wanted.__contains__, self.named)
        self.scatter = Scatter(self.extents, integers.get, self.named, self.another)

    def run(self) -> Program:
        """The program with gradients."""
        if self.loss in self.names:
            self.gradients[self.loss] = _Gradient(None)
        first_reader = {load.name: d.name for d in reversed(self.program.definitions) for part in d.parts for load in loads(part.expr)}
        names_by_reader: dict[str, list[str]] = {}
        for name in self.names:
            names_by_reader.setdefault(first_reader.get(name, ""), []).append(name)
        for definition in reversed(self.program.definitions):
            self.definition = definition
            if definition.name in self.wanted:
                self.backward(definition)
            for name in names_by_reader.get(definition.name, ()):
                self.finish(name)
        outputs = tuple(self.output(name) for name in dict.fromkeys(self.names))
        return replace(
            self.program,
            extents=self.extents,
            definitions=(*self.program.definitions, *self.made),
            outputs=(*self.program.outputs, *outputs),
        )

    def backward(self, definition: Definition) -> None:
        """What `definition` adds to the gradients of what it reads."""
        if definition.name == self.loss:
            gradient = _Gradient(None)
        elif definition.name in self.contributions:
            gradient = self.finish(definition.name)
        else:
            return
        for part in definition.parts:
            repeated = frozenset().union(*map(free_letters, part.target)) - free_letters(part.expr)
            whole = Adjoint(gradient.at(part.target)).summed(repeated, self.extents)
            for load, adjoint in self.rules.of_statement(part.expr, Load(definition.name, part.target), whole):
                found = self.scatter.contribution(load, adjoint, self.dims[load.name])
                if found is not None and found.expr != ZERO:
                    self.contributions.setdefault(load.name, []).append(found)

    def finish(self, name: str) -> _Gradient:
        """All readers of a value have added to its gradient: it is a value too."""
        if name not in self.gradients:
            dims = self.dims[name]
            parts = assembled(self.contributions.pop(name, []), dims, self.shapes[name])
            whole = parts[0].expr if len(parts) == 1 else None
            if isinstance(whole, Load) and whole.indices == tuple(map(Axis, dims)):
                self.gradients[name] = _Gradient(whole.name)
            else:
                self.gradients[name] = _Gradient(
                    self.define(f"d_{name.replace('@', '.')}", f"d_{base_of(name)}", self.shapes[name], parts, name)
                )
        return self.gradients[name]

    def output(self, name: str) -> Output:
        """The gradient of a leaf as an output."""
        gradient, dims = self.finish(name), self.dims[name]
        value = gradient.value
        if value is None:
            value = self.define(f"d_{name}", f"d_{name}", (), (Part((), ONE),))
        return Output(f"d_{name}", value, dims, self.shapes[name])

    def named(self, e: Expr, letters: frozenset[Letter]) -> Expr:
        """A value that holds `e` over `letters`, and that is read instead."""
        order = [i.letter for part in self.definition.parts for i in part.target if isinstance(i, Axis) and i.letter in letters]
        dims = tuple(dict.fromkeys((*order, *sorted(letters))))
        axes = tuple(map(Axis, dims))
        name, shape = self.definition.name, tuple(self.extents[letter] for letter in dims)
        return Load(self.define(f"d_in_{name}", f"d_in_{self.definition.base}", shape, (Part(axes, e),)), axes)

    def define(self, name: str, base: str, shape: tuple[int, ...], parts: tuple[Part, ...], of: str | None = None) -> str:
        """A new value, in the dtype of the value `of` (None: of the definition at hand); its unique name."""
        unique = fresh_name(name, self.used)
        d = self.definition
        dtype = d.dtype if of is None else self.dtypes.get(of)
        self.made.append(Definition(unique, base, shape, parts, d.loop, d.span, dtype=dtype))
        return unique

    def another(self, word: str, extent: int, others: Collection[Letter] = ()) -> Letter:
        """A letter like `word`, of an extent, that is none of `others` and of no letter of the spec's."""
        number = 2
        while True:
            found = Letter(f"{word}_{number}")
            if found not in others and found not in self.words and self.extents.get(found, extent) == extent:
                self.extents[found] = extent
                return found
            number += 1


def base_of(name: str) -> str:
    """`x` for `x.4`, `wq` for `wq@3`."""
    return name.partition("@")[0].partition(".")[0]
