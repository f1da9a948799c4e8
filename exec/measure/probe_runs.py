"""Runs of a small model, in which every node is timed: what kernels take among others, as in any run, alone and beside copies.

In: a Machine of which the best rates are known. Out: samples, one a node, of a model with as many tokens as there are rows to know. All its
weights are on the device, so that nothing is copied but by a thread that this file starts. Its sizes are those of no model; its weights are
more than caches hold, as weights are.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from heapq import heappop, heappush
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.device.arena import HostArena, MappedArena, host_copies
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.dispatch.dynamic import DynamicDispatcher
from einpage.exec.dispatch.engine import Measured
from einpage.exec.planning.judged_plan import Planned, plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.graph.memgraph import Extent, Offset
from einpage.memplan.graph.packed import COMPUTE, GATHER, Nodes
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import PROFILES
from einpage.memplan.machine.work import Work, work_of

SPEC = PROFILES.parent / "llama.yaml"
SIZES = {"batch": 1, "model": 640, "heads": 10, "kv_heads": 5, "ffn": 1792, "vocab": 8192, "layers": 2}
"""Two layers and the vocabulary are 60 MB."""
PROBE_ROWS = (1, 4, 8, 16, 64, 256, 1024)
"""One for each shape class of products, at least."""
BUDGET = 256 << 20
ALONE, BESIDE = 7, 5
"""Runs, the first of which does not count."""
ALONE_S, BESIDE_S = 0.5, 0.3
"""How long they last together: once these have passed, none begins but the least that it takes, two alone and one beside copies."""
USUAL = 0.25
"""The quantile that is usual."""
LONG_RUN = 256
"""From so many rows on half as many do."""
NODES_FREED = 8
"""For which a dispatcher works after each copy."""
CONSTANT = 0.01
"""What weights are: finite results, none of them denormal."""


@dataclass(frozen=True, slots=True)
class KernelSample:
    """All nodes that do the same, in all runs. The first of a run are slow, and so are those that something else held up: what is usual
    is the lower quartile."""

    work: Work
    nbytes: int
    """Touched."""
    seconds: float
    """With the handover from the node before."""
    least_s: float
    """The least, without."""
    beside_s: float
    """As `seconds`, beside copies."""
    spread: float
    """From the lower quartile to the median, as a share of it."""


@dataclass(frozen=True, slots=True)
class ProbeRuns:
    """What runs with so many tokens took."""

    rows: int
    kernels: tuple[KernelSample, ...]
    gathers: tuple[tuple[int, float], ...]
    """Of each gather, its bytes and seconds."""
    handover_s: float
    """From the end of a node to the start of the next, where that does not wait for anything."""
    start_s: float
    """Until the first node of the compute engine or its gather starts, and from the end of the last node to that of the run."""
    block_s: float
    """Of each block that the thread copies meanwhile; 0 where it had no time for one."""


def probe_runs(machine: Machine, rows_wanted: tuple[int, ...] = PROBE_ROWS) -> Iterator[ProbeRuns]:
    """Runs with each number of tokens, on a device of `machine`. A second or two."""
    with copying_thread() as copies:
        for rows in rows_wanted:
            yield _probe(machine, rows, copies)


def _probe(machine: Machine, rows: int, copies: CopyingThread) -> ProbeRuns:
    model = open_model(SPEC, {**SIZES, "seq": rows})
    planned = plan_program(model.program, machine, PlanRequest(BUDGET, warm=True))
    host = HostArena(planned.memgraph.host_bytes)
    slots = host_copies(planned.memgraph, host)
    for tensor in planned.graph.tensors:
        if tensor.id in slots:
            slots[tensor.id].fill_(1 if tensor.kind is Kind.INPUT else CONSTANT)
    memory = CpuMemory(host, planned.memgraph.budget_bytes)
    device = CpuDevice(planned.memgraph, memory, threads=machine.threads, libraries=machine.libraries)

    fewer = 2 if rows >= LONG_RUN else 1
    with closing(DynamicDispatcher(planned.memgraph)) as dispatcher:

        def run(copying: bool) -> Measured:
            device.preload()
            with copies.going() if copying else nullcontext():
                return dispatcher.run(device)

        alone = _within(ALONE_S, 2, ALONE // fewer, lambda: run(False))[1:]
        before = len(copies.seconds)
        beside = _within(BESIDE_S, 1, BESIDE // fewer, lambda: run(True))
    block_s = float(np.quantile(copies.seconds[before:] or [0.0], USUAL))
    return _samples(rows, planned, alone, beside, block_s)


def _within(seconds: float, least: int, most: int, run: Callable[[], Measured]) -> list[Measured]:
    """`most` runs, or as many as begin within so many seconds, but the `least`."""
    began, found = perf_counter(), list[Measured]()
    while len(found) < most and (len(found) < least or perf_counter() - began < seconds):
        found.append(run())
    return found


def _samples(rows: int, planned: Planned, alone: list[Measured], beside: list[Measured], block_s: float) -> ProbeRuns:
    nodes, tasks, tensors = Nodes.of(planned.memgraph.nodes), planned.graph.tasks, planned.graph.tensors
    computes = np.flatnonzero(nodes.kind == COMPUTE)
    handovers, handovers_beside = (np.array([_handovers(planned, m, computes) for m in runs]) for runs in (alone, beside))
    took, took_beside = (np.array([m.finish_s - m.start_s for m in runs]) for runs in (alone, beside))
    at_by_work: dict[Work, list[int]] = {}
    for at, task in enumerate(tasks[t] for t in nodes.subject[computes].tolist()):
        if (work := work_of(task)) is not None:
            at_by_work.setdefault(work, []).append(at)
    samples: list[KernelSample] = []
    for work, alike in at_by_work.items():
        kernels = computes[alike]
        usual, middle = np.quantile(took[:, kernels] + handovers[:, alike], (USUAL, 0.5)).tolist()
        beside_s = float(np.quantile(took_beside[:, kernels] + handovers_beside[:, alike], USUAL))
        nbytes = max(tasks[t].bytes_touched for t in nodes.subject[kernels].tolist())
        samples.append(KernelSample(work, nbytes, usual, float(took[:, kernels].min()), beside_s, middle / usual - 1))
    gathers = [
        (int(tensors[tasks[nodes.subject[n]].result].nbytes), float(np.median(took[:, n]))) for n in np.flatnonzero(nodes.kind == GATHER)
    ]
    start_s = float(np.median([m.start_s.min() + m.wall_s - m.finish_s.max() for m in alone]))
    return ProbeRuns(rows, tuple(samples), tuple(gathers), float(np.median(handovers)), start_s, block_s)


def _handovers(planned: Planned, measured: Measured, computes: NDArray[np.intp]) -> NDArray[np.float64]:
    """[compute] from the moment that a node could start to that when it does: its engine is free, and what it waits for is there."""
    edges, ready = planned.memgraph.edges, np.zeros(len(measured.start_s))
    np.maximum.at(ready, edges.target, measured.finish_s[edges.source])
    free = np.concatenate(([0.0], measured.finish_s[computes][:-1]))
    gaps: NDArray[np.float64] = measured.start_s[computes] - np.maximum(free, ready[computes])
    gaps[0] = 0.0
    return np.maximum(gaps, 0.0)


class CopyingThread:
    """Copies blocks as a link's engine does, while it is let go, and times them."""

    BLOCK, BLOCKS, TARGETS = 1 << 20, 64, 32
    """More than caches hold is copied, to as many places as a small arena has beside its residents."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Of each block so far."""
        self._go, self._ended = threading.Event(), False
        self._lock, self._ready = threading.Lock(), list[int]()
        self._pushed = threading.Condition(self._lock)
        self._source, self._target = (_bytes(self.BLOCK * blocks) for blocks in (self.BLOCKS, self.TARGETS))
        self.thread = threading.Thread(target=self._copy, name="einpage-probe-copies", daemon=True)

    def _copy(self) -> None:
        turn = 0
        while not self._ended:
            self._go.wait()
            source, target = turn % self.BLOCKS * self.BLOCK, turn % self.TARGETS * self.BLOCK
            started = perf_counter()
            np.copyto(self._target[target : target + self.BLOCK], self._source[source : source + self.BLOCK])
            self.seconds.append(perf_counter() - started)
            self._dispatch(turn)
            turn += 1

    def _dispatch(self, turn: int) -> None:
        """What a dispatcher does, about: it holds the interpreter for a few microseconds, which a kernel's calls wait for."""
        with self._lock:
            for node in range(NODES_FREED):
                heappush(self._ready, turn - node)
                self._pushed.notify()
            for _ in range(NODES_FREED):
                heappop(self._ready)

    @contextmanager
    def going(self) -> Iterator[None]:
        """Copies are in flight until the block of code ends."""
        self._go.set()
        try:
            yield
        finally:
            self._go.clear()

    def end(self) -> None:
        """End the thread."""
        self._ended = True
        self._go.set()
        self.thread.join()


def _bytes(nbytes: int) -> NDArray[np.uint8]:
    return MappedArena(nbytes, touch=True).bytes(Extent(Offset(0), Nbytes(nbytes)))


@contextmanager
def copying_thread() -> Iterator[CopyingThread]:
    """A thread that copies when it is told to, until the block of code ends."""
    copies = CopyingThread()
    copies.thread.start()
    try:
        yield copies
    finally:
        copies.end()
