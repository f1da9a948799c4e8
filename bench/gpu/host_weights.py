"""Seeded random weights made once and held in host memory, so that every run and every peer in a process reads the same bytes.

In: a model opened with `random:SEED`. Out: the same model whose checkpoint is in memory, fp16, element for element what the run would have
read. Blocks are made by several threads: numpy's bit generators and torch's casts let go of the interpreter's lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from einpage.checkpoints.files.checkpoint import Checkpoint, StoredAt, StoredBytes, WeightRows, rows_and_columns
from einpage.checkpoints.match.resolve import Resolved
from einpage.einsum_front.base.dtype import BlockFormat
from einpage.exec.measure.cpu import cores
from einpage.exec.planning.model import Model

BLOCK_ELEMENTS = 1 << 18
"""As much as RandomWeights makes at once; all of it stays in a cache."""


@dataclass(frozen=True, slots=True)
class HostWeights:
    """A Checkpoint whose tensors lie in memory."""

    tensors: Mapping[str, tuple[int, ...]]
    values: Mapping[str, Tensor]
    """By name, in the checkpoint's shapes."""
    damage: tuple[str, ...] = ()

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
        raise AssertionError(f"{name} is numbers")

    def give_to(self, model: Model) -> Model:
        """`model`, of the same sizes, over these weights."""
        assert model.resolved is not None
        return replace(model, resolved=Resolved(self, model.resolved.source_by_weight))

    def read_rows(self, name: str, start: int, stop: int) -> WeightRows:
        rows: WeightRows = self.values[name].view(rows_and_columns(self.tensors[name]))[start:stop].numpy()
        return rows


def in_host_memory(model: Model) -> HostWeights:
    """The weights of `model`, made."""
    assert model.resolved is not None
    source = model.resolved.checkpoint
    names = sorted({s.name for s in model.resolved.source_by_weight.values()})
    values = {name: torch.empty(source.tensors[name], dtype=torch.float16) for name in names}
    host_weights = HostWeights({name: source.tensors[name] for name in names}, values)

    def make(piece: tuple[str, int, int]) -> None:
        name, start, stop = piece
        target = values[name].view(rows_and_columns(source.tensors[name]))[start:stop]
        target.copy_(torch.from_numpy(source.read_rows(name, start, stop)))

    with ThreadPoolExecutor(cores(), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in pool.map(make, _pieces(source, names)):
            pass
    return host_weights


def _pieces(source: Checkpoint, names: list[str]) -> list[tuple[str, int, int]]:
    found = []
    for name in names:
        rows, columns = rows_and_columns(source.tensors[name])
        step = max(1, BLOCK_ELEMENTS // max(1, columns))
        found += [(name, start, min(rows, start + step)) for start in range(0, rows, step)]
    return found
