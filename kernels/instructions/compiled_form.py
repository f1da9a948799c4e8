"""An instruction list as loops that are compiled: one pass over memory in place of a torch call for each instruction.

In: instructions with the slots they read. Out: a CompiledForm, or None where some instruction has no compiled form: an index that data
give, a softmax, a function that functions.OPS lacks, a result that is not fp32. What depends on letters alone and costs much is computed
when the list is bound. What costs much and is the same along some letter is computed once, into a temporary, as is what a reduction gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter
from einpage.kernels.instructions import calls
from einpage.kernels.instructions.instruction_list import (
    AccAt,
    CompiledForm,
    Instruction,
    Iota,
    LoadAt,
    Ref,
    ResultAt,
    SlotSource,
)
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.on_llvm.functions import COSTLY, OPS
from einpage.kernels.on_llvm.loop_nests import Applied, Computed, Constant, Loaded, Nest

REDUCTION_BY_CALL: Mapping[Callable[..., Tensor], str] = {fn: op.value for op, fn in calls.REDUCTIONS.items()}


class _NotCompiled(Exception):
    """Some instruction has no compiled form."""


def compiled_form(
    order: tuple[Letter, ...],
    instructions: Sequence[Instruction],
    template: Sequence[object],
    sources: Mapping[int, SlotSource],
    refs: Sequence[Ref],
    targets: Sequence[frozenset[Letter] | None],
) -> CompiledForm | None:
    """`targets`: the letters of each result, None where it is not fp32."""
    try:
        return _Analysis(order, instructions, template, sources, refs, targets).form()
    except _NotCompiled:
        return None


@cache
def _op_by_call() -> Mapping[Callable[..., Any], str]:
    functions = {fn: name for name, fn in calls.POINTWISE.items() if name in OPS}
    arithmetic = {calls.BINARY[op]: op for op in ("+", "-", "*", "/", "<", "<=", ">", ">=", "==", "!=")}
    logic: dict[Callable[..., Any], str] = {
        torch.logical_and: "and",
        torch.logical_or: "or",
        torch.logical_not: "not",
        torch.neg: "negative",
    }
    return {**functions, **arithmetic, **logic}


class _Analysis:
    """Of one list."""

    def __init__(
        self,
        order: tuple[Letter, ...],
        instructions: Sequence[Instruction],
        template: Sequence[object],
        sources: Mapping[int, SlotSource],
        refs: Sequence[Ref],
        targets: Sequence[frozenset[Letter] | None],
    ) -> None:
        self.order, self.instructions, self.template, self.sources, self.refs = order, instructions, template, sources, refs
        self.targets = [letters for letters in targets if letters is not None]
        if len(self.targets) < len(targets):
            raise _NotCompiled
        self.stored: dict[int, int] = {}
        """By result, the slot of its value."""
        self.made: dict[int, Instruction] = {}
        """By slot, the call that gives it."""
        self.known: set[int] = {slot for slot, value in enumerate(template) if value is not None}
        """Slots that depend on letters and numbers alone."""
        self.dear: set[int] = set()
        """Those that cost much to compute where they are not arrays."""
        self.arrays: dict[int, int] = {}
        """By slot, the number of its array."""
        self.temporaries: list[int] = []
        self.nests: list[Nest] = []

    def form(self) -> CompiledForm:
        for i in self.instructions:
            self._read(i)
        self._find_temporaries()
        for slot in self.temporaries:
            self._nest_of_temporary(slot)
        for letters in dict.fromkeys(self.targets[result] for result in self.stored):
            self._nest_of_results(letters, [result for result in self.stored if self.targets[result] == letters])
        return CompiledForm(tuple(self.arrays), tuple(self.temporaries), tuple(self.nests))

    def _read(self, i: Instruction) -> None:
        """What an instruction does."""
        refs = self.refs
        if i.fn is None:
            source = self.sources[i.out]
            if not isinstance(source, LoadAt | AccAt | Iota | ResultAt) or refs[i.out].kind is ValueKind.INT:
                raise _NotCompiled
            if isinstance(source, Iota):
                self.known.add(i.out)
            return
        if i.fn in (calls.copy, calls.fill):
            target, value = i.args
            self._stores(target, value)
            return
        self.made[i.out] = i
        if all(a in self.known for a in i.args):
            self.known.add(i.out)
        elif self._op(i) is None:
            raise _NotCompiled
        if i.into is not None and isinstance(self.sources.get(i.into), ResultAt):
            self._stores(i.into, i.out)

    def _stores(self, target: int, value: int) -> None:
        source = self.sources[target]
        assert isinstance(source, ResultAt), "only results are written"
        self.stored[source.index] = value

    def _op(self, i: Instruction) -> str | None:
        """The name of what an instruction computes, or of its reduction; None where it cannot be compiled."""
        kinds = [self.refs[a].kind for a in i.args]
        if ValueKind.INT in (*kinds, self.refs[i.out].kind):
            return None
        if isinstance(i.fn, calls.RowReduction):
            last = max(d for d, letter in enumerate(self.order) if letter in self.refs[i.args[0]].letters)
            return REDUCTION_BY_CALL.get(i.fn.fn) if last in i.fn.dims else None
        if i.fn is calls.to_float:
            return "number" if kinds[0] is ValueKind.BOOL else "same"
        if i.fn is calls.is_true:
            return "is true" if kinds[0] is ValueKind.FLOAT else None
        if i.fn is torch.pow:
            if self.template[i.args[1]] == 2 and self.refs[i.args[1]].is_number:
                return "square"
            return None if self.refs[i.out].letters else "**"  # of an array torch's own is faster
        assert i.fn is not None
        return _op_by_call().get(i.fn)

    def _find_temporaries(self) -> None:
        """Which values are arrays of their own."""
        is_made: dict[int, None] = {}
        for slot, i in self.made.items():
            if slot in self.known:
                is_reduction = isinstance(i.fn, calls.RowReduction)
                if is_reduction or self._op(i) in (None, *COSTLY) or any(a in self.dear for a in i.args):
                    self.dear.add(slot)
                continue
            is_reduction, letters = isinstance(i.fn, calls.RowReduction), self.refs[slot].letters
            loops = self.refs[i.args[0]].letters if is_reduction else letters
            for a in i.args:
                if a in self.dear and a not in self.known and self.refs[a].letters != loops:
                    self._store_apart(a, is_made)
            if is_reduction:
                self._store_apart(slot, is_made)
            elif self._op(i) in COSTLY or any(a in self.dear and a not in self.known and a not in is_made for a in i.args):
                self.dear.add(slot)
        for result, slot in self.stored.items():
            if slot in self.dear and slot not in self.known and self.refs[slot].letters != self.targets[result]:
                self._store_apart(slot, is_made)
        self.temporaries = sorted(is_made, key=list(self.made).index)

    def _store_apart(self, slot: int, apart: dict[int, None]) -> None:
        if self.refs[slot].kind is not ValueKind.FLOAT:
            raise _NotCompiled
        apart[slot] = None

    def _array(self, slot: int) -> int:
        return self.arrays.setdefault(slot, len(self.arrays))

    def _dims(self, letters: frozenset[Letter]) -> tuple[int, ...]:
        return tuple(d for d, letter in enumerate(self.order) if letter in letters)

    def _nest_of_temporary(self, slot: int) -> None:
        i = self.made[slot]
        if isinstance(i.fn, calls.RowReduction):
            values = _Values(self, None)
            value = values.of(i.args[0])
            loops = self._dims(self.refs[i.args[0]].letters)
            nest = Nest(loops, tuple(values.values), ((self._array(slot), value),), self._op(i), frozenset(i.fn.dims))
        else:
            values = _Values(self, slot)
            value = values.of(slot)
            nest = Nest(self._dims(self.refs[slot].letters), tuple(values.values), ((self._array(slot), value),))
        self.nests.append(nest)

    def _nest_of_results(self, letters: frozenset[Letter], results: Sequence[int]) -> None:
        values = _Values(self, None)
        stores = [(values.of(self.stored[result]), result) for result in results]
        slot_by_result = {source.index: slot for slot, source in self.sources.items() if isinstance(source, ResultAt)}
        targets = tuple((self._array(slot_by_result[result]), value) for value, result in stores)
        self.nests.append(Nest(self._dims(letters), tuple(values.values), targets))


class _Values:
    """What a nest computes of an element, each value once."""

    def __init__(self, analysis: _Analysis, temporary: int | None) -> None:
        """`temporary`: the slot that it computes, which is no array yet."""
        self._analysis, self._temporary = analysis, temporary
        self.values: list[Computed] = []
        self._number_by_value: dict[Computed, int] = {}

    def _add(self, value: Computed) -> int:
        if value not in self._number_by_value or isinstance(value, Constant):  # 0.0 and -0.0, 1 and true, are equal
            self._number_by_value[value] = len(self.values)
            self.values.append(value)
        return self._number_by_value[value]

    def of(self, slot: int) -> int:
        """The number of the value in `slot`."""
        found = self._analysis
        if found.template[slot] is not None:
            return self._add(Constant(_constant(found.template[slot])))
        is_array = slot in found.temporaries and slot != self._temporary
        if slot in found.sources or is_array or (slot in found.known and slot in found.dear):
            return self._add(Loaded(found._array(slot)))
        i = found.made[slot]
        op, args = found._op(i), [self.of(a) for a in i.args]
        if op == "same":
            return args[0]
        if op == "is true":
            return self._add(Applied("!=", (args[0], self._add(Constant(0.0)))))
        assert op is not None
        return self._add(Applied(op, (args[0],) if op == "square" else tuple(args)))


def _constant(value: object) -> float | bool:
    if isinstance(value, Tensor):
        found: float | bool = value.item()
        return found
    assert isinstance(value, int | float)
    return float(value)
