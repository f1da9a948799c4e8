"""Which engine does the transfers: io_uring where the system lets us, threads elsewhere, or the one that a measurement chose.

In: a TransferOptions, of a machine profile or the default. Out: an Engine. Where the chosen one does not work here, the other serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from einpage.checkpoints.disk.ring import RingEngine
from einpage.checkpoints.disk.threads import ThreadEngine
from einpage.checkpoints.disk.transfer import Engine

ENGINES: Mapping[str, Callable[[int], Engine]] = {RingEngine.name: RingEngine, ThreadEngine.name: ThreadEngine}
"""By name, the one to prefer first."""


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """How files are read."""

    engine: str = RingEngine.name
    depth: int = 8
    """Transfers in flight."""
    block_bytes: int = 1 << 20
    """The most that one transfer has."""


def make_engine(choice: TransferOptions) -> Engine:
    """The engine that `choice` names, or the next that works."""
    for name in sorted(ENGINES, key=lambda name: name != choice.engine):
        with suppress(OSError):
            return ENGINES[name](choice.depth)
    raise AssertionError("threads work everywhere")
