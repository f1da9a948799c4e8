"""Running a plan: weights and inputs into the host arena, the MemGraph replayed on a device, the answers read out.

In: a Model with weights, and options. Out: a RunResult whose figures were counted, not copied from the plan. Nothing is written to disk
here; the command line does that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes, format_seconds
from einpage.einsum_front.graph.packed import packed
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, TensorId
from einpage.exec.build.judged_plan import Planned, make_loop, make_plan
from einpage.exec.build.model import Model
from einpage.exec.build.task_graph import build_graph
from einpage.exec.device.arena import HostArena, before_outputs, masters, outputs
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.device.device import Device
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.load.fill import fill
from einpage.exec.load.inputs import TokenLists, bind_inputs
from einpage.exec.load.tokenizer import Tokenizer
from einpage.exec.measure.profiles import forget
from einpage.exec.run.choose import DeviceKind, Dispatch, make_device, runner
from einpage.exec.run.logits import last_logits, mean_nll, top_tokens
from einpage.exec.system.process_memory import alone, available_bytes, give_back_memory, peak_resident_bytes
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.plan import PlanOptions
from einpage.memplan.problem.machine import Machine

TOP = 5
"""How many next tokens are reported for each sequence."""


TOO_SOON = 0.6
"""A run that takes less than this share of what was predicted had its machine measured under load."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    dtype: DType = DType.FP32
    budget_bytes: int = 0
    outputs: tuple[str, ...] = ()
    """Empty: the first the spec declares."""
    perplexity: bool = False
    """Adds the output that has logits for every position, and the text's perplexity."""
    split: Mapping[Letter, int] = field(default_factory=dict)
    no_fuse: tuple[str, ...] = ()
    """Fusions to leave out."""
    dispatch: Dispatch = Dispatch.DYNAMIC
    device: DeviceKind = DeviceKind.CPU
    kernels: str = "torch"
    """torch | triton; CUDA runs triton alone, the CPU runs that only under Triton's interpreter."""
    effort: int = 0
    """Of planning: PlanOptions.effort."""
    passes: int | None = None
    """Run so many times, with a plan that ends as it began; None: once, from an empty device."""
    poison: bool = False
    """Overwrite memory whose contents have ended, to show any read of it."""


@dataclass(frozen=True, slots=True, eq=False)
class RunResult:
    planned: Planned
    measured: Measured
    outputs: dict[str, torch.Tensor]
    facts: dict[str, object]
    """The plan's report with what `run --json` adds."""
    warnings: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Prepared:
    """A plan with its weights and inputs in place: everything slow is done, and it can be run as often as wanted."""

    model: Model
    options: RunOptions
    planned: Planned
    host: HostArena
    device: CpuDevice | StreamDevice

    def run(self, dispatch: Dispatch, hooks: Hooks = SILENT) -> list[Measured]:
        """Every pass that the options ask for. Raises the errors of the engines."""
        return [*run_passes(self.planned.memgraph, self.device, self.options, dispatch, hooks)]

    def outputs(self) -> dict[str, torch.Tensor]:
        """What the last run left, by name: new tensors."""
        return outputs(self.planned.memgraph, self.host)

    def close(self) -> None:
        """Take back what the device holds of the host; nothing runs afterwards."""
        self.device.close()


def prepare_run(
    model: Model,
    machine: Machine,
    options: RunOptions,
    named: Mapping[str, NDArray[np.generic]] | None = None,
    loading: Callable[[str, int], None] | None = None,
    planned_hook: Callable[[Planned], None] | None = None,
) -> Prepared:
    """Plan `model`, load its weights and inputs, make the device. As run_model, which runs what this makes once."""
    assert model.resolved is not None, "a model without weights can be planned, not run"
    began = perf_counter()
    program = model.program
    arrays = bind_inputs(program, model.tokens, named or {})
    wanted = wanted_outputs(program, options, model.tokens)
    refuse_above_device(machine, options.budget_bytes)
    planned = alone(lambda: kept(plan_for(program, machine, options, wanted, began)))
    give_back_memory()
    memgraph = planned.memgraph
    refuse_above_host(memgraph.host_bytes, options.budget_bytes if options.device is DeviceKind.CPU else 0)
    if planned_hook is not None:
        planned_hook(planned)
    host = HostArena(memgraph.host_bytes)
    slots = masters(memgraph, host)
    fill(planned.graph, model.resolved, slots, loading)
    fill_inputs(planned.graph, arrays, slots)
    del slots
    give_back_memory()
    device = make_device(options.device, memgraph, host, machine, options.kernels, poison=options.poison)
    return Prepared(model, options, planned, host, device)


