"""`einpage run` for a person: arguments checked, weights loaded under a progress bar, the best next tokens and figures printed.

Everything that can be refused is refused before weights are loaded, and every file asked for is written only after the run is done.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from einpage.checkpoints.text.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import refuse_full, refuse_overwriting, refuse_unwritable, write_each, write_through
from einpage.einsum_front.base.units import format_bytes, format_seconds, parse_bytes, parse_rate
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.command.options import files_read, prompt_texts, request_of, settings_of, write_timeline
from einpage.exec.dispatch.progress import Hooks, QueueHead
from einpage.exec.dispatch.progress import Progress as RunProgress
from einpage.exec.load.inputs import TokenLists, encode_prompts, read_input, read_tokens
from einpage.exec.measure.cpu import cores
from einpage.exec.measure.profiles import with_disk
from einpage.exec.picture.chrome_trace import write_trace
from einpage.exec.planning.judged_plan import MachineSource, Planned
from einpage.exec.planning.model import open_model, spec_for
from einpage.exec.run.choose import (
    ChosenDevice,
    DeviceKind,
    RunOptions,
    choices_for,
    default_budget,
    device_for,
    dispatch_of,
    kernels_for,
    measured_machine,
)
from einpage.exec.run.prepared import RunResult, run_model
from einpage.exec.run.report import DiskFigures
from einpage.exec.system.spinner import planning_text, spinner
from einpage.memplan.bounds.limit import limit_name
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import checked_threads, load_machine
from einpage.memplan.report import stored_text


def run_command(a: argparse.Namespace) -> int:
    """The `run` command. Raises the errors of every stage; returns 0."""
    warnings = thread_warnings(a.threads)
    if not a.weights:
        raise UsageError("run needs --weights: a checkpoint's path, or random:SEED")
    chosen, notices = device_of(a), list[str]()
    request = request_of(a, budget_of(a, chosen.kind, notices), takes_blocks(chosen.kind, a.kernels))
    choices, refused = choices_for(a.fp32_products, chosen.kind, request.dtype)
    options = RunOptions(
        plan=request,
        perplexity=a.perplexity,
        dispatch=dispatch_of(a.dispatch, a.find_nan),
        find_nan=a.find_nan,
        device=chosen.kind,
        kernels=kernels_for(a.kernels, chosen.kind),
        choices=choices,
        tiles_refused=refused,
    )
    tokens, tokenizer = tokens_of(a)
    named = inputs_of(a.input)
    refuse_overwriting(files_read(a), a.logits, a.trace, a.timeline)
    refuse_unwritable(a.logits, a.trace, a.timeline)
    model = open_model(spec_of(a, notices), settings_of(a.set), a.weights, tokens, tokenizer)
    machine = machine_of(a, chosen.kind)
    pace = options.plan.pace()
    with progress_bars(chosen.why, planning_text(pace), notices, quiet=a.json) as shown:

        def planned(found: Planned) -> None:
            refuse_full(a.logits, sum(t.nbytes for t in found.graph.tensors if t.kind is Kind.OUTPUT))
            shown.planned(found)

        result = run_model(
            model, shown.without_spinner(machine), options, named, hooks=shown.hooks, loading=shown.loading, planned_hook=planned, pace=pace
        )
    report = replace(result.report, warnings=(*warnings, *result.report.warnings))
    write_each(
        (
            (a.logits, lambda path: write_outputs(path, result.outputs)),
            (a.trace, lambda path: write_trace(path, result.planned.memgraph, result.measured, result.planned.timeline)),
            (a.timeline, lambda path: write_timeline(path, result.planned, result.facts, result.measured)),
        )
    )
    if a.json:
        print(json.dumps(report.facts()))
        return 0
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(rendered(result, a.timeline))
    return 0


def budget_of(a: argparse.Namespace, kind: DeviceKind, notices: list[str]) -> int:
    """Bytes of the device arena: --budget, or what the device has to spare, which `notices` say."""
    if a.budget is not None:
        return parse_bytes(a.budget, "--budget")
    nbytes, of = default_budget(kind)
    notices.append(f"budget: {format_bytes(nbytes)}, {of}")
    return nbytes


def spec_of(a: argparse.Namespace, notices: list[str]) -> str:
    """The spec that is named, or else the one of those that ship that is right for the weights, which `notices` say."""
    if a.spec is not None:
        return str(a.spec)
    name = spec_for(a.weights)
    notices.append(f"spec: {name}, by the checkpoint's metadata")
    return name


def device_of(a: argparse.Namespace) -> ChosenDevice:
    """The device that --device asks for. Raises UsageError, for --threads beside a GPU too."""
    chosen = device_for(a.device)
    if a.threads is not None and chosen.kind is not DeviceKind.CPU:
        raise UsageError("--threads is a figure of the CPU device; leave it out, or say --device cpu")
    return chosen


def takes_blocks(kind: DeviceKind, kernels: str) -> bool:
    """Whether the kernels that run there unpack blocks of stored weights."""
    return kernels_for(kernels, kind) == "torch"


def write_outputs(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """`tensors` by name as a safetensors file. Raises UsageError where the place cannot be written."""

    def write(part: Path) -> None:
        try:
            save_file({name: t.contiguous() for name, t in tensors.items()}, part)
        except SafetensorError as error:  # the library's own class for what the system refuses
            raise OSError(str(error)) from error

    write_through(path, write)


def thread_warnings(threads: int | None) -> list[str]:
    """Warnings about a number of threads that is allowed. Raises UsageError for one that is not."""
    if threads is None or checked_threads(threads) <= cores():
        return []
    return [f"--threads {threads} is more than the {cores()} cores there are: threads will wait for one another"]


def tokens_of(a: argparse.Namespace) -> tuple[TokenLists | None, Tokenizer | None]:
    """Token ids from --prompt or --tokens, and the checkpoint's tokenizer where it has one (a prompt needs it)."""
    if a.prompt and a.tokens:
        raise UsageError("--prompt and --tokens both give the text; use one")
    if a.prompt:
        tokenizer = load_tokenizer(a.weights)
        return encode_prompts(tokenizer, prompt_texts(a.prompt)), tokenizer
    if a.tokens:
        try:
            return read_tokens(a.tokens), load_tokenizer(a.weights)
        except TokenizerError:
            return read_tokens(a.tokens), None
    return None, None


