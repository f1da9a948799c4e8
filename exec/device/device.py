"""A device: what turns the nodes of a MemGraph into actions.

A dispatcher decides when a node runs; the device does it and counts the bytes it really moved. One engine thread at a time calls
`compute`, one the host → device transfers, one the device → host transfers; `free` is called by whoever finished last. Everything slow
(views, kernels) is made when the device is made, before any clock starts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.graph.packed import COMPUTE, FREE, GATHER, MOVE

Action: TypeAlias = Callable[[NodeId], None]


class Device(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def arena_bytes(self) -> int:
        """Device memory under the plan's control."""

    @property
    def outside_arena_bytes(self) -> int:
        """The most device memory ever in use besides the arena: temporaries of kernels, the device's own buffers."""

    @property
    def h2d_bytes(self) -> int:
        """Bytes moved host → device since `begin`."""

    @property
    def d2h_bytes(self) -> int:
        """Bytes moved device → host since `begin`."""

    def begin(self) -> None:
        """Called before each run: forget what was counted."""

    def enter(self) -> None:
        """Called on each engine's thread before its first node: what the thread itself must be told."""

    def bring(self) -> None:
        """Before the first of several passes: put what is on the device at the start where it lies. Not counted."""

    def compute(self, node: NodeId) -> None:
        """Run a Compute."""

    def copy(self, node: NodeId) -> None:
        """Run a Move."""

    def gather(self, node: NodeId) -> None:
        """Run a HostGather."""

    def free(self, node: NodeId) -> None:
        """Told that a residency's contents ended."""


def actions(device: Device) -> tuple[Action, ...]:
    """For each kind of node, as Nodes.kind says it, the method of `device` that runs it."""
    by_kind: dict[int, Action] = {COMPUTE: device.compute, GATHER: device.gather, MOVE: device.copy, FREE: device.free}
    return tuple(by_kind[kind] for kind in range(len(by_kind)))


def nothing() -> None:
    """Does nothing."""
