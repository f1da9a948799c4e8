"""How a machine's disk is read best, and how fast it is in other ways: what a profile says under `disk:`.

In: figures, or a profile's YAML. Out: DiskReads. Plans know the links of a disk alone; whoever runs them reads as is written here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import parse_bytes, parse_rate
from einpage.memplan.machine.fields import ProfileField

ENGINES = ("io_uring", "preadv threads")
MOST_DEPTH = 4096
LEAST_BLOCK, MOST_BLOCK = 512, 1 << 30
"""Bytes; blocks are whole sectors."""
KEYS = frozenset(("engine", "depth", "block_bytes", "bytes_per_s"))
EXAMPLE = "{engine: io_uring, depth: 8, block_bytes: 1MiB, bytes_per_s: 2GB/s}"


@dataclass(frozen=True, slots=True)
class DiskReads:
    """One way to read."""

    engine: str
    depth: int
    """Transfers in flight."""
    block_bytes: int
    """The most that one transfer has."""
    bytes_per_s: float
    """Median."""


def disk_reads_of(field: ProfileField) -> tuple[DiskReads, ...]:
    """The ways that a profile lists. Raises UsageError."""
    ways = tuple(_way(entry) for entry in field.items("ways to read, the best first", EXAMPLE))
    if not ways:
        raise UsageError(f"{field.what} is empty; it is a list of ways to read, the best first, as in {EXAMPLE}")
    return ways


def disk_reads_values(ways: tuple[DiskReads, ...]) -> list[Mapping[str, Any]]:
    """As a profile lists them."""
    return [asdict(way) for way in ways]


def _way(entry: ProfileField) -> DiskReads:
    found = entry.fields()
    if set(found) != KEYS:
        raise UsageError(f"{entry.what} has {', '.join(sorted(found)) or 'nothing'}; write it as {EXAMPLE}")
    engine = found["engine"].text()
    if engine not in ENGINES:
        raise UsageError(f"{found['engine'].what} is {engine!r}; it is one of {', '.join(ENGINES)}")
    block = parse_bytes(*found["block_bytes"].amount())
    if not LEAST_BLOCK <= block <= MOST_BLOCK or block % LEAST_BLOCK:
        raise UsageError(f"{found['block_bytes'].what} is {block}; it must be a multiple of {LEAST_BLOCK} up to {MOST_BLOCK}")
    return DiskReads(engine, found["depth"].whole(1, MOST_DEPTH), block, parse_rate(*found["bytes_per_s"].amount()))