def inputs_of(assignments: list[str]) -> Mapping[str, NDArray[np.generic]]:
    """Arrays by input name, from the `NAME=FILE` of --input. Raises UsageError for a file that cannot be used, or a name given twice."""
    out: dict[str, NDArray[np.generic]] = {}
    for assignment in assignments:
        name, array = read_input(assignment)
        if name in out:
            raise UsageError(f"--input {name} is given twice")
        out[name] = array
    return out


def machine_of(a: argparse.Namespace, kind: DeviceKind) -> Machine | MachineSource:
    """The profile named by --machine; else a function for that of this machine's own device, which it measures where it never was."""

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    if a.machine:
        named = load_machine(a.machine, h2d=a.h2d, d2h=a.d2h, device_bytes=a.device_bytes, threads=a.threads)
        return (lambda: with_disk(named, say)) if a.host_budget else named
    rates = [(Queue.H2D, parse_rate(a.h2d, "--h2d"))] if a.h2d else []
    rates += [(Queue.D2H, parse_rate(a.d2h, "--d2h"))] if a.d2h else []
    device_bytes = parse_bytes(a.device_bytes, "--device-bytes") if a.device_bytes else None

    def machine() -> Machine:
        found = measured_machine(kind, a.threads, say=say)
        if a.host_budget:
            found = with_disk(found, say)
        for queue, bytes_per_s in rates:
            found = found.with_rate(queue, bytes_per_s)
        return found if device_bytes is None else replace(found, device_bytes=device_bytes)

    return machine


class ProgressBars:
    """Two progress bars on stderr: weights loaded, then bytes moved by the engines. Silent where `quiet` or not a terminal."""

    def __init__(self, bars: Progress, spin: Callable[[bool], None], start: Callable[[], None], notices: Sequence[str]) -> None:
        """`spin` stops the spinner and starts it again; `start` is called when there is a plan: the bars may be drawn."""
        self._bars, self._spin, self._start, self._notices = bars, spin, start, notices
        self._load: TaskID | None = None
        self._run: TaskID | None = None

    @property
    def hooks(self) -> Hooks:
        """Callbacks for the run: its progress moves the second bar, a stuck run prints its queue heads."""
        return Hooks(progress=self.running, stuck=stuck)

    def without_spinner(self, machine: Machine | MachineSource) -> Machine | MachineSource:
        """`machine`; one that is yet to be measured, without a thread that draws meanwhile."""
        if isinstance(machine, Machine):
            return machine

        def measured() -> Machine:
            self._spin(False)
            try:
                return machine()
            finally:
                self._spin(True)

        return measured

    def planned(self, planned: Planned) -> None:
        """Nothing can be refused any more: say what nobody asked for in words, and start with the weights."""
        self._start()
        for notice in self._notices:
            print(notice, file=sys.stderr)
        tensors = planned.graph.tensors
        nbytes = sum(t.nbytes for t in tensors if t.kind.value == "weight")
        self._load = self._bars.add_task("load weights", total=nbytes)

    def loading(self, weight: str, nbytes: int) -> None:
        """`nbytes` more of `weight` have been loaded."""
        if self._load is not None:
            self._bars.update(self._load, advance=nbytes)

    def running(self, p: RunProgress) -> None:
        """Show the run's bytes moved and tasks done."""
        if self._run is None:
            self._run = self._bars.add_task("run", total=sum(p.plan_bytes.values()))
        self._bars.update(self._run, completed=sum(p.moved_bytes.values()), description=f"run {p.tasks_done}/{p.tasks} tasks")


