"""How long each engine works at least, with the longest chains before its first node and after its last.

In: a TaskGraph, a Machine, what the device holds at the start. Out: seconds by engine, and the critical path. They hold for the tasks at
hand in every order.
"""

from __future__ import annotations

from collections.abc import Collection

from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TaskGraph, TensorId
from einpage.memplan.bounds.limit import Limit
from einpage.memplan.machine.machine import Machine, all_task_seconds
from einpage.memplan.machine.places import Queue


class EngineBounds:
    """Times for the tasks at hand: of each task and load, and of the longest chains before and after them."""

    def __init__(self, graph: TaskGraph, machine: Machine, resident: Collection[TensorId]) -> None:
        self.graph, self.machine = graph, machine
        self.seconds = all_task_seconds(machine, graph)
        self.device_tasks = [t for t in graph.tasks if not t.gathers]
        self.gathers = [t for t in graph.tasks if t.gathers]
        self.loads = dict.fromkeys(t for task in self.device_tasks for t in task.reads() if graph.tensors[t].kind in HOST_AT_START)
        self.load_s = {t: 0.0 if t in resident else machine.link(Queue.H2D).seconds(graph.tensors[t].nbytes) for t in self.loads}
        self.load_s.update((t.result, self.seconds[t.id]) for t in self.gathers)
        self.loaded = [t for t in self.load_s if t not in resident]
        """What crosses the link to the device."""
        self.store_s = [machine.link(Queue.D2H).seconds(t.nbytes) if t.kind is Kind.OUTPUT else 0.0 for t in graph.tensors]
        self.down_s = self._down()

    def _down(self) -> list[float]:
        """[tensor] the longest chain of tasks and stores that starts once the tensor is on the device."""
        down = list(self.store_s)
        for task in reversed(self.device_tasks):
            after = self.seconds[task.id] + max(down[t] for t in task.results)
            for t in task.reads():
                down[t] = max(down[t], after)
        return down

    def busy(self, limit: Limit) -> float:
        """How long the engine behind a limit works at least: what decides between limits of equal length."""
        if limit == Queue.COMPUTE:
            return sum(self.seconds[t.id] for t in self.device_tasks)
        if limit == Queue.H2D:
            return sum(self.load_s.values())
        return sum(self.store_s) if limit == Queue.D2H else 0.0

    def bound(self, limit: Limit) -> float:
        """How long the engine works at least, with what must come before its first node and after its last."""
        if limit == Queue.COMPUTE:
            return self._compute_bound()
        if limit == Queue.H2D:
            return self._load_bound()
        return self._store_bound() if limit == Queue.D2H else 0.0

    def critical_path(self) -> float:
        """The longest chain: a load, then tasks, then a store."""
        chains = [seconds + self.down_s[t] for t, seconds in self.load_s.items()]
        rootless = [self.seconds[t.id] + max(self.down_s[r] for r in t.results) for t in self.device_tasks if not t.operands]
        return max(chains + rootless, default=0.0)

    def _compute_bound(self) -> float:
        """All tasks, after the loads of whichever comes first, before the store of whichever comes last."""
        read = {t for task in self.device_tasks for t in task.reads()}
        heads = [sum(self.load_s[t] for t in task.reads()) for task in self.device_tasks if all(t in self.load_s for t in task.reads())]
        tails = [max(self.store_s[t] for t in task.results) for task in self.device_tasks if read.isdisjoint(task.results)]
        return min(heads, default=0.0) + self.busy(Queue.COMPUTE) + min(tails, default=0.0)

    def _load_bound(self) -> float:
        """All first loads, before whatever must follow the last of them."""
        return self.busy(Queue.H2D) + min((self.down_s[t] for t in self.loaded), default=0.0)

    def _store_bound(self) -> float:
        """All stores of outputs, after whatever must come before the first of them."""
        ready = [0.0] * len(self.graph.tensors)
        for t in self.loads:
            ready[t] = self.load_s[t]
        for task in self.graph.tasks:
            done = self.seconds[task.id] + (0.0 if task.gathers else max((ready[t] for t in task.reads()), default=0.0))
            for t in task.results:
                ready[t] = done
        outputs = [t.id for t in self.graph.tensors if t.kind is Kind.OUTPUT]
        return self.busy(Queue.D2H) + min((ready[t] for t in outputs), default=0.0)