def run_model(
    model: Model,
    machine: Machine,
    options: RunOptions,
    named: Mapping[str, NDArray[np.generic]] | None = None,
    hooks: Hooks = SILENT,
    loading: Callable[[str, int], None] | None = None,
    planned_hook: Callable[[Planned], None] | None = None,
) -> RunResult:
    """Plan and run `model` on the device that `options` names; `named` holds inputs other than its tokens.

    `loading(weight, nbytes)` is told of every block of weights loaded, `planned_hook` of the plan before anything is loaded. Raises
    the errors of build_graph, make_plan and the engines; DoesNotFit where the host has too little memory.
    """
    prepared = prepare_run(model, machine, options, named, loading, planned_hook)
    planned, host, device = prepared.planned, prepared.host, prepared.device
    try:
        passes = prepared.run(options.dispatch, hooks)
    except Exception:  # an interrupt does not wait for what the device still has to do
        prepared.close()
        raise
    measured = passes[-1]
    wall_s = sum(m.wall_s for m in passes) / len(passes)
    on_device = {"device": device.name, "arena_bytes": device.arena_bytes, "outside_arena_bytes": device.outside_arena_bytes}
    prepared.close()
    del prepared, device  # its arena and the weights go before outputs, which may be as large, are put together
    host.drop(before_outputs(planned.memgraph))
    found = outputs(planned.memgraph, host)
    facts = {
        **planned.report,
        **on_device,
        "dispatch": options.dispatch.value,
        "kernels": options.kernels,
        "threads": torch.get_num_threads(),
        "wall_s": wall_s,
        **({"passes_wall_s": [m.wall_s for m in passes]} if options.passes else {}),
        "measured_ratio": wall_s / planned.predicted_s,
        "measured_h2d_bytes": measured.measured_h2d_bytes,
        "measured_d2h_bytes": measured.measured_d2h_bytes,
        "measured_compute_s": measured.compute_s,
        "measured_h2d_s": measured.h2d_s,
        "measured_d2h_s": measured.d2h_s,
        "peak_rss_bytes": peak_resident_bytes(),
        **answers(found, model.tokens, model.tokenizer, options.perplexity),
    }
    warnings = tuple(profile_warnings(machine, options.device, wall_s, planned.bounds.bound_s, planned.predicted_s))
    return RunResult(planned, measured, found, {**facts, "warnings": list(warnings)}, warnings)


def plan_for(program: Program, machine: Machine, options: RunOptions, outputs: Sequence[str], began: float) -> Planned:
    """The plan of one cold pass, or of a pass that ends as it began."""
    dtype, budget = options.dtype, options.budget_bytes
    if options.passes is not None:
        split, no_fuse = options.split, options.no_fuse
        return make_loop(program, dtype, budget, machine, options.passes, outputs, split, no_fuse, began, options.effort)
    built = build_graph(program, dtype, budget, outputs, options.split, options.no_fuse)
    return make_plan(built, machine, budget, PlanOptions(effort=options.effort), began)


def kept(planned: Planned) -> Planned:
    """`planned` with its graph as a run keeps it beside the weights: small."""
    graph = packed(planned.graph)
    return replace(planned, graph=graph, memgraph=replace(planned.memgraph, graph=graph))


def run_passes(memgraph: MemGraph, device: Device, options: RunOptions, dispatch: Dispatch, hooks: Hooks) -> Iterator[Measured]:
    """What stays is brought in; then every pass, the next one when all of the one before is done."""
    device.bring()
    for _ in range(options.passes or 1):
        yield runner(options.device, dispatch)(memgraph, device, hooks)


def profile_warnings(machine: Machine, device: DeviceKind, wall_s: float, bound_s: float, predicted_s: float) -> Iterator[str]:
    """Says where a run was faster than its lower bound or far faster than predicted: the profile was measured while the machine was
    busy. It is dropped if it is the kept one."""
    if wall_s < bound_s:
        found = f"the run took {format_seconds(wall_s)}, less than its lower bound of {format_seconds(bound_s)}:"
    elif machine.usual_slowdown > 1 and wall_s < TOO_SOON * predicted_s:
        found = f"the run took {format_seconds(wall_s)}, far less than the {format_seconds(predicted_s)} predicted:"
    else:
        return
    measure = f"einpage machine --measure --device {device.value}"
    if forget(machine):
        cure = f"the next run measures again, or `{measure}` does it now"
        yield f"{found} the rates of this machine's profile are too low; {cure}"
    else:
        cure = f"`{measure}` measures this machine, and a run without --machine, --h2d and --d2h uses what was measured"
        yield f"{found} the rates of the profile {machine.name} are too low for this machine; {cure}"


