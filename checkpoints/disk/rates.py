"""How fast the disk under a folder is read and written: by engine, by how many transfers are in flight, by how large they are.

In: a folder. Out: DiskRates. All ways read the same scratch file, one after the other, round after round, for the rates of a disk drift
two- and threefold within minutes: only what was measured side by side is compared. The way with the best median is the one to read by.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import perf_counter

import numpy as np

from einpage.checkpoints.disk.block_store import BlockStore, DiskExtent, DiskRead
from einpage.checkpoints.disk.direct_file import SECTOR, DirectFile, DiskError, full_or, open_scratch
from einpage.checkpoints.disk.engines import ENGINES, TransferOptions, make_engine
from einpage.checkpoints.disk.transfer import Engine, Transfer, TransferError, run_all

DEPTHS = (1, 2, 4, 8, 16)
BLOCKS = (256 << 10, 512 << 10, 1 << 20, 2 << 20)
"""Bytes."""
FILE_BYTES = 128 << 20
"""Of the scratch file."""
PART_BYTES = 16 << 20
"""Read in one sample."""
ROUNDS = 3
AS_FAST = 0.95
"""Of the best rate: what differs by less is not told apart."""
_OVERLAPPING_READS = 256
_SMALL_READS = 32
"""One after the other, for the latency."""
_LONE_BYTES = 256 << 10
"""Of each of these: as large as tiles usually are."""
_KERNEL_NUMBERS = 1 << 18
"""Of a kernel beside: it takes some 100 us, and stays in a cache."""


@dataclass(frozen=True, slots=True)
class DiskRates:
    """Medians."""

    read_bytes_per_s: tuple[tuple[TransferOptions, float], ...]
    """Each way that works here, the fastest first; of those that are as fast, by the engine to prefer with the most bytes in flight."""
    read_latency_s: float
    """Of a read with nothing else in flight, beyond its bytes' time, with all that a store does for it."""
    read_each_s: float
    """Of single sectors, as many in flight as are by the best way: from the end of one to the end of the next, with all that a store does
    for each while another thread computes, which wants the interpreter too."""
    write_bytes_per_s: float
    """By the fastest way to read."""
    write_latency_s: float

    @property
    def best(self) -> TransferOptions:
        """The way to read by."""
        return self.read_bytes_per_s[0][0]


def measured_rates(folder: Path, rounds: int = ROUNDS, file_bytes: int = FILE_BYTES) -> DiskRates:
    """Measure for a second or two. Raises DiskError."""
    file = open_scratch(folder, file_bytes)
    try:
        return _measured(file, file_bytes, rounds)
    except TransferError as error:
        raise full_or(f"{file.path}: cannot be measured", OSError(error.number, error.reason)) from error
    finally:
        file.close()


