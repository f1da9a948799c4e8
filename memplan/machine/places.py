"""Where bytes can be, and what carries them from one place to another.

A Place is a memory with an arena of its own. A Queue is an engine that works one node after another: the computes of the device, or the
copies from one place to another. A Link is how fast such copies are. A third place is a Place, a Link in a machine's profile and the moves
of a plan: nothing here or above counts to two.

    disk ──► host ──► device        queues: disk_to_host, h2d, d2h and compute
              ▲────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class PlaceKind(Enum):
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Place:
    kind: PlaceKind
    index: int = 0

    def __str__(self) -> str:
        return f"{self.kind.value} {self.index}" if self.index else self.kind.value


DEVICE = Place(PlaceKind.DEVICE)
HOST = Place(PlaceKind.HOST)
DISK = Place(PlaceKind.DISK)
SECTOR = 512
"""Bytes: a disk reads and writes whole sectors, from memory that begins where one does."""


@dataclass(frozen=True, slots=True)
class Queue:
    """The engine of all nodes that work from `source` to `target`; computes work on the device alone. A Free occupies none."""

    source: Place
    target: Place

    COMPUTE: ClassVar[Queue]
    H2D: ClassVar[Queue]
    D2H: ClassVar[Queue]
    READ: ClassVar[Queue]
    WRITE: ClassVar[Queue]

    @property
    def title(self) -> str:
        """As pictures write it: `compute`, `H2D copies`, or `disk → host` and the like."""
        return _TITLE_BY_QUEUE.get(self) or f"{self.source} → {self.target}"

    @property
    def name(self) -> str:
        """As reports, traces and messages write it: `compute`, `h2d`, `d2h`, or `disk_to_host` and the like."""
        return _NAME_BY_QUEUE.get(self) or f"{self.source}_to_{self.target}".replace(" ", "")


Queue.COMPUTE = Queue(DEVICE, DEVICE)
Queue.H2D = Queue(HOST, DEVICE)
Queue.D2H = Queue(DEVICE, HOST)
Queue.READ = Queue(DISK, HOST)
Queue.WRITE = Queue(HOST, DISK)

_NAME_BY_QUEUE = {Queue.COMPUTE: "compute", Queue.H2D: "h2d", Queue.D2H: "d2h"}
_TITLE_BY_QUEUE = {Queue.COMPUTE: "compute", Queue.H2D: "H2D copies", Queue.D2H: "D2H copies"}

ENGINES = (Queue.COMPUTE, Queue.H2D, Queue.D2H)
"""The queues that every plan has, whether it uses them or not: their positions here are their numbers in flat arrays."""


@dataclass(frozen=True, slots=True)
class Link:
    """Copies on one queue."""

    queue: Queue
    bytes_per_s: float
    """Sustained."""
    latency_s: float = 0.0
    """Per copy."""
    each_s: float = 0.0
    """Of copies that overlap: at least so long after the end of one ends the next, however small they are."""

    @property
    def overlaps(self) -> bool:
        """Whether its copies do: those from and to a disk."""
        return DISK in (self.queue.source, self.queue.target)

    def seconds(self, nbytes: int) -> float:
        """Time of one copy."""
        return self.latency_s + self.overlapped_seconds(nbytes)

    def overlapped_seconds(self, nbytes: int) -> float:
        """After the end of the copy before it, where it began early enough."""
        return max(self.each_s, nbytes / self.bytes_per_s)


def host_links(h2d_bytes_per_s: float, d2h_bytes_per_s: float, latency_s: float = 0.0) -> tuple[Link, Link]:
    """The two directions between the host and the device."""
    return Link(Queue.H2D, h2d_bytes_per_s, latency_s), Link(Queue.D2H, d2h_bytes_per_s, latency_s)