def wanted_outputs(program: Program, options: RunOptions, tokens: TokenLists | None) -> tuple[str, ...]:
    """The outputs to compute: those asked for, or the first; and for a perplexity the one with logits at every position."""
    names = options.outputs or (program.outputs[0].name,)
    if not options.perplexity:
        return names
    if tokens is None:
        raise UsageError("--perplexity needs a text: give --prompt or --tokens")
    if min(map(len, tokens.lists)) < 2:
        raise UsageError(f"--perplexity needs at least two tokens in {tokens.origin}")
    batch, seq = _token_shape(program)
    every = [o.name for o in program.outputs if _is_logits(o.shape, (batch, seq), tokens)]
    if not every:
        raise UsageError(f"--perplexity: {program.path} declares no output of three axes (batch, sequence, vocabulary)")
    could = [name for name in options.outputs if name in every] or every
    if len(could) > 1:
        raise UsageError(f"--perplexity: {' and '.join(could)} could each be the logits; say which with --outputs NAME")
    return names if could[0] in names else (*names, could[0])


def _is_logits(shape: tuple[int, ...], token_shape: tuple[int, ...], tokens: TokenLists) -> bool:
    """Whether an output of `shape` may be logits at every position: it has an entry for each token met."""
    return len(shape) == 3 and shape[:2] == token_shape and shape[2] > max(map(max, tokens.lists))


def _token_shape(program: Program) -> tuple[int, ...]:
    return next((i.shape for i in program.inputs if i.name == "tokens" and len(i.shape) == 2), (-1, -1))


def refuse_above_device(machine: Machine, budget_bytes: int) -> None:
    """Raises UsageError for an arena larger than the device's memory."""
    if budget_bytes > machine.device_bytes:
        raise UsageError(
            f"budget {format_bytes(budget_bytes)} is more than the {format_bytes(machine.device_bytes)} that machine {machine.name} has; "
            "give a smaller --budget"
        )


def refuse_above_host(host_bytes: int, budget_bytes: int) -> None:
    """Raises DoesNotFit where this machine has too little free memory for the arenas: better now than swapping later."""
    available = available_bytes()
    if available is not None and host_bytes + budget_bytes > available:
        what, free = "weights, inputs, spills and outputs", max(0, available - budget_bytes)
        raise DoesNotFit(Misfit(what, "host", host_bytes, free, free, available, (), None))


def fill_inputs(graph: TaskGraph, arrays: Mapping[str, NDArray[np.generic]], slots: Mapping[TensorId, torch.Tensor]) -> None:
    """Copy every input tile into its host slot, in the tile's own element type."""
    for tensor in graph.tensors:
        if tensor.kind is Kind.INPUT:
            box = tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))
            slots[tensor.id].copy_(torch.from_numpy(np.asarray(arrays[tensor.value][box], order="C")))


def answers(
    found: Mapping[str, torch.Tensor], tokens: TokenLists | None, tokenizer: Tokenizer | None, perplexity: bool
) -> dict[str, object]:
    """`top` for outputs that are logits of token lists, and `perplexity` where asked for."""
    if tokens is None:
        return {}
    lengths = [len(row) for row in tokens.lists]
    out: dict[str, object] = {}
    logits = next((t for t in found.values() if t.dim() in (2, 3) and t.shape[0] == len(lengths)), None)
    if logits is not None and logits.is_floating_point():
        out["top"] = [top_tokens(row, TOP, tokenizer) for row in last_logits(logits, lengths)]
    if perplexity:
        every = next(t for t in found.values() if t.dim() == 3 and _is_logits(tuple(t.shape), tuple(t.shape[:2]), tokens))
        losses = [mean_nll(every[b], row) for b, row in enumerate(tokens.lists)]
        weights = [n - 1 for n in lengths]
        mean = sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)
        out |= {"mean_nll": mean, "perplexity": math.exp(mean), "tokens": sum(lengths)}
    return out
