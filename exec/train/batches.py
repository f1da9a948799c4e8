"""What each step reads: sequences of token ids, in order, again and again, with the next token as the target of each; or arrays by name.

In: a text's ids or a list of sequences, and how many of how many tokens a step takes. Out: arrays for the inputs of a step, by its number.
A sequence is padded on the right, and nothing that stands there is a target.

    sequence  5 8 2 9        tokens   5 8 2 9 0 0
                             targets  8 2 9 . . .      . = -1, no target
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.program import Input, Program
from einpage.exec.load.inputs import TOKENS, InputError, TokenLists, bind_inputs

TARGETS = "targets"
"""The input that holds the next token of each position, NO_TARGET where there is none."""
NO_TARGET = -1


@dataclass(frozen=True, slots=True)
class Batches:
    """The inputs of steps."""

    program: Program
    """Of a step, its inputs less states and the rate."""
    tokens: TokenLists | None
    """None: all inputs are arrays."""
    batch: int
    arrays: Mapping[str, NDArray[np.generic]]
    """By input, in its shape, the same at each step, or with one axis more before it: one a step, in order, again and again."""

    def at(self, step: int) -> dict[str, NDArray[np.generic]]:
        """For the step of this number, from 0. Raises InputError."""
        named = {name: self._array(name, array, step) for name, array in self.arrays.items()}
        if self.tokens is None:
            return bind_inputs(self.program, None, named)
        lists = self.tokens.lists
        rows = TokenLists(
            tuple(lists[(step * self.batch + i) % len(lists)] for i in range(self.batch)), self.tokens.origin, self.tokens.encoded
        )
        return bind_inputs(self.program, rows, {TARGETS: self._targets(rows.lists), **named})

    def tokens_at(self, step: int) -> int:
        """How many tokens that step reads."""
        if self.tokens is None:
            return 0
        lists = self.tokens.lists
        return sum(len(lists[(step * self.batch + i) % len(lists)]) for i in range(self.batch))

    def refuse_no_target(self, steps: range) -> None:
        """Raises InputError for the first of `steps` in which no token has a next one."""
        if self.tokens is None:
            return
        lists = self.tokens.lists
        for step in steps[: len(lists)]:
            if all(len(lists[(step * self.batch + i) % len(lists)]) < 2 for i in range(self.batch)):
                at = step * self.batch % len(lists)
                one = f"sequence {at} has" if self.batch == 1 else f"sequences {at} to {at + self.batch - 1} have"
                cure = "give sequences of two tokens or more"
                raise InputError(f"{self.tokens.origin}: {one} one token each, so step {step + 1} has no next token to learn; {cure}")

    def _targets(self, lists: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        target = next(i for i in self.program.inputs if i.name == TARGETS)
        found = np.full(target.shape, NO_TARGET, np.int64)
        for row, sequence in zip(found, lists, strict=True):
            row[: len(sequence) - 1] = sequence[1:]
        return found

    def _array(self, name: str, array: NDArray[np.generic], step: int) -> NDArray[np.generic]:
        rank = next((len(i.shape) for i in self.program.inputs if i.name == name), array.ndim)
        return array[step % len(array)] if array.ndim == rank + 1 and len(array) else array


def token_batches(program: Program, tokens: TokenLists, batch: int, arrays: Mapping[str, NDArray[np.generic]]) -> Batches:
    """Of sequences, each used whole. Raises UsageError where the step has no targets; InputError for fewer sequences than a step takes."""
    _refuse_no_targets(program, tokens)
    _refuse_outside(program, tokens)
    if len(tokens.lists) < batch:
        cure = f"say --batch {len(tokens.lists)}, or give more"
        raise InputError(f"{tokens.origin}: {len(tokens.lists)} sequences, fewer than the {batch} of a step; {cure}")
    return Batches(program, tokens, batch, arrays)


def _refuse_no_targets(program: Program, tokens: TokenLists) -> None:
    by_name: dict[str, Input] = {i.name: i for i in program.inputs}
    source, target = by_name.get(TOKENS), by_name.get(TARGETS)
    if source is None or target is None or source.shape != target.shape:
        missing = TOKENS if source is None else TARGETS
        there = ", ".join(f"{i.name}{list(i.shape)}" for i in program.inputs) or "none"
        cure = f"`train:` declares it, as `{TARGETS}: {{axes: b s, dtype: int32, range: -1 .. vocab - 1}}`; or give --input NAME=FILE"
        raise UsageError(
            f"{tokens.origin}: {program.path} has no input `{missing}` in the shape of `{TOKENS}`; its inputs: {there}; {cure}"
        )


def _refuse_outside(program: Program, tokens: TokenLists) -> None:
    """Raises InputError for the first id that the input does not take, in whatever step it would be read."""
    allowed = next(i.range for i in program.inputs if i.name == TOKENS)
    if allowed is None:
        return
    low, high = allowed
    for row, sequence in enumerate(tokens.lists):
        at = next((at for at, token in enumerate(sequence) if not low <= token <= high), None)
        if at is not None:
            cure = "the ids are another vocabulary's: take this model's own tokenizer"
            raise InputError(f"{tokens.origin}: element {at} of sequence {row} is {sequence[at]}, outside {low} .. {high}; {cure}")


def cut_text(ids: Sequence[int], seq: int, batch: int, origin: str) -> TokenLists:
    """A text's ids in sequences of `seq`, in order; what is left at the end is not used. Raises InputError for a text too short for a
    step.
    """
    count = len(ids) // seq
    if count < batch:
        raise InputError(
            f"{origin}: {len(ids)} tokens, fewer than the {batch} × {seq} of a step; give a longer text, or a smaller --batch or --seq"
        )
    return TokenLists(tuple(tuple(ids[i * seq : (i + 1) * seq]) for i in range(count)), origin, encoded=True)
