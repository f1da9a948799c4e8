"""Partial definitions: statements that together set one value, each for its own integers in some dimensions.

In: the statements, one after the other. Out: the value's shape, once they cover it exactly: every element is set, none twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Num
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.graph.job import Box, Part
from einpage.einsum_front.spec.source import SourceFile


@dataclass(slots=True)
class PartialDefinitions:
    """Those of one value that nothing has read yet."""

    base: str
    unique: str
    loop: tuple[int, ...]
    span: Span
    """Of the first target."""
    follows: Span | None = None
    """Where an earlier value of this name, also partially defined, was read: perhaps too early."""
    partials: list[Part] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    position: int = 0
    """The number of the last of them among the unrolled statements."""

    def add(self, partial: Part, span: Span, extents: Mapping[Letter, int], source: SourceFile) -> None:
        """Append one. Raises SpecError where it disagrees with the others or sets what they set."""
        if self.partials and len(partial.target) != len(self.partials[0].target):
            own, first = len(partial.target), len(self.partials[0].target)
            message = f"this partial definition of `{self.base}` has {own} dimensions, the one in line {self.span.line} has {first}"
            raise source.error(span, message, cure="give all partial definitions of a value the same dimensions")
        box = box_of(partial.target, extents)
        for other, other_span in zip(self.partials, self.spans, strict=True):
            self._agree(partial, other, span, other_span, extents, source)
            if box.intersects(box_of(other.target, extents)):
                message = f"this part of `{self.base}` was set already, in line {other_span.line}"
                cure = f"partial definitions form one value until `{self.base}` is first read; set each element once"
                raise source.error(span, message, cure=cure)
        self.partials.append(partial)
        self.spans.append(span)

    def _agree(self, partial: Part, other: Part, span: Span, other_span: Span, extents: Mapping[Letter, int], source: SourceFile) -> None:
        for at, (mine, theirs) in enumerate(zip(partial.target, other.target, strict=True)):
            letters = [i for i in (mine, theirs) if isinstance(i, Axis)]
            sizes = [extents[i.letter] for i in letters]
            numbers = [i.value for i in (mine, theirs) if isinstance(i, Num)]
            if len(set(sizes)) > 1 or any(n >= e for n in numbers for e in sizes):
                shown = " and ".join([f"`{i.letter}` ({extents[i.letter]})" for i in letters] + [str(n) for n in numbers])
                message = f"dimension {at + 1} of `{self.base}` is {shown} here and in line {other_span.line}: the extents do not agree"
                raise source.error(span, message, cure="use letters of one extent, and numbers below it")

    def shape(self, extents: Mapping[Letter, int], source: SourceFile, reader: Span | None) -> tuple[int, ...]:
        """The shape of the whole value. Raises SpecError, naming a missing element, where they do not cover it."""
        boxes = [box_of(p.target, extents) for p in self.partials]
        shape = tuple(max(ends) for ends in zip(*(b.end for b in boxes), strict=True))
        if sum(b.size for b in boxes) == prod(shape):
            return shape
        read = f", but it is read in line {reader.line}" if reader else ""
        iteration = f" in iteration {self.loop[-1]}" if self.loop else ""
        covered = ", ".join(f"`{self._shown(p.target)}`" for p in self.partials[:6])
        missing = self._shown(self._missing(shape, extents))
        message = f"the partial definitions of `{self.base}`{iteration} do not cover it{read}: `{missing}` is never set"
        cure = f"add `{missing} = …`"
        if self.follows is not None:
            cure += f", or set it before `{self.base}` is read in line {self.follows.line}: reading closes a value"
        if self.loop:
            local = f"a name first set inside a repeat is local to an iteration: for one `{self.base}` of all iterations"
            cure += f"; {local}, set a part of it before the repeat"
        raise source.error(self.span, message, exists=covered, cure=cure)

    def _missing(self, shape: tuple[int, ...], extents: Mapping[Letter, int]) -> tuple[Expr, ...]:
        """A target that is not covered. Of the numbers that no target names, one represents all."""
        columns = list(zip(*(p.target for p in self.partials), strict=True))
        candidates: list[list[Expr]] = []
        for column, extent in zip(columns, shape, strict=True):
            named = {int(i.value) for i in column if isinstance(i, Num)}
            other = next((n for n in range(extent) if n not in named), None)
            letter = next((i for i in column if isinstance(i, Axis)), None)
            if not named and letter is not None:
                candidates.append([letter])
            else:
                candidates.append([Num(n) for n in sorted(named if other is None else named | {other})])
        for target in product(*candidates):
            box = box_of(target, extents)
            if not any(box.intersects(box_of(p.target, extents)) for p in self.partials):
                return target
        raise AssertionError(f"the partial definitions of {self.base} neither cover {shape} nor leave anything out")

    def _shown(self, target: tuple[Expr, ...]) -> str:
        return f"{self.base}[{','.join(i.letter if isinstance(i, Axis) else str(i.value) for i in target if isinstance(i, Axis | Num))}]"


def box_of(target: tuple[Expr, ...], extents: Mapping[Letter, int]) -> Box:
    """The box of indices a target covers: a letter its whole extent, a number itself."""
    starts = tuple(int(i.value) if isinstance(i, Num) else 0 for i in target)
    ends = tuple(extents[i.letter] if isinstance(i, Axis) else s + 1 for i, s in zip(target, starts, strict=True))
    return Box(starts, ends)
