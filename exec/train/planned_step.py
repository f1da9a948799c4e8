"""The plan of a training step: its pieces, its budget where that is a share, its moves, and its states at home.

In: a TrainStep, a Machine, a PlanRequest. Out: a Planned that the judge has passed as it runs again and again: with what a step makes of
each state where the state was.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from time import perf_counter

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import aligned, parse_bytes
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import HOST_AT_START, Kind, TaskGraph, TensorId
from einpage.exec.load.inputs import TOKENS
from einpage.exec.planning.judged_plan import MachineSource, Planned, judged, machine_now, refuse_full_host, refuse_no_rate
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import Built, BuiltBySplit, Split, fused, may_fit, split_for
from einpage.exec.planning.train_step import TrainStep
from einpage.exec.train.carried import StatePairs, at_home, state_tiles, states_on_device
from einpage.exec.train.resident import again_before, plan_beside, resident_within, updated_in_place, updated_last
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.graph.packed import GATHER, Nodes, Residencies
from einpage.memplan.graph.simulate import simulate
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import HOST
from einpage.memplan.problem.pace import Pace

MOST = 1 << 62
"""Bytes of a budget in which everything fits."""
SHARES = 4
"""Where not all fits: into how many parts the budget is divided, of which states and weights may fill each number."""


class StepGraphs:
    """A step's graph in a split for any budget: its operations are fused once, and a split that several budgets share is made once."""

    def __init__(self, program: Program, request: PlanRequest) -> None:
        """Raises as `fused`."""
        self._program, self._request, self._working_sets = program, request, fused(program, request)
        self._made: BuiltBySplit = {}
        self._joined: dict[Split, TaskGraph] = {}

    def __call__(self, nbytes: int) -> Built:
        """Raises as `split_for`."""
        return split_for(self._working_sets, self._program, replace(self._request, budget_bytes=nbytes), self._made)

    def joined(self, built: Built) -> TaskGraph:
        """Of one of them, in which what works on the same elements is one task."""
        if (pieces := built.graph.split) not in self._joined:
            self._joined[pieces] = built.joined
        return self._joined[pieces]

    def may_fit(self, nbytes: int) -> bool:
        """False where no split fits, as far as is known without a search."""
        return may_fit(self._working_sets, replace(self._request, budget_bytes=nbytes))


def peak_bytes(graph: TaskGraph) -> int:
    """Bytes with room for everything: weights and states from the first task to the last, what is computed from the task that writes it to
    the last that reads it, in the order as written."""
    sizes = [int(aligned(t.nbytes)) for t in graph.tensors]
    last_reader: dict[TensorId, int] = {}
    for at, task in enumerate(graph.tasks):
        last_reader.update(dict.fromkeys((t for operand in task.operands for t in operand), at))
    dies: dict[int, list[TensorId]] = {}
    for t, at in last_reader.items():
        if graph.tensors[t].kind is Kind.ACTIVATION:
            dies.setdefault(at, []).append(t)
    there = peak = sum(sizes[t.id] for t in graph.tensors if t.kind in HOST_AT_START)
    for at, task in enumerate(graph.tasks):
        peak = max(peak, there + sum(sizes[t] for t in task.results) + aligned(task.workspace_bytes))
        there += sum(sizes[t] for t in task.results if graph.tensors[t].kind is Kind.ACTIVATION)
        there -= sum(sizes[t] for t in dies.get(at, ()))
    return peak


def in_micro_batches(step: TrainStep, request: PlanRequest, micro_batches: int | None) -> PlanRequest:
    """`request` with the sequences of a step in so many pieces: what each adds to a gradient is added up, and the loss is counted over
    all.
    """
    if micro_batches is None:
        return request
    tokens = next((i for i in step.program.inputs if i.name == TOKENS and i.letters), None)
    if tokens is None:
        raise UsageError(f"--micro-batches: {step.program.path} has no input `{TOKENS}`, whose first axis they would be pieces of")
    letter, batch = tokens.letters[0], tokens.shape[0]
    if not 1 <= micro_batches <= batch:
        raise UsageError(f"--micro-batches {micro_batches}: a step has {batch} sequences; say 1 to {batch}, or a larger --batch")
    if request.pieces.get(letter, micro_batches) != micro_batches:
        raise UsageError(f"--micro-batches {micro_batches} and --split {letter}={request.pieces[letter]} exclude each other")
    return request.in_pieces({letter: micro_batches})


