"""An instruction list as it grows: slots, instructions, results written where they must end, temporaries written over at their last use.

In: calls and the slots they read, in order. Out: an `InstructionList`. What a slot holds of its own (no window of an operand, no number)
is owned: a later value of the same letters may be written over it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter
from einpage.kernels.instructions import calls
from einpage.kernels.instructions.compiled_form import compiled_form
from einpage.kernels.instructions.instruction_list import AccAt, Instruction, InstructionList, LookUp, Ref, ResultAt, SlotSource
from einpage.kernels.instructions.value_kind import ValueKind


class InstructionBuilder:
    """Collects instructions over dimensions `order`, then finishes the list."""

    def __init__(self, order: tuple[Letter, ...]) -> None:
        self.order = order
        self._template: list[object] = []
        self._refs: list[Ref] = []
        self._instructions: list[Instruction] = []
        self._sources: dict[int, SlotSource] = {}
        self._owned: set[int] = set()
        self._stores: list[int] = []
        self._targets: list[frozenset[Letter] | None] = []

    def slot(self, letters: frozenset[Letter], kind: ValueKind, initial: object = None, value: float | int = 0) -> Ref:
        """A new slot, which holds `initial` before the first instruction."""
        ref = Ref(len(self._refs), letters, kind, value)
        self._refs.append(ref)
        self._template.append(initial)
        return ref

    def number(self, value: float | int) -> Ref:
        """A slot that holds a number."""
        return self.slot(frozenset(), ValueKind.NUMBER, value, value)

    def source(self, source: SlotSource, letters: frozenset[Letter], kind: ValueKind, args: tuple[int, ...] = ()) -> Ref:
        """A slot that is filled from the job's buffers; `args` are the slots that its look-ups read."""
        ref = self.slot(letters, kind)
        self._sources[ref.slot] = source
        self._instructions.append(Instruction(None, ref.slot, args))
        if isinstance(source, LookUp | AccAt) and kind is ValueKind.FLOAT:
            self._owned.add(ref.slot)
        return ref

    def call(self, fn: Callable[..., Any], kind: ValueKind, *args: Ref, letters: frozenset[Letter] | None = None) -> Ref:
        """A call of `fn`; its value has the letters of all arguments unless others are given."""
        if letters is None:
            letters = frozenset().union(*(a.letters for a in args))
        ref = self.slot(letters, kind)
        self._instructions.append(Instruction(fn, ref.slot, tuple(a.slot for a in args)))
        self._owned.add(ref.slot)
        return ref

    def store(self, index: int, ref: Ref, direct: frozenset[Letter] | None) -> None:
        """Arrange that `ref` ends in result window `index`: computed there where it is the last value and has the letters `direct`."""
        target = self.slot(frozenset(), ValueKind.STORED)
        self._sources[target.slot] = ResultAt(index)
        window = Instruction(None, target.slot, ())
        last = self._instructions[-1] if self._instructions else None
        if (
            direct is not None
            and last is not None
            and last.out == ref.slot
            and last.into is None
            and last.fn in calls.OUTABLE
            and ref.kind is ValueKind.FLOAT
            and ref.letters == direct
        ):
            self._instructions[-1:] = [window, replace(last, into=target.slot)]
            self._owned.discard(ref.slot)
        else:
            done = self.slot(frozenset(), ValueKind.STORED)
            write = calls.fill if ref.kind is ValueKind.NUMBER else calls.copy
            self._instructions += [window, Instruction(write, done.slot, (target.slot, ref.slot))]
        self._stores.append(ref.slot)
        self._targets.append(direct)

    def check(self, ref: Ref, check: Callable[[Tensor], None]) -> None:
        """Call `check` with the value of `ref`."""
        self._instructions.append(Instruction(check, self.slot(frozenset(), ValueKind.STORED).slot, (ref.slot,)))

    def finish(self) -> InstructionList:
        """The list, with last uses, and with values written over a temporary that is dead after them."""
        last_use: dict[int, int] = {}
        for n, instruction in enumerate(self._instructions):
            for slot in (*instruction.args, instruction.out):
                last_use[slot] = n
            if instruction.into is not None:
                last_use[instruction.into] = n
        out: list[Instruction] = []
        for n, instruction in enumerate(self._instructions):
            dead = tuple(sorted({a for a in instruction.args if last_use[a] == n and self._refs[a].kind is not ValueKind.NUMBER}))
            reusable = self._reusable(instruction, dead)
            if reusable:
                instruction = replace(instruction, into=reusable[0])
            unread = (instruction.out,) if last_use[instruction.out] == n and instruction.into is None else ()
            out.append(replace(instruction, dead=dead + unread))
        template, refs = tuple(self._template), tuple(self._refs)
        compiled = compiled_form(self.order, out, template, self._sources, refs, self._targets)
        return InstructionList(self.order, tuple(out), template, self._sources, refs, tuple(self._stores), compiled)

    def _reusable(self, instruction: Instruction, dead: tuple[int, ...]) -> list[int]:
        """Of the slots dead after an instruction, those that its value may be written over."""
        value = self._refs[instruction.out]
        if instruction.fn not in calls.OUTABLE or instruction.into is not None or value.kind is not ValueKind.FLOAT:
            return []
        return [a for a in dead if a in self._owned and self._refs[a].kind is ValueKind.FLOAT and self._refs[a].letters == value.letters]
