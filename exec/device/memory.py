"""The memory in which plans run: the host's arena and the device's, and which plan ran there last.

In: the host's arena, how many bytes the device's has. Devices of plans that run in turns share one: what a plan leaves on the device is
there for the next, fresh pages are backed once, and host memory is registered once. `ran` is the plan whose end the device's arena is in;
None where no plan ran, or one did not end.

    LoadedModel ──► memory ◄── device of the plan for prompts          one at a time
                           ◄── device of the plan for a bucket
"""

from __future__ import annotations

import mmap

import numpy as np
import torch

from einpage.exec.device.arena import HostArena, MappedArena, used_extents
from einpage.exec.device.device import left_there
from einpage.exec.device.driver import Driver
from einpage.memplan.graph.memgraph import MemGraph, ResidencyId


class Memory:
    """Of either kind of device."""

    def __init__(self, host: HostArena, nbytes: int) -> None:
        self.host, self.nbytes = host, nbytes
        self.ran: MemGraph | None = None

    def has(self, memgraph: MemGraph) -> frozenset[ResidencyId]:
        """Of the residents that `memgraph` begins with: those that are there."""
        return frozenset() if self.ran is None else left_there(self.ran, memgraph)

    def close(self) -> None:
        """Give back what the device holds of the host; nothing runs afterwards."""


class CpuMemory(Memory):
    """Two arenas of this process."""

    def __init__(self, host: HostArena, nbytes: int) -> None:
        """Raises MemoryError."""
        super().__init__(host, nbytes)
        self.device = MappedArena(nbytes)
        self._is_backed = np.zeros(-(-nbytes // mmap.PAGESIZE), bool)
        """[page] of the device's arena."""

    def back(self, memgraph: MemGraph) -> None:
        """Back the pages that `memgraph` uses and no plan before did: the first write to a fresh page takes 20 times the second."""
        for extent in used_extents(memgraph):
            pages = np.arange(extent.offset // mmap.PAGESIZE, -(-extent.end // mmap.PAGESIZE))
            fresh = pages[~self._is_backed[pages]]
            self.device.touch(fresh)
            self._is_backed[fresh] = True


class StreamMemory(Memory):
    """Registered host memory, and one allocation of a driver's."""

    def __init__(self, host: HostArena, driver: Driver, nbytes: int) -> None:
        """Raises what the driver does where either is not to be had."""
        super().__init__(host, nbytes)
        self.driver, self.host_bytes = driver, host.whole()
        self._is_pinned = host.nbytes > 0
        if self._is_pinned:
            driver.pin(self.host_bytes)
        try:
            self.device: torch.Tensor = driver.allocate(nbytes)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unpin the host's arena."""
        if self._is_pinned:
            self._is_pinned = False
            self.driver.unpin(self.host_bytes)