def budget_bytes(text: str, step: TrainStep, request: PlanRequest) -> int:
    """Bytes of `--budget`: a size, or a share in % of what a step takes with room for everything."""
    if not text.strip().endswith("%"):
        return parse_bytes(text, "--budget")
    try:
        share = float(text.strip()[:-1])
    except ValueError:
        share = 0.0
    if not 0 < share <= 100:
        raise UsageError(
            f"--budget {text}: a share is above 0 % and at most 100 % of what a step takes with room for everything; or say a size"
        )
    graph, _ = _in_place(step, graphs_of(step, request)(MOST).joined)
    return ceil(share / 100 * peak_bytes(graph))


def graphs_of(step: TrainStep, request: PlanRequest) -> StepGraphs:
    """Of the loss and the states. Raises as `fused`."""
    return StepGraphs(step.program, replace(request, outputs=step.outputs))


def plan_step(step: TrainStep, machine: Machine | MachineSource, request: PlanRequest) -> Planned:
    """The fastest plan by the simulator of those in which states and weights fill some share of the budget; where tasks may run again, if
    that is faster, of those in which none does too. Raises as plan_program."""
    began, request = perf_counter(), replace(request, outputs=step.outputs)
    graph_for = graphs_of(step, request)
    coarsest = graph_for(request.budget_bytes).graph
    machine = machine_now(machine)
    refuse_full_host(step.program, machine, request)
    all_bytes = resident_within(*_in_place(step, coarsest), MOST).nbytes(coarsest)
    found, refused, once_s = list[tuple[float, MemGraph, Pace | None]](), list[DoesNotFit](), None
    for asked in _with_and_without(request):
        try:
            found.append(_fastest(step, graph_for, machine, asked, all_bytes))
        except DoesNotFit as misfit:
            refused.append(misfit)
        else:
            once_s = found[-1][0] if asked.recompute is Recompute.NEVER else once_s
    if not found:
        raise _with_hint(refused[0], request)
    _, memgraph, pace = min(found, key=lambda it: it[0])
    return replace(judged(memgraph, machine, began, pace=pace), sizes=dict(step.program.sizes), once_s=once_s)


def _with_hint(error: DoesNotFit, request: PlanRequest) -> DoesNotFit:
    """`error`, which says what offloads less where it is the host that is full, and nobody asked for it."""
    if error.misfit.place != str(HOST) or request.recompute is not Recompute.NEVER:
        return error
    return DoesNotFit(replace(error.misfit, or_else="--recompute fastest, which offloads less"))


def _with_and_without(request: PlanRequest) -> tuple[PlanRequest, ...]:
    """Without second runs and with them, if the faster is asked for. The second is searched for half as long: it is searched for twice."""
    if request.recompute is not Recompute.FASTEST:
        return (request,)
    steps = None if request.plan_steps is None else ceil(request.plan_steps / 2)
    again = replace(request, plan_seconds=request.plan_seconds / 2, plan_steps=steps)
    return replace(request, recompute=Recompute.NEVER), again


