"""Runs of small models, in which every node is timed: what kernels take among others, as in any run, alone and beside copies.

In: a Machine of which the best rates are known. Out: samples, of models with as many tokens as there are rows to know. All their
weights are on the device, so that nothing is copied but by a thread that this file starts. Their sizes are those of no model; their weights
are more than caches hold, as weights are. Runs take turns, in rounds: a machine's memory drifts within seconds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
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


@dataclass(frozen=True, slots=True)
class ProbeModel:
    spec: str
    sizes: Mapping[str, int]


PROBE_MODELS = (
    ProbeModel("llama.yaml", {"model": 640, "heads": 10, "kv_heads": 5, "ffn": 1792, "vocab": 8192}),
    ProbeModel("gpt2.yaml", {"model": 640, "heads": 10, "ffn": 2304, "vocab": 8192, "context": 2048}),
)
"""The matrices of one lie row by row, those of the other column by column. Their layers are 19 MB each, and the vocabulary 21 MB."""
LAYERS_BELOW = ((64, 4), (256, 2))
"""By how many rows: with few of them weights are to be more than caches hold; from 256 on one layer lasts long enough."""
PROBE_ROWS = (1, 8, 16, 64, 256, 1024)
"""One for each shape class of products, at least."""
BUDGET = 256 << 20
ROUNDS = 3
"""In each, every model runs with every number of rows: what a machine does differently a second later is in the samples."""
ALONE_S, BESIDE_S = 0.04, 0.02
"""How long the runs of a round last together, alone and beside copies: once these have passed, none begins but the first."""
MOST_RUNS = 6
"""In a round, of each."""
USUAL, LOW = 0.5, 0.25
"""The quantiles that are usual, and of what nothing held up."""
LONG_RUN = 256
"""From so many rows on the first run of a round counts."""
NODES_FREED = 8
"""For which a dispatcher works after each copy."""
CONSTANT = 0.01
"""What weights are: finite results, none of them denormal."""


@dataclass(frozen=True, slots=True)
class KernelSample:
    """All nodes that do the same, in all runs of a model. What is usual is the median: a run is predicted as the sum of them."""

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
    """From the lower quartile to the median, as a share of the former."""


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


def probe_runs(machine: Machine, rows_wanted: tuple[int, ...] = PROBE_ROWS) -> list[ProbeRuns]:
    """Runs of each model with each number of tokens, on a device of `machine`. Some seconds."""
    plans = [(rows, _planned(machine, model, rows)) for rows in rows_wanted for model in PROBE_MODELS]
    host = HostArena(Nbytes(max(planned.memgraph.host_bytes for _, planned in plans)))
    memory = CpuMemory(host, BUDGET)
    with copying_thread() as copies, ExitStack() as stack:
        probes = [_Probe(machine, rows, planned, memory, stack) for rows, planned in plans]
        for _ in range(ROUNDS):
            for probe in probes:
                probe.run(copies)
    return [probe.samples() for probe in probes]


def _planned(machine: Machine, model: ProbeModel, rows: int) -> Planned:
    layers = next((layers for below, layers in LAYERS_BELOW if rows < below), 1)
    opened = open_model(PROFILES.parent / model.spec, {"batch": 1, "layers": layers, "seq": rows, **model.sizes})
    return plan_program(opened.program, machine, PlanRequest(BUDGET, passes=ROUNDS))


class _Probe:
    """A model with so many tokens, ready to run whenever it is asked to. All probes share one memory: what a run needs is written anew
    before the first of a round."""

    def __init__(self, machine: Machine, rows: int, planned: Planned, memory: CpuMemory, stack: ExitStack) -> None:
        self._rows, self._planned, self._host = rows, planned, memory.host
        self._device = CpuDevice(planned.memgraph, memory, threads=machine.threads, libraries=machine.libraries)
        self._dispatcher = stack.enter_context(closing(DynamicDispatcher(planned.memgraph)))
        self._alone, self._beside, self._blocks_s = list[Measured](), list[Measured](), list[float]()

    def run(self, copies: CopyingThread) -> None:
        """A round."""
        slots = host_copies(self._planned.memgraph, self._host)
        for tensor in self._planned.graph.tensors:
            if tensor.id in slots:
                slots[tensor.id].fill_(1 if tensor.kind is Kind.INPUT else CONSTANT)
        self._device.preload()
        if self._rows < LONG_RUN:
            self._run()
        self._alone += _within(ALONE_S, MOST_RUNS, self._run)
        before = len(copies.seconds)
        with copies.going():
            self._beside += _within(BESIDE_S, MOST_RUNS, self._run)
        self._blocks_s += copies.seconds[before:]

    def _run(self) -> Measured:
        return self._dispatcher.run(self._device)

    def samples(self) -> ProbeRuns:
        """Of all rounds."""
        block_s = float(np.quantile(self._blocks_s or [0.0], USUAL))
        return _samples(self._rows, self._planned, self._alone, self._beside, block_s)


def _within(seconds: float, most: int, run: Callable[[], Measured]) -> list[Measured]:
    """`most` runs, or as many as begin within so many seconds, but the first."""
    began, found = perf_counter(), [run()]
    while len(found) < most and perf_counter() - began < seconds:
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
        usual, low = np.quantile(took[:, kernels] + handovers[:, alike], (USUAL, LOW)).tolist()
        beside_s = float(np.quantile(took_beside[:, kernels] + handovers_beside[:, alike], USUAL))
        nbytes = max(tasks[t].bytes_touched for t in nodes.subject[kernels].tolist())
        samples.append(KernelSample(work, nbytes, usual, float(took[:, kernels].min()), beside_s, usual / low - 1))
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

    BLOCK, BLOCKS, TARGETS = 1 << 20, 64, 16
    """More than caches hold is copied, to as many places as an arena has beside its residents where the link is what a run waits for: a
    cache holds some of them, and copies are half as fast again as to twice as many."""

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
