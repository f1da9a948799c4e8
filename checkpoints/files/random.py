"""Seeded random weights as a Checkpoint: for benchmarks, and for models whose files one does not have.

Every element follows from (seed, tensor name, its place) alone: rows come in fixed blocks, each from its own stream
of raw bits, so reading rows [a, b) gives the same as slicing them from the whole, in any order, on any machine.
Matrices are uniform with variance 1 / fan-in (the product of all dimensions but the first), which keeps activations
near 1; vectors, being mostly gains of norms, are 1 with a little noise. Only raw bits are taken from numpy, whose
streams, unlike its distributions, are promised never to change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from math import prod, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.files.checkpoint import StoredAt, StoredBytes, WeightRows, rows_and_columns
from einpage.einsum_front.base.dtype import BlockFormat
from einpage.einsum_front.graph.program import Weight

_BLOCK_ELEMENTS = 1 << 18
"""Elements in a block, where its rows are not longer than that."""
_NOISE_OF_VECTORS = 0.02


@dataclass(frozen=True, slots=True)
class RandomWeights:
    seed: int
    tensors: Mapping[str, tuple[int, ...]]
    """Empty until `declare` has said what the spec wants."""
    damage: tuple[str, ...] = ()

    def declare(self, weights: tuple[Weight, ...]) -> RandomWeights:
        """The same seed, holding the first source of each weight."""
        shapes: dict[str, tuple[int, ...]] = {}
        for weight in weights:
            source = weight.sources[0]
            shapes[source.name] = tuple(prod(weight.shape[d] for d in group) for group in source.groups)
        return replace(self, tensors=shapes)

    def config(self) -> Mapping[str, object]:
        return {}

    def fault(self, name: str) -> str | None:
        return None

    def block_format(self, name: str) -> BlockFormat | None:
        return None

    def file_of(self, name: str) -> Path | None:
        return None

    def stored_at(self, name: str) -> StoredAt | None:
        return None

    def read_stored(self, name: str, start: int, end: int) -> StoredBytes:
        raise AssertionError(f"{name} is stored nowhere")

    def read_rows(self, name: str, start: int, end: int) -> WeightRows:
        shape = self.tensors[name]
        rows, columns = rows_and_columns(shape)
        assert 0 <= start <= end <= rows, f"{name}: rows {start}:{end} of {rows}"
        out = np.empty((end - start, columns), np.float32)
        block_rows = max(1, _BLOCK_ELEMENTS // max(1, columns))
        for block in range(start // block_rows, -(-end // block_rows)):
            first = block * block_rows
            bits = self._bits(name, block, min(block_rows, rows - first) * columns).reshape(-1, columns)
            a, b = max(start, first), min(end, first + len(bits))
            # Odd multiples of half a step: symmetric about 0, and never 0 itself.
            np.add(bits[a - first : b - first], np.float32(0.5), out=out[a - start : b - start], dtype=np.float32)
        spread = 1 / sqrt(max(1, prod(shape[1:]))) if len(shape) > 1 else _NOISE_OF_VECTORS
        out *= np.float32(spread * sqrt(3) / (1 << 15))
        if len(shape) < 2:
            out += np.float32(1)
        return out

    def _bits(self, name: str, block: int, count: int) -> NDArray[np.int16]:
        key = blake2b(f"{self.seed}\0{name}\0{block}".encode(), digest_size=16).digest()
        stream = np.random.SFC64(int.from_bytes(key, "little"))
        return stream.random_raw(-(-count // 4)).astype("<u8", copy=False).view("<i2")[:count]