def _measured(file: DirectFile, file_bytes: int, rounds: int) -> DiskRates:
    part = min(PART_BYTES, file_bytes)
    with mmap.mmap(-1, part) as memory:
        data = np.frombuffer(memory, np.uint8)
        data[:] = np.arange(part // 4, dtype=np.uint32).view(np.uint8)
        address = data.ctypes.data
        del data
        writes = make_engine(TransferOptions())
        _timed(writes, file, address, file_bytes, part, TransferOptions(), writes=True)
        writes.close()
        choices = [TransferOptions(*way) for way in product(ENGINES, DEPTHS, BLOCKS) if way[2] <= part]
        seconds: dict[TransferOptions, list[float]] = {choice: [] for choice in choices}
        for number in range(rounds):
            for at, choice in enumerate(choices):
                engine = make_engine(choice)
                if engine.name == choice.engine:
                    start = (number * len(choices) + at) * part % (file_bytes - part + 1) // SECTOR * SECTOR
                    seconds[choice].append(_timed(engine, file, address, part, part, choice, start))
                engine.close()
        rates = [(choice, part / median(found)) for choice, found in seconds.items() if found]
        if not rates:
            raise DiskError(f"{file.path}: nothing reads it")
        as_fast = AS_FAST * max(rate for _, rate in rates)
        by_name = list(ENGINES)
        rates.sort(
            key=lambda rate: (
                (0, by_name.index(rate[0].engine), -rate[0].depth * rate[0].block_bytes) if rate[1] >= as_fast else (1, 0, -rate[1])
            )
        )
        best = rates[0][0]
        engine = make_engine(best)
        write_s = median(_timed(engine, file, address, file_bytes, part, best, writes=True) for _ in range(rounds))
        latency_s = median(_read_latency(engine, file, file_bytes, best, rates[0][1]) for _ in range(rounds))
        with _computing_beside():
            each_s = median(_each_seconds(engine, file, file_bytes, best) for _ in range(rounds))
        write_latency_s = _write_latency(engine, file, address, file_bytes)
        engine.close()
    return DiskRates(tuple(rates), latency_s, each_s, file_bytes / write_s, write_latency_s)


def _timed(
    engine: Engine, file: DirectFile, address: int, nbytes: int, part: int, choice: TransferOptions, start: int = 0, *, writes: bool = False
) -> float:
    """Seconds of `nbytes` from `start` on, by turns through the same `part` bytes of memory."""
    step = min(choice.block_bytes, part)
    transfers = [
        Transfer(file.fd, at, address + (at - start) % part, n, n, writes)
        for at in range(start, start + nbytes, step)
        for n in (min(step, start + nbytes - at),)
    ]
    began = perf_counter()
    run_all(engine, transfers)
    return perf_counter() - began


@contextmanager
def _computing_beside() -> Iterator[None]:
    """While kernels run on another thread, as they do in a run: short ones, between which it wants the interpreter."""
    is_over = Event()

    def compute() -> None:
        data = np.ones(_KERNEL_NUMBERS, np.float32)
        while not is_over.is_set():
            np.multiply(data, 1.0, out=data)

    thread = Thread(target=compute, name="einpage-beside")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _store_reads(
    engine: Engine, file: DirectFile, file_bytes: int, choice: TransferOptions, nbytes: int, count: int
) -> tuple[BlockStore, list[DiskRead]]:
    """So many reads of so many bytes each, spread over the file, by a store, which takes sums of what it reads, as runs do."""
    store = BlockStore([(0, file)], None, engine, engine, choice)
    stride = max(SECTOR, file_bytes // count // SECTOR * SECTOR)
    memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    reads = [store.prepared([DiskExtent(at, nbytes, memory)]) for at in range(0, file_bytes - nbytes + 1, stride)]
    return store, reads


def _each_seconds(engine: Engine, file: DirectFile, file_bytes: int, choice: TransferOptions) -> float:
    """Seconds from one small read to the next, as many in flight as there may be."""
    store, reads = _store_reads(engine, file, file_bytes, choice, SECTOR, _OVERLAPPING_READS)
    began, ended = perf_counter(), 0
    for read in reads:
        store.begin(read)
    while ended < len(reads):
        ended += len(store.ended())
    return (perf_counter() - began) / len(reads)


def _read_latency(engine: Engine, file: DirectFile, file_bytes: int, choice: TransferOptions, bytes_per_s: float) -> float:
    """Seconds that a read with nothing else in flight takes beyond its bytes' time: the disk's latency, and all that a store does. As much
    as a sector's takes at least: the rate was measured before, and the disk may have become faster."""
    nbytes = min(_LONE_BYTES, file_bytes)
    lone_s, sector_s = (_lone_seconds(engine, file, file_bytes, choice, n) for n in (nbytes, SECTOR))
    return max(sector_s, lone_s - nbytes / bytes_per_s)


def _lone_seconds(engine: Engine, file: DirectFile, file_bytes: int, choice: TransferOptions, nbytes: int) -> float:
    """Seconds of a read of so many bytes with nothing else in flight."""
    store, reads = _store_reads(engine, file, file_bytes, choice, nbytes, _SMALL_READS)
    found = []
    for read in reads:
        began = perf_counter()
        store.run(read)
        found.append(perf_counter() - began)
    return median(found)


def _write_latency(engine: Engine, file: DirectFile, address: int, file_bytes: int) -> float:
    stride = max(SECTOR, file_bytes // _SMALL_READS // SECTOR * SECTOR)
    found = []
    for at in range(0, file_bytes - SECTOR + 1, stride):
        began = perf_counter()
        run_all(engine, [Transfer(file.fd, at, address, SECTOR, SECTOR, True)])
        found.append(perf_counter() - began)
    return median(found)
