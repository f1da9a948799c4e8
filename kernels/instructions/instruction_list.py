"""Expressions compiled once into a flat list of torch calls over named dimensions.

In: expressions over letters. Out: an `InstructionList`: numbered slots, instructions that fill them, and which slot ends in which result
window. Every tensor has one dimension for each letter of `order`, of size 1 where it does not depend on the letter, so torch broadcasts by
letter. Equal sub-expressions are computed once; a temporary is reused in place at its last use. Arithmetic is fp32, index arithmetic int64.

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
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.layout.affine import Affine
from einpage.kernels.on_llvm.loop_nests import Nest

_ITEM_BYTES = {ValueKind.FLOAT: 4, ValueKind.BOOL: 1, ValueKind.INT: 8, ValueKind.NUMBER: 0, ValueKind.STORED: 0}


@dataclass(frozen=True, slots=True)
class Ref:
    """A slot and what is known of it."""

    slot: int
    letters: frozenset[Letter]
    kind: ValueKind
    value: float | int = 0
    """The number, for a NUMBER."""

    @property
    def is_number(self) -> bool:
        """Whether its value is a Python number, known now."""
        return self.kind is ValueKind.NUMBER


@dataclass(frozen=True, slots=True)
class LoadAt:
    """An affine load of `reads[operand]`."""

    operand: int
    indices: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class LookUp:
    """A load with an index that is data or otherwise not affine: such dimensions name the slot of their index."""

    operand: int
    indices: tuple[Affine | Ref, ...]


@dataclass(frozen=True, slots=True)
class Iota:
    """The numbers of a letter."""

    letter: Letter
    kind: ValueKind


@dataclass(frozen=True, slots=True)
class AccAt:
    """Accumulator number `index`."""

    index: int


@dataclass(frozen=True, slots=True)
class ResultAt:
    """The window of the result that store number `index` fills."""

    index: int


SlotSource: TypeAlias = "LoadAt | LookUp | Iota | AccAt | ResultAt"


@dataclass(frozen=True, slots=True)
class Instruction:
    """slots[out] = fn(slots[args]), or a source when `fn` is None."""

    fn: Callable[..., Any] | None
    out: int
    args: tuple[int, ...]
    into: int | None = None
    """The slot whose tensor the value is written into; None for a tensor of its own."""
    dead: tuple[int, ...] = ()
    """Slots used for the last time here."""


@dataclass(frozen=True, slots=True)
class CompiledForm:
    """A list as loops over arrays (compiled_form.py). Dimensions are the letters of the list's order."""

    arrays: tuple[int, ...]
    """The slot of each: a source, a temporary, or what depends on letters alone."""
    temporaries: tuple[int, ...]
    """Slots that lie in memory of their own while the loops run."""
    nests: tuple[Nest, ...]


@dataclass(frozen=True, slots=True)
class InstructionList:
    """Torch calls over numbered slots, and what they need for a block of any extent."""

    order: tuple[Letter, ...]
    instructions: tuple[Instruction, ...]
    template: tuple[object, ...]
    """Slots before the first instruction: numbers stand in theirs."""
    sources: Mapping[int, SlotSource]
    refs: tuple[Ref, ...]
    stores: tuple[int, ...]
    """The slot of each expression, in order."""
    compiled: CompiledForm | None = None

    def peak_bytes(self, extent: Mapping[Letter, int], in_several_tiles: frozenset[int] = frozenset()) -> int:
        """Bytes of temporaries alive at once for a block of `extent`; operands in several tiles count as copied."""
        live: dict[int, int] = {}
        peak = (
            0 if self.compiled is None else sum(4 * math.prod(extent[x] for x in self.refs[t].letters) for t in self.compiled.temporaries)
        )
        for instruction in self.instructions:
            if instruction.into is not None:
                live[instruction.out] = live.pop(instruction.into, 0)
            else:
                live[instruction.out] = self._slot_bytes(instruction.out, extent, in_several_tiles)
            extra = live[instruction.out] if instruction.fn in ALLOCATES_TEMPORARY else 0
            peak = max(peak, sum(live.values()) + extra)
            for slot in instruction.dead:
                live.pop(slot, None)
        return peak

    def _slot_bytes(self, slot: int, extent: Mapping[Letter, int], in_several_tiles: frozenset[int]) -> int:
        ref = self.refs[slot]
        elements = math.prod(extent[x] for x in ref.letters)
        match self.sources.get(slot):
            case None:
                return elements * _ITEM_BYTES[ref.kind]
            case LookUp():
                return elements * 16
            case LoadAt(operand, _) if operand in in_several_tiles:
                return elements * 8
            case _:
                return 0
