"""How fast is a pinned arena filled, against what this machine copies? Both in one run, side by side.

    python -m bench.host_memory [--gib 2] [--rounds 3]

The arena is what a run on a GPU has: anonymous memory on huge pages. It is filled by `fill`, as runs fill theirs, from a checkpoint whose
rows are in memory (so that no disk and no random number is measured) and from seeded random weights; fresh, and again, as an arena that is
kept between runs is. The yardsticks are two threads that copy the same rows in blocks of the same size, into fresh memory with 4 KiB pages,
into fresh memory with huge pages, and into memory that is backed already. Rates count bytes written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np
import torch

from bench.gpu.host_weights import HostWeights
from bench.gpu.mapped import huge_bytes
from einpage.checkpoints.files.checkpoint import Checkpoint, WeightRows
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.match.resolve import Resolved
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Source
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, Tensor, TensorId, Value
from einpage.exec.device.arena import HostArena
from einpage.exec.device.stream_memory import backed
from einpage.exec.load.fill import fill
from einpage.exec.system.process_memory import peak_resident_bytes
from einpage.memplan.graph.memgraph import Extent, Offset

COLUMNS = 4096
ROWS = 16384
"""Of a weight: 128 MiB in fp16."""
BLOCK = 1 << 20
"""Bytes of one copy of a yardstick: as much as `fill` writes at once in fp16."""
GIB = 1 << 30


def graph_of(count: int) -> TaskGraph:
    """So many weights, each in one tile."""
    box = Box((0, 0), (ROWS, COLUMNS))
    names = [f"w{i}" for i in range(count)]
    values = tuple(Value(n, n, (ROWS, COLUMNS), DType.FP16, Kind.WEIGHT) for n in names)
    tiles = tuple(Tensor(TensorId(i), n, n, box, DType.FP16, Kind.WEIGHT) for i, n in enumerate(names))
    return TaskGraph("arena", DType.FP16, (), values, tiles, (), (), ())


def resolved(checkpoint: Checkpoint) -> Resolved:
    return Resolved(checkpoint, {name: Source(name, ((0,), (1,))) for name in checkpoint.tensors})


def filled_seconds(arena: HostArena, checkpoint: Checkpoint) -> float:
    """What it takes to fill the arena with the checkpoint's tensors."""
    graph = graph_of(len(checkpoint.tensors))
    nbytes = ROWS * COLUMNS * 2
    slots = {t.id: arena.view(Extent(Offset(t.id * nbytes), Nbytes(nbytes)), (ROWS, COLUMNS), DType.FP16) for t in graph.tensors}
    began = perf_counter()
    assert fill(graph, resolved(checkpoint), slots) == ()
    return perf_counter() - began


def copied_seconds(arena: HostArena, rows: WeightRows, threads: int = 2) -> float:
    """What it takes so many threads to copy the rows into the arena, again and again until it is full."""
    target = arena.bytes(Extent(Offset(0), Nbytes(arena.nbytes)))
    source = rows.view(np.uint8).reshape(-1)

    def copy(start: int) -> None:
        at = start % source.nbytes
        np.copyto(target[start : start + BLOCK], source[at : at + BLOCK])

    with ThreadPoolExecutor(threads) as pool:
        began = perf_counter()
        for _ in pool.map(copy, range(0, arena.nbytes, BLOCK)):
            pass
        return perf_counter() - began


@dataclass(frozen=True, slots=True)
class Rates:
    """Bytes/s, each the median of several rounds; the shares are of the last."""

    copied_small_pages: float
    copied_fresh: float
    copied_backed: float
    filled_fresh: float
    filled_again: float
    random_fresh: float
    huge_share: float
    second_copy_bytes: int
    """By how much more than an arena of this size that was there before the process grew while it was filled."""


def measured(gib: float, rounds: int, *, with_random: bool = True) -> Rates:
    """Of an arena of about so many GiB."""
    count = max(1, round(gib * GIB / (ROWS * COLUMNS * 2)))
    nbytes = count * ROWS * COLUMNS * 2
    rows = np.random.default_rng(0).standard_normal((ROWS, COLUMNS), np.float32).astype(np.float16)
    shapes = {f"w{i}": (ROWS, COLUMNS) for i in range(count)}
    in_memory = HostWeights(shapes, dict.fromkeys(shapes, torch.from_numpy(rows)))
    random = RandomWeights(0, shapes)
    taken: dict[str, list[float]] = {}
    share, more = 0.0, 0

    def note(name: str, call: Callable[[], float]) -> None:
        taken.setdefault(name, []).append(nbytes / call())

    backed(HostArena(nbytes, huge=True).whole())  # what a virtual machine never touched takes 5 s a GiB, once, whoever comes first
    for _ in range(rounds):
        before = peak_resident_bytes()
        arena = HostArena(nbytes, huge=True)
        note("filled_fresh", lambda: filled_seconds(arena, in_memory))  # noqa: B023
        share, more = (huge_bytes(arena.whole()) or 0) / nbytes, max(more, peak_resident_bytes() - before)
        assert torch.equal(arena.whole()[: rows.nbytes], torch.from_numpy(rows).view(torch.uint8).view(-1))
        note("filled_again", lambda: filled_seconds(arena, in_memory))  # noqa: B023
        note("copied_backed", lambda: copied_seconds(arena, rows))  # noqa: B023
        del arena
        for name, huge in (("copied_fresh", True), ("copied_small_pages", False)):
            arena = HostArena(nbytes, huge=huge)
            note(name, lambda: copied_seconds(arena, rows))  # noqa: B023
            del arena
        if with_random:
            arena = HostArena(nbytes, huge=True)
            note("random_fresh", lambda: filled_seconds(arena, random))  # noqa: B023
            del arena
    rates = {name: median(found) for name, found in taken.items()}
    return Rates(**{"random_fresh": 0.0, **rates}, huge_share=share, second_copy_bytes=more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-random", action="store_true")
    asked = parser.parse_args()
    found = measured(asked.gib, asked.rounds, with_random=not asked.no_random)
    print(f"{asked.gib:g} GiB of anonymous memory, {asked.rounds} rounds, medians, GB/s written")
    for name, rate in (
        ("two threads copy, fresh, 4 KiB pages", found.copied_small_pages),
        ("two threads copy, fresh, huge pages", found.copied_fresh),
        ("two threads copy, backed", found.copied_backed),
        ("fill, fresh", found.filled_fresh),
        ("fill, the arena kept", found.filled_again),
        ("fill with random weights, fresh", found.random_fresh),
    ):
        print(f"  {name:40s} {rate / 1e9:6.2f}")
    print(f"fill ÷ copy         fresh {found.filled_fresh / found.copied_fresh:.2f}, kept {found.filled_again / found.copied_backed:.2f}")
    print(f"on huge pages       {found.huge_share:.1%} of the arena; grew by {found.second_copy_bytes >> 20} MiB beside it")


if __name__ == "__main__":
    main()
