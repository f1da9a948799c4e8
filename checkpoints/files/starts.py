"""A checkpoint and, beside it, what weights start as that it does not have: factors that are to be trained.

In: a Checkpoint, and weights with `start:`. Out: a Checkpoint that has them too, under the first of their names: filled with a number, or
random as RandomWeights are, with the same seed whatever the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from einpage.checkpoints.files.checkpoint import Checkpoint, StoredAt, StoredBytes, WeightRows, rows_and_columns
from einpage.checkpoints.files.random import RandomWeights
from einpage.einsum_front.base.dtype import BlockFormat
from einpage.einsum_front.graph.program import Weight

SEED = 0


@dataclass(frozen=True)
class WithStarts:
    base: Checkpoint
    filled: Mapping[str, float]
    """The number of every element, by name."""
    random: RandomWeights
    """The others, and the shapes of all."""

    @cached_property
    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        return {**self.base.tensors, **self.random.tensors}

    @property
    def damage(self) -> tuple[str, ...]:
        return self.base.damage

    def config(self) -> Mapping[str, object]:
        return self.base.config()

    def fault(self, name: str) -> str | None:
        return None if name in self.random.tensors else self.base.fault(name)

    def block_format(self, name: str) -> BlockFormat | None:
        return None if name in self.random.tensors else self.base.block_format(name)

    def file_of(self, name: str) -> Path | None:
        return None if name in self.random.tensors else self.base.file_of(name)

    def stored_at(self, name: str) -> StoredAt | None:
        return None if name in self.random.tensors else self.base.stored_at(name)

    def read_stored(self, name: str, start: int, end: int) -> StoredBytes:
        return self.base.read_stored(name, start, end)

    def read_rows(self, name: str, start: int, end: int) -> WeightRows:
        if name in self.filled:
            return np.full((end - start, rows_and_columns(self.tensors[name])[1]), self.filled[name], np.float32)
        return (self.random if name in self.random.tensors else self.base).read_rows(name, start, end)


def with_starts(checkpoint: Checkpoint, weights: tuple[Weight, ...]) -> Checkpoint:
    """`checkpoint` with those of `weights` that it does not have and that say what they start as."""
    lacking = tuple(w for w in weights if w.start is not None and not any(s.name in checkpoint.tensors for s in w.sources))
    if not lacking:
        return checkpoint
    filled = {w.sources[0].name: w.start for w in lacking if isinstance(w.start, int | float)}
    return WithStarts(checkpoint, filled, RandomWeights(SEED, {}).declare(lacking))
