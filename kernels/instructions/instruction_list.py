"""Expressions compiled once into a flat list of torch calls over named dimensions.

In: expressions over letters. Out: a `Tape`: numbered slots, steps that fill them, and which slot ends in which result window. Every
tensor has one dimension for each letter of `order`, of size 1 where it does not depend on the letter, so torch broadcasts by letter. Equal
sub-expressions are computed once; a temporary is reused in place at its last use. Arithmetic is fp32, index arithmetic int64.

    y[s,m] = x[s,m] * rsqrt(mean[m](x[s,m]**2) + eps)      order (s, m)
    0 x  1 pow(0, 2)  2 mean(1, dim 1)  3 add(2, eps) into 2  4 rsqrt(3) into 3  5 mul(0, 4) into the result
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from einpage.einsum_front.algebra.expr import Letter
from einpage.kernels.instructions.calls import ALLOCATES_TEMPORARY
from einpage.kernels.layout.affine import Affine

Kind: TypeAlias = str
"""'f' fp32, 'b' bool, 'i' int64, 'c' a Python number, 'r' as stored (to be widened)."""
_ITEM = {"f": 4, "b": 1, "i": 8, "c": 0, "r": 0}


@dataclass(frozen=True, slots=True)
class Ref:
    """A slot and what is known of it."""

    slot: int
    letters: frozenset[Letter]
    kind: Kind
    value: float | int | bool = 0
    """The number, for kind 'c'."""


@dataclass(frozen=True, slots=True)
class LoadAt:
    """An affine load of `reads[operand]`."""

    operand: int
    dims: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class LookUp:
    """A load with an index that is data or otherwise not affine: such dimensions name the slot of their index."""

    operand: int
    dims: tuple[Affine | Ref, ...]


@dataclass(frozen=True, slots=True)
class Iota:
    """The numbers of a letter."""

    letter: Letter
    kind: Kind


@dataclass(frozen=True, slots=True)
class AccAt:
    index: int


@dataclass(frozen=True, slots=True)
class ResultAt:
    """The window of the result that store number `index` fills."""

    index: int


Source: TypeAlias = "LoadAt | LookUp | Iota | AccAt | ResultAt"


@dataclass(frozen=True, slots=True)
class Step:
    """slots[out] = fn(slots[args]), or a source when `fn` is None; written into slot `into` where that is not -1."""

    fn: Callable[..., Any] | None
    out: int
    args: tuple[int, ...]
    into: int = -1
    drop: tuple[int, ...] = ()
    """Slots used for the last time here."""


@dataclass(frozen=True, slots=True)
class Tape:
    order: tuple[Letter, ...]
    steps: tuple[Step, ...]
    template: tuple[object, ...]
    """Slots before the first step: numbers stand in theirs."""
    sources: Mapping[int, Source]
    refs: tuple[Ref, ...]
    stores: tuple[int, ...]
    """The slot of each expression, in order."""

    def peak_bytes(self, extent: Mapping[Letter, int], split_operands: frozenset[int] = frozenset()) -> int:
        """Bytes of temporaries alive at once for a block of `extent`; operands in several tiles count as copied."""
        live: dict[int, int] = {}
        peak = 0
        for step in self.steps:
            if step.into >= 0:
                live[step.out] = live.pop(step.into, 0)
            else:
                live[step.out] = self._slot_bytes(step, extent, split_operands)
            extra = live[step.out] if step.fn in ALLOCATES_TEMPORARY else 0
            peak = max(peak, sum(live.values()) + extra)
            for slot in step.drop:
                live.pop(slot, None)
        return peak

    def _slot_bytes(self, step: Step, extent: Mapping[Letter, int], split_operands: frozenset[int]) -> int:
        ref = self.refs[step.out]
        elements = math.prod(extent[x] for x in ref.letters)
        match self.sources.get(step.out):
            case None:
                return elements * _ITEM[ref.kind]
            case LookUp():
                return elements * 16
            case LoadAt(operand, _) if operand in split_operands:
                return elements * 8
            case _:
                return 0
