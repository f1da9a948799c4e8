"""Runs of small models, in which every node is timed: what kernels take among others, and how they and copies share a machine.

In: a Machine of which the best rates are known, then one of which kernels' times are. Out: samples, of models with as many tokens as there
are rows to know. At first all weights are on the device, so that nothing is copied; then the arena is a small part of them, and they are
copied while the kernels run, as in any run that streams: what a kernel reads has just come. Their sizes are those of no model; their
weights are more than caches hold, as weights are. Runs take turns, in rounds: a machine's memory drifts within seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from time import perf_counter, sleep

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.columns import Floats
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.device.arena import HostArena, host_copies
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.dispatch.dynamic import DynamicDispatcher
from einpage.exec.dispatch.engine import Measured
from einpage.exec.planning.judged_plan import Planned, plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.graph.packed import COMPUTE, GATHER, Nodes
from einpage.memplan.graph.simulate import COMPUTE_QUEUE, NO_QUEUE, durations, queue_numbers
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import PROFILES
from einpage.memplan.machine.work import Work, work_of


@dataclass(frozen=True, slots=True)
class ProbeModel:
    spec: str
    sizes: Mapping[str, int]


PROBE_MODELS = (
    ProbeModel("llama.yaml", {"model": 640, "heads": 10, "kv_heads": 2, "ffn": 1792, "vocab": 8192}),
    ProbeModel("gpt2.yaml", {"model": 640, "heads": 10, "ffn": 2304, "vocab": 8192, "context": 2048}),
)
"""The matrices of one lie row by row, those of the other column by column; five queries read a key in one, so that few tokens are many
queries, and one in the other. Their layers are 19 MB each, and the vocabulary 21 MB."""
LAYERS_BELOW = ((64, 10), (256, 4))
"""By how many rows: with few of them weights are to be many times what caches hold; with more, fewer layers last long enough."""
MOST_LAYERS = 2
"""Of any more rows."""
PROBE_ROWS = (1, 8, 16, 64, 256, 1024, 2048)
"""One for each shape class of products, at least."""
RESIDENT, STREAMING = 256 << 20, 32 << 20
"""Bytes of the arena: more than all weights, and a small part of them."""
ROUNDS = 3
"""In each, every model runs with every number of rows: what a machine does differently a second later is in the samples."""
MORE_ROUNDS, PAUSE_S = 8, 0.5
"""For those that stream and took longer than all of their nodes one after the other, which only what others do explains: so many more, each
after a pause."""
MOST_SERIAL = 1.1
"""How many times as long that may take: times alone are medians."""
ROUND_S = 0.04
"""How long the runs of a round last together: once this has passed, none begins but the first."""
MOST_RUNS = 6
"""In a round, of each."""
USUAL, LOW, QUIET = 0.5, 0.25, 0.1
"""The quantiles that are usual, of what nothing held up, and of runs that stream: what others read of memory and leave in caches lengthens
most of them at times, and nothing shortens one."""
LONG_RUN = 256
"""From so many rows on the first run of a round counts."""
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


@dataclass(frozen=True, slots=True)
class Shared:
    """Nodes of a run that streams."""

    alone_s: float
    """Seconds that they take when nothing slows them down, by the machine's kernel times."""
    together_s: float
    """What they took while the other side was in flight: copies, of kernels; kernels, of copies."""
    apart_s: float
    """What they took while it was not."""


@dataclass(frozen=True, slots=True)
class StreamedRuns:
    """What kernels and copies took of each other's time in runs with so many tokens."""

    rows: int
    kernels: Mapping[Work, Shared]
    copies: Shared


def resident_runs(machine: Machine, rows_wanted: Sequence[int] = PROBE_ROWS) -> list[ProbeRuns]:
    """Runs of each model with each number of tokens, on a device of `machine` that holds all. Some seconds."""
    return [probe.alone() for probe in _ran(machine, rows_wanted, RESIDENT)]


def streamed_runs(machine: Machine, rows_wanted: Sequence[int] = PROBE_ROWS) -> list[StreamedRuns]:
    """Those runs on a device that holds a small part. `machine` has kernel times. Some seconds."""
    return [probe.shared(machine) for probe in _ran(machine, rows_wanted, STREAMING, lambda probe: bool(probe.undisturbed(machine)))]