def _fastest(
    step: TrainStep, graph_for: StepGraphs, machine: Machine, request: PlanRequest, all_bytes: int
) -> tuple[float, MemGraph, Pace | None]:
    """The seconds of the fastest plan of `request`, the plan, and its search; states and weights are `all_bytes`. Raises DoesNotFit."""
    budget, best, refused = request.budget_bytes, None, list[DoesNotFit]()
    for resident_bytes in (
        min(all_bytes, budget),
        *(budget * n // SHARES for n in range(SHARES - 1, -1, -1) if budget * n < SHARES * all_bytes),
    ):
        if resident_bytes and not graph_for.may_fit(budget - resident_bytes):
            continue
        try:
            found = plan_with(step, graph_for, machine, request, resident_bytes)
        except DoesNotFit as misfit:
            refused.append(misfit)
            continue
        seconds = simulate(found, machine).makespan_s
        if best is None or seconds < best[0]:
            best = seconds, found, resident_bytes
        if resident_bytes == all_bytes:
            break
    if best is None:
        raise refused[-1]
    seconds, memgraph, resident_bytes = best
    if (pace := request.pace()) is not None:
        searched = plan_with(step, graph_for, machine, request, resident_bytes, pace)
        searched_s = simulate(searched, machine).makespan_s
        if searched_s < seconds:
            seconds, memgraph = searched_s, searched
    return seconds, memgraph, pace


def _in_place(step: TrainStep, graph: TaskGraph) -> tuple[TaskGraph, StatePairs]:
    pairs = state_tiles(step.program, graph)
    return updated_in_place(updated_last(graph, pairs), pairs), pairs


def plan_with(
    step: TrainStep, graph_for: StepGraphs, machine: Machine, request: PlanRequest, resident_bytes: int, pace: Pace | None = None
) -> MemGraph:
    """A plan with so many bytes of states and weights on the device at most, in pieces that fit beside them; each update one task where
    there is room for all that it reads. Raises DoesNotFit."""
    built = graph_for(request.budget_bytes - resident_bytes)
    with suppress(DoesNotFit):
        return _planned(step, graph_for.joined(built), machine, request, resident_bytes, pace)
    return _planned(step, built.graph, machine, request, resident_bytes, pace)


def _planned(step: TrainStep, graph: TaskGraph, machine: Machine, request: PlanRequest, resident_bytes: int, pace: Pace | None) -> MemGraph:
    graph, pairs = _in_place(step, graph)
    refuse_no_rate(graph, machine)
    kept = resident_within(graph, pairs, resident_bytes)
    options = replace(request.planner, again_before=again_before(graph, pairs))
    memgraph = plan_beside(graph, machine, request.budget_bytes, options, kept, pace)
    return at_home(memgraph, tuple(pair for pair in pairs if pair not in set(kept.states)))


@dataclass(frozen=True, slots=True)
class StepBytes:
    """What one step moves, by what it is; bytes."""

    states_read: int
    """Weights that train and what is kept for them, to the device."""
    states_written: int
    """And back."""
    states_kept: int
    """Of those that stay on the device, and are moved by no step: neither read nor written here."""
    frozen_read: int
    """Weights that do not train; they are never written."""
    activations_read: int
    activations_written: int
    """What is on the host until its gradients are computed"""
    inputs_read: int
    outputs_written: int

    @property
    def read(self) -> int:
        """Over the link to the device."""
        return self.states_read + self.frozen_read + self.activations_read + self.inputs_read

    @property
    def written(self) -> int:
        """And back."""
        return self.states_written + self.activations_written + self.outputs_written


def bytes_of_step(memgraph: MemGraph) -> StepBytes:
    """Of every move and gather of the plan."""
    tensors, residencies, nodes = memgraph.graph.tensors, Residencies.of(memgraph.residencies), Nodes.of(memgraph.nodes)
    firsts, lasts = ({pair[side] for pair in memgraph.carried} for side in (0, 1))
    on_host = residencies.at(HOST)
    found: dict[str, int] = {"states_kept": sum(tensors[first].nbytes for first, _ in states_on_device(memgraph))}
    copies = nodes.copies()
    moved = [*copies.target.tolist(), *nodes.result[nodes.kind == GATHER].tolist()]
    for r in moved:
        tensor = tensors[int(residencies.tensor[r])]
        if on_host[r]:
            name = "states_written" if tensor.id in lasts else "outputs_written" if tensor.kind is Kind.OUTPUT else "activations_written"
        elif tensor.kind is Kind.WEIGHT and tensor.id not in firsts:
            name = "frozen_read"
        elif tensor.kind is Kind.ACTIVATION:
            name = "activations_read"
        else:
            name = "states_read" if tensor.id in firsts else "inputs_read"
        found[name] = found.get(name, 0) + tensor.nbytes
    return StepBytes(**{name: found.get(name, 0) for name in StepBytes.__dataclass_fields__})
