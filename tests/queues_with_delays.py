"""First-in-first-out queues under random delays, and whether they come to a standstill: what a plan is run by, without the bytes.

Each queue takes its items in the order that it is given; an item begins when it is at the head of its queue, all that it waits for is done,
and after a random delay. What it waits for is any relation: also one that points backwards, as no plan's edges do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from random import Random
from typing import TypeAlias

from einpage.memplan.graph.memgraph import MemGraph, NodeId
from einpage.memplan.machine.places import Queue

Waits: TypeAlias = Mapping[int, Sequence[int]]
"""By item, what has to be done before it begins."""


def ended(queues: Sequence[Sequence[int]], free: Sequence[int], waits: Waits, seed: int) -> list[int]:
    """The items that are done when nothing moves any more, as they ended; `free` ones are in no queue and take no time."""
    rng, now, done, order = Random(seed), 0.0, set[int](), list[int]()
    left, heads, busy = set(free), [0] * len(queues), [False] * len(queues)
    active: list[tuple[float, int, int]] = []

    def finish(item: int) -> None:
        done.add(item)
        order.append(item)

    while True:
        moved = True
        while moved:
            moved = False
            for item in sorted(left):
                if all(before in done for before in waits.get(item, ())):
                    left.remove(item)
                    finish(item)
                    moved = True
        for number, queue in enumerate(queues):
            if busy[number] or heads[number] == len(queue):
                continue
            item = queue[heads[number]]
            if all(before in done for before in waits.get(item, ())):
                heappush(active, (now + rng.expovariate(1.0), number, item))
                busy[number] = True
        if not active:
            return order
        now, number, item = heappop(active)
        finish(item)
        heads[number] += 1
        busy[number] = False


def queues_of_plan(made: MemGraph) -> tuple[dict[Queue, list[int]], list[int], dict[int, list[int]]]:
    """The queues of a plan in node order, its Frees, and what each node waits for."""
    queues: dict[Queue, list[int]] = {}
    free = []
    for n in range(len(made.nodes)):
        queue = made.queue(NodeId(n))
        if queue is None:
            free.append(n)
        else:
            queues.setdefault(queue, []).append(n)
    waits: dict[int, list[int]] = {}
    for source, target in zip(made.edges.source.tolist(), made.edges.target.tolist(), strict=True):
        waits.setdefault(target, []).append(source)
    return queues, free, waits