def _ran(machine: Machine, rows_wanted: Sequence[int], budget: int, enough: Callable[[_Probe], bool] = lambda probe: True) -> list[_Probe]:
    plans = [(rows, _planned(machine, model, rows, budget)) for rows in rows_wanted for model in PROBE_MODELS]
    host = HostArena(Nbytes(max(planned.memgraph.host_bytes for _, planned in plans)))
    memory = CpuMemory(host, budget)
    with ExitStack() as stack:
        probes = [_Probe(machine, rows, planned, memory, stack) for rows, planned in plans]
        _in_rounds(probes, enough)
    return probes


def _in_rounds(probes: Sequence[_Probe], enough: Callable[[_Probe], bool]) -> None:
    """Run all of them in turn, ROUNDS times; then those again of which there is not enough, until there is."""
    for _ in range(ROUNDS):
        for probe in probes:
            probe.run()
    for _ in range(MORE_ROUNDS):
        if not (disturbed := [probe for probe in probes if not enough(probe)]):
            return
        sleep(PAUSE_S)
        for probe in disturbed:
            probe.run()


def _planned(machine: Machine, model: ProbeModel, rows: int, budget: int) -> Planned:
    layers = next((layers for below, layers in LAYERS_BELOW if rows < below), MOST_LAYERS)
    opened = open_model(PROFILES.parent / model.spec, {"batch": 1, "layers": layers, "seq": rows, **model.sizes})
    return plan_program(opened.program, machine, PlanRequest(budget, passes=ROUNDS))


class _Probe:
    """A model with so many tokens, ready to run whenever it is asked to. All probes share one memory: what a run needs is written anew
    before the first of a round."""

    def __init__(self, machine: Machine, rows: int, planned: Planned, memory: CpuMemory, stack: ExitStack) -> None:
        self._rows, self._planned, self._host = rows, planned, memory.host
        self._device = CpuDevice(planned.memgraph, memory, threads=machine.threads, libraries=machine.libraries)
        self._dispatcher = stack.enter_context(closing(DynamicDispatcher(planned.memgraph)))
        self._runs = list[Measured]()

    def run(self) -> None:
        """A round."""
        slots = host_copies(self._planned.memgraph, self._host)
        for tensor in self._planned.graph.tensors:
            if tensor.id in slots:
                slots[tensor.id].fill_(1 if tensor.kind is Kind.INPUT else CONSTANT)
        self._device.preload()
        if self._rows < LONG_RUN:
            self._run()
        self._runs += _within(ROUND_S, MOST_RUNS, self._run)

    def _run(self) -> Measured:
        return self._dispatcher.run(self._device)

    def alone(self) -> ProbeRuns:
        """Of all rounds, where nothing was copied."""
        return _samples(self._rows, self._planned, self._runs)

    def shared(self, machine: Machine) -> StreamedRuns:
        """Of all rounds, where `machine` says what everything takes alone."""
        return _shared(self._rows, self._planned, self.undisturbed(machine) or self._runs, machine)

    def undisturbed(self, machine: Machine) -> list[Measured]:
        """Runs that took no longer than their nodes take one after the other."""
        serial_s = float(durations(self._planned.memgraph, machine).sum())
        return [m for m in self._runs if m.wall_s <= MOST_SERIAL * serial_s]


def _within(seconds: float, most: int, run: Callable[[], Measured]) -> list[Measured]:
    """`most` runs, or as many as begin within so many seconds, but the first."""
    began, found = perf_counter(), [run()]
    while len(found) < most and perf_counter() - began < seconds:
        found.append(run())
    return found


def _samples(rows: int, planned: Planned, runs: list[Measured]) -> ProbeRuns:
    nodes, tasks, tensors = Nodes.of(planned.memgraph.nodes), planned.graph.tasks, planned.graph.tensors
    computes = np.flatnonzero(nodes.kind == COMPUTE)
    handovers = np.array([_handovers(planned, m)[computes] for m in runs])
    took = np.array([m.finish_s - m.start_s for m in runs])
    samples: list[KernelSample] = []
    for work, kernels in _nodes_by_work(planned).items():
        usual, low = np.quantile(took[:, kernels] + handovers[:, np.searchsorted(computes, kernels)], (USUAL, LOW)).tolist()
        nbytes = max(tasks[t].bytes_touched for t in nodes.subject[kernels].tolist())
        samples.append(KernelSample(work, nbytes, usual, float(took[:, kernels].min()), usual / low - 1))
    gathers = [
        (int(tensors[tasks[nodes.subject[n]].result].nbytes), float(np.median(took[:, n]))) for n in np.flatnonzero(nodes.kind == GATHER)
    ]
    start_s = float(np.median([m.start_s.min() + m.wall_s - m.finish_s.max() for m in runs]))
    return ProbeRuns(rows, tuple(samples), tuple(gathers), float(np.median(handovers)), start_s)