@contextmanager
def progress_bars(device: str, planning: Callable[[], str], notices: Sequence[str], quiet: bool) -> Iterator[ProgressBars]:
    """The planner's spinner, then the bars: a terminal can show one of them. Between them `notices`, and unless `quiet` where it runs."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bars = Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal)
    with ExitStack() as drawn:
        before = drawn.enter_context(ExitStack())

        def spin(on: bool) -> None:
            before.close()
            if on:
                before.enter_context(spinner(planning, quiet))

        def start() -> None:
            spin(False)
            drawn.enter_context(bars)

        spin(True)
        yield ProgressBars(bars, spin, start, notices if quiet else (*notices, f"device: {device}"))


def stuck(heads: tuple[QueueHead, ...]) -> None:
    """Nothing has finished for a while: print what each engine is at."""
    print("einpage: nothing has finished for a while; the head of each engine:", file=sys.stderr)
    for head in heads:
        print(f"  {head.text()}", file=sys.stderr)


def rendered(result: RunResult, timeline: str | None) -> str:
    """The best next tokens, then what the run took: bytes counted, plan ÷ bound, predicted and measured time."""
    r, plan, text = result.report, result.report.plan, result.report.text
    lines = list(_tops(text.top or []))
    if text.top is None:
        lines += [f"output      {name} {list(t.shape)}" for name, t in result.outputs.items()]
    if (of := text.perplexity) is not None:
        lines.append(f"perplexity  {of.perplexity:.4f} over {of.tokens} tokens (mean NLL {of.mean_nll:.6f})")
    split = " ".join(f"{letter}={n}" for letter, n in plan.split) or "none"
    beside = "kernels' scratch" if r.device.name == "cpu" else "device memory beside it"
    sizes = (r.device.arena_bytes, r.device.outside_arena_bytes, plan.host_bytes, r.peak_rss_bytes)
    arena, scratch, host, peak = map(format_bytes, sizes)
    moved_in, moved_out = format_bytes(r.measured.moved_bytes[Queue.H2D]), format_bytes(r.measured.moved_bytes[Queue.D2H])
    predicted, measured, bound, planning = map(format_seconds, (plan.predicted_s, r.wall_s, plan.bound_s, plan.plan_s))
    if r.find_nan is not None:
        lines.append(f"find-nan    {r.find_nan.text()}")
    lines += [
        "",
        f"plan        {plan.tasks} tasks, {plan.nodes} nodes, split {split}; judged right; made in {planning}",
        *([f"weights     {stored_text(plan)}"] if plan.weight_formats else []),
        f"memory      arena {arena}, {beside} {scratch}, host {host}, peak resident {peak}",
        f"moved       {moved_in} to the device, {moved_out} back: the plan's bytes exactly",
        *([] if r.disk is None else [disk_text(r.disk)]),
        *([f"passes      {plan.passes.passes}; bytes and times are those of one"] if plan.passes is not None else []),
        *([f"recompute   {plan.again.text}"] if plan.again.second_runs else []),
        f"time        predicted {predicted}, measured {measured} (× {r.measured_ratio:.2f}), {r.dispatch.value} dispatch",
        f"plan÷bound  {plan.bound_ratio:.3f}  (bound {bound}, {limit_name(plan.bound_limit)})",
        *([f"kernels     {'; '.join(f'{n} × {way}' for way, n in r.ways)}; tiles: {r.choices.tiles_text}"] if r.ways else []),
    ]
    if timeline:
        lines.append(f"timeline    {timeline}")
    return "\n".join(lines)


def disk_text(disk: DiskFigures) -> str:
    """What the disk moved in the last pass, by which path, and what its host arena spares."""
    written = f", {format_bytes(disk.written_bytes[-1])} written" if disk.written_bytes[-1] else ""
    loaded = f", {format_bytes(disk.loaded_bytes)} before the first pass" if disk.loaded_bytes else ""
    rounded, exact = format_bytes(disk.host_power_of_two_bytes), format_bytes(disk.host_peak_bytes)
    return (
        f"disk        {format_bytes(disk.read_bytes[-1])} read{written}{loaded}: the plan's sectors, by {disk.path}\n"
        f"on the host {exact} at once; rounded up to powers of two, {rounded}"
    )


def _tops(sequences: Sequence[Sequence[tuple[int, str | None, float]]]) -> Iterator[str]:
    """The best next tokens of each sequence."""
    for i, row in enumerate(sequences):
        if len(sequences) > 1:
            yield f"sequence {i}"
        for rank, (token, text, logit) in enumerate(row, 1):
            word = "" if text is None else repr(text)
            yield f"  {rank}  {word:<14} {logit:9.4f}   (id {token})"
