"""What runs before the first pass of a loop over three places: weights come from the disk to where the loop begins with them.

In: a loop whose host is a tier. Out: a plan without tasks, in the same arenas, that begins with the disk alone and ends as the loop begins.
Residents of the device come first, over all of the host that inputs do not have; then those of the host, at their own offsets.

    disk     w1 w3 w6 w2 w8                      host   | inputs | w1 w3 |w6 ...   ring, until the device has all of its own
    device   w1 w3 w6                                   | inputs |       w2  w8    then the host's residents
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from einpage.einsum_front.base.units import aligned
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.memplan.graph.arena import Arena
from einpage.memplan.graph.memgraph import MemGraph, Residency, ResidencyId
from einpage.memplan.graph.recorder import Recorder
from einpage.memplan.machine.places import DEVICE, DISK, HOST, SECTOR


def prologue(loop: MemGraph) -> MemGraph:
    """The plan that loads what `loop`, one with a disk, begins with."""
    assert loop.loops and loop.has_disk, "what does not end as it began, on three places, has no prologue"
    start = [loop.residencies[r] for r in loop.start]
    on_disk = {r.tensor: r for r in start if r.place == DISK}
    graph = _without_tasks(loop.graph)
    recorder, host = Recorder(graph), Arena(loop.host_bytes, SECTOR)
    stored = {t: recorder.residency(t, DISK, r.extents[0].offset) for t, r in on_disk.items()}
    for r in start:
        if r.place == HOST and r.tensor not in on_disk:
            host.allocate_at(r.extents[0].offset, aligned(r.extents[0].nbytes, SECTOR), r.tensor)
    landed: deque[tuple[int, ResidencyId]] = deque()
    end = []

    def free_oldest() -> None:
        at, landing = landed.popleft()
        host.release(at, recorder.free(landing))

    for r in _by_disk(start, DEVICE, on_disk):
        skew = on_disk[r.tensor].extents[0].offset % SECTOR
        nbytes = aligned(skew + r.extents[0].nbytes, SECTOR)
        while (at := host.find(nbytes)) is None:
            free_oldest()
        landing = recorder.move(stored[r.tensor], HOST, at + skew, host.allocate(at, nbytes, r.tensor))
        landed.append((at, landing))
        end.append(recorder.move(landing, DEVICE, r.extents[0].offset, ()))
    while landed:
        free_oldest()
    for r in _by_disk(start, HOST, on_disk):
        offset = r.extents[0].offset
        at = offset // SECTOR * SECTOR
        after = host.allocate_at(at, aligned(offset - at + r.extents[0].nbytes, SECTOR), r.tensor)
        end.append(recorder.move(stored[r.tensor], HOST, offset, after))
    return replace(
        loop,
        graph=graph,
        residencies=recorder.residencies.finish(),
        nodes=recorder.nodes.finish(),
        edges=recorder.edges.finish(),
        start=tuple(stored.values()),
        end=tuple(end),
        loops=False,
    )


def _by_disk(start: list[Residency], place: object, on_disk: dict[TensorId, Residency]) -> list[Residency]:
    """What the disk has and is at `place` where the loop begins, in the order of the disk."""
    there = [r for r in start if r.place == place and r.tensor in on_disk]
    return sorted(there, key=lambda r: on_disk[r.tensor].extents[0].offset)


def _without_tasks(graph: TaskGraph) -> TaskGraph:
    """The tensors of `graph`, of which none is asked for."""
    tensors = tuple(replace(t, kind=Kind.ACTIVATION) if t.kind is Kind.OUTPUT else t for t in graph.tensors)
    return replace(graph, tensors=tensors, tasks=(), ops=(), outputs=())