def _shared(rows: int, planned: Planned, runs: list[Measured], machine: Machine) -> StreamedRuns:
    """A node lasts from the moment that it could start, as in `_samples`; one that waited for another engine, from its wake-up on."""
    assert machine.kernel_times is not None
    queues, alone = queue_numbers(planned.memgraph), durations(planned.memgraph, machine)
    computes, kinds = queues == COMPUTE_QUEUE, Nodes.of(planned.memgraph.nodes).kind
    copies = (queues != NO_QUEUE) & ~computes
    by_work = _nodes_by_work(planned)
    together, lasted = np.zeros((len(runs), len(queues))), np.zeros((len(runs), len(queues)))
    for at, m in enumerate(runs):
        start = m.start_s - _handovers(planned, m, machine.kernel_times.wakeup_s)
        lasted[at] = m.finish_s - start
        for mine, others in ((computes, copies), (copies, computes)):
            together[at, mine] = _covered(start[mine], m.finish_s[mine], start[others], m.finish_s[others])

    usual = int(np.argsort(lasted.sum(axis=1))[int(QUIET * len(runs))])

    def shared(found: Sequence[int] | NDArray[np.intp]) -> Shared:
        of_run = float(together[usual, found].sum())
        return Shared(float(alone[found].sum()), of_run, float(lasted[usual, found].sum()) - of_run)

    moves = np.flatnonzero(copies & (kinds != GATHER))
    return StreamedRuns(rows, {work: shared(found) for work, found in by_work.items()}, shared(moves))


def _nodes_by_work(planned: Planned) -> dict[Work, list[int]]:
    nodes, tasks = Nodes.of(planned.memgraph.nodes), planned.graph.tasks
    found: dict[Work, list[int]] = {}
    for node in np.flatnonzero(nodes.kind == COMPUTE).tolist():
        if (work := work_of(tasks[nodes.subject[node]])) is not None:
            found.setdefault(work, []).append(node)
    return found


def _handovers(planned: Planned, measured: Measured, wakeup_s: float = 0.0) -> Floats:
    """[node] from the moment that it could start to that when it does: its engine is free, and what it waits for is there; without
    `wakeup_s` where it waited for another engine. 0 for what has no engine, and for the first of each."""
    edges, ready, queues = planned.memgraph.edges, np.zeros(len(measured.start_s)), queue_numbers(planned.memgraph)
    np.maximum.at(ready, edges.target, measured.finish_s[edges.source])
    gaps = np.zeros(len(queues))
    for queue in range(int(queues.max(initial=-1)) + 1):
        found = np.flatnonzero(queues == queue)
        free = np.concatenate(([0.0], measured.finish_s[found][:-1]))
        waited = np.where(ready[found] > free, wakeup_s, 0.0)
        gaps[found] = measured.start_s[found] - np.maximum(free, ready[found]) - waited
        gaps[found[:1]] = 0.0
    return np.maximum(gaps, 0.0, out=gaps)


def _covered(start: Floats, finish: Floats, others_start: Floats, others_finish: Floats) -> Floats:
    """[node] seconds between its `start` and `finish` in which some of the others was in flight."""
    if not len(others_start):
        return np.zeros(len(start))
    at = np.concatenate((others_start, others_finish))
    order = np.argsort(at, kind="stable")
    in_flight = np.cumsum(np.repeat((1, -1), len(others_start))[order])
    at = at[order]
    before = np.concatenate(([0.0], np.cumsum(np.diff(at) * (in_flight[:-1] > 0))))
    """[moment] seconds in which something was in flight until then"""
    covered: Floats = np.interp(finish, at, before) - np.interp(start, at, before)
    return covered


def rounded(x: float) -> float:
    """Three digits: more would be noise."""
    return float(f"{x:.3g}")
