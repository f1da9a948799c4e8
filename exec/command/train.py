"""`einpage train` for a person: the loss of every step as it comes, then what a step took; with `--json` one object at the end.

Everything that can be refused is refused before weights are loaded. With `--out` a checkpoint is written as often as asked, and at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import read_text, refuse_overwriting, refuse_unwritable, write_each
from einpage.einsum_front.base.units import format_bytes, format_seconds
from einpage.exec.command.options import files_read, request_of, settings_of, write_timeline
from einpage.exec.command.run import (
    device_of,
    inputs_of,
    machine_of,
    progress_bars,
    spec_of,
    stuck,
    takes_blocks,
    thread_warnings,
)
from einpage.exec.dispatch.progress import Hooks
from einpage.exec.load.inputs import read_tokens
from einpage.exec.picture.chrome_trace import write_trace
from einpage.exec.run.choose import RunOptions, choices_for, dispatch_of, kernels_for
from einpage.exec.system.spinner import planning_text
from einpage.exec.train.run import TrainResult, train_model
from einpage.exec.train.saved import TrainOptions
from einpage.exec.train.setup import TrainRequest, set_up
from einpage.exec.train.trainer import StepDone
from einpage.memplan.graph.simulate import moved_bytes_by_queue
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.machine.places import Queue

LONGEST_TEXT = 1 << 30
"""Characters of a text."""


def train_command(a: argparse.Namespace) -> int:
    """The `train` command. Raises the errors of every stage; returns 0."""
    warnings = thread_warnings(a.threads)
    if not a.weights:
        raise UsageError("train needs --weights: a checkpoint's path, or random:SEED")
    how = TrainOptions(a.steps, None if a.out is None else Path(a.out), a.checkpoint_every, a.resume)
    if a.data and a.tokens:
        raise UsageError("--data and --tokens both say what to learn; use one")
    chosen, notices = device_of(a), list[str]()
    request = request_of(a, 1, takes_blocks(chosen.kind, a.kernels))
    choices, refused = choices_for(a.fp32_products, chosen.kind, request.dtype)
    warnings += [] if refused is None else [refused]
    refuse_overwriting(files_read(a), a.trace, a.timeline)
    refuse_unwritable(a.trace, a.timeline)
    asked = TrainRequest(
        spec=spec_of(a, notices),
        weights=a.weights,
        how=how,
        settings=settings_of(a.set),
        text=read_text(Path(a.data), f"--data {a.data}", LONGEST_TEXT) if a.data else None,
        origin=f"--data {a.data}",
        tokens=read_tokens(a.tokens) if a.tokens else None,
        arrays=inputs_of(a.input),
        budget=a.budget,
        batch=a.batch,
        seq=a.seq,
        micro_batches=a.micro_batches,
        rate=a.lr,
        weight_decay=a.weight_decay,
        schedule=a.schedule,
        warmup=a.warmup,
        loss_scale=a.loss_scale,
    )
    setup = set_up(
        asked,
        RunOptions(
            plan=request,
            dispatch=dispatch_of(a.dispatch, False),
            device=chosen.kind,
            kernels=kernels_for(a.kernels, chosen.kind),
            choices=choices,
        ),
    )
    how.prepare_folder()
    machine = machine_of(a, chosen.kind)
    told = sys.stderr if a.json else sys.stdout

    def watch(done: StepDone) -> None:
        rate = "" if done.rate is None else f"  rate {done.rate:.3g}"
        if done.skipped:
            rate += f"  skipped: a gradient is not finite at loss scale {done.loss_scale:g}"
        speed = f"  {done.tokens / done.wall_s:.0f} tokens/s" if done.tokens else ""
        print(f"step {done.number}/{how.steps}  loss {done.loss:.6f}{rate}  {format_seconds(done.wall_s)}{speed}", file=told, flush=True)

    with progress_bars(chosen.why, planning_text(None), [*notices, *setup.notices], quiet=a.json) as shown:
        result = train_model(
            setup, shown.without_spinner(machine), how, a.weights,
            watch=watch, hooks=Hooks(stuck=stuck), loading=shown.loading, planned_hook=shown.planned,
        )  # fmt: skip
    result = replace(result, warnings=(*warnings, *result.warnings))
    write_each(
        (
            (a.trace, lambda path: write_trace(path, result.planned.memgraph, result.measured, result.planned.timeline)),
            (a.timeline, lambda path: write_timeline(path, result.planned, result.facts(), result.measured)),
        )
    )
    if a.json:
        print(json.dumps(result.facts()))
        return 0
    for warning in result.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(rendered(result, a.timeline))
    return 0


def rendered(result: TrainResult, timeline: str | None) -> str:
    """What the run took: bytes counted, predicted and measured time of a step."""
    plan, of, memgraph = result.planned.report, result.bytes, result.planned.memgraph
    planned = moved_bytes_by_queue(memgraph)
    exactly = all(result.measured.moved_bytes[queue] == nbytes for queue, nbytes in planned.items() if queue in result.measured.moved_bytes)
    exact = ": the plan's bytes exactly" if exactly else ""
    split = " ".join(f"{letter}={n}" for letter, n in plan.split) or "none"
    moved_in, moved_out = (format_bytes(result.measured.moved_bytes[queue]) for queue in (Queue.H2D, Queue.D2H))
    lines = [
        "",
        f"trained     {result.trained[1]:,} parameters in {result.trained[0]} weights; {result.tokens_per_s:.1f} tokens/s",
        f"plan        {plan.tasks} tasks, {plan.nodes} nodes, split {split}; judged right; made in {format_seconds(plan.plan_s)}",
        f"memory      arena {format_bytes(memgraph.budget_bytes)}, host {format_bytes(plan.host_bytes)}, "
        f"peak resident {format_bytes(result.peak_rss_bytes)}",
        f"moved       {moved_in} to the device, {moved_out} back a step{exact}",
        f"states      {format_bytes(of.states_read)} read, {format_bytes(of.states_written)} written; "
        f"activations {format_bytes(of.activations_read)} and {format_bytes(of.activations_written)}; "
        f"frozen weights {format_bytes(of.frozen_read)} read",
        f"time        predicted {format_seconds(plan.predicted_s)}, measured {format_seconds(result.wall_s)} a step, "
        f"{result.options.dispatch.value} dispatch",
    ]
    if result.options.plan.recompute is not Recompute.NEVER:
        lines.append(f"recompute   {_recompute_text(result)}")
    if result.skipped is not None:
        lines.append(
            f"loss scale  {result.done[-1].loss_scale:g} in the last step; {len(result.skipped)} of {len(result.losses)} steps skipped"
        )
    lines += [f"saved       {path}" for path in result.saved]
    if timeline:
        lines.append(f"timeline    {timeline}")
    return "\n".join(lines)


def _recompute_text(result: TrainResult) -> str:
    """What second runs of tasks cost and spare, or why there is none."""
    again, once_s, fastest = result.planned.report.again, result.planned.once_s, result.options.plan.recompute is Recompute.FASTEST
    if not again.second_runs:
        return "no second run: " + ("none makes a step faster" if fastest else "nothing is offloaded that a task could make again")
    without = "" if not fastest else "; without them nothing fits" if once_s is None else f"; without them {format_seconds(once_s)} a step"
    return again.text + without
