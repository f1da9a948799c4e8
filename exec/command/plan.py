"""`einpage plan`: the plan of a spec or of an access trace under a budget, judged, predicted and bounded; `einpage show`: what is planned.

In: the arguments of the command line. Out: the report on stdout; with `--out` the plan file, with `--timeline` the picture.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

from einpage.checkpoints.files.checkpoint import folded
from einpage.checkpoints.match.resolve import open_weights
from einpage.einsum_front.base.dtype import DType, Stored
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import checksum, refuse_overwriting, refuse_unwritable, write_each
from einpage.einsum_front.base.units import format_bytes, format_seconds, parse_bytes, refuse_outside
from einpage.einsum_front.graph.program import WeightsAs
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.exec.command.machine import machine_facts
from einpage.exec.command.options import files_read, names_of, no_fuse_of, pieces_of, request_of, settings_of, weights_as_of, write_timeline
from einpage.exec.planning.advice import Advice, advice
from einpage.exec.planning.judged_plan import Planned, Planner, plan_tasks, stored_warnings
from einpage.exec.planning.model import SIZES, Model, open_model, refuse_lacking_sizes, refuse_option_positions, shown_training
from einpage.exec.planning.plan_set import PlannedSet, plan_texts, resident_weights
from einpage.exec.planning.task_graph import split_as_told
from einpage.exec.planning.text_lengths import MOST_POSITIONS, Bucket, TextLengths
from einpage.exec.system.find_spec import spec_path
from einpage.exec.system.spinner import planning_text, spinner
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.graph.planfile import save_plan, save_plan_set
from einpage.memplan.machine.machine import Machine, links_only
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.problem.pace import Pace
from einpage.memplan.report import render
from einpage.memplan.schedule.static_plans import Policy

OF_A_SPEC = ("set", "weights", "dtype", "outputs", "split", "no_fuse", "weights_as")
"""Options that mean nothing to a trace."""


def plan_command(a: argparse.Namespace) -> int:
    """Plan, write what --out and --timeline name, print the report; returns the exit status. Raises EinpageError."""
    began = perf_counter()
    refuse_overwriting(files_read(a), a.out, a.timeline)
    refuse_unwritable(a.out, a.timeline)
    if a.budget is None and a.generate is not None:
        raise UsageError("plan needs --budget SIZE, the device arena, as 8GiB")
    if a.generate is not None:
        return _plan_set_command(a, began)
    if a.sweep:
        from einpage.exec.command.sweep import sweep_command

        return sweep_command(a, Plans().planned)
    if a.budget is None:
        raise UsageError("plan needs --budget SIZE, the device arena, as 8GiB; or --sweep budget=4GiB:40GiB")
    budget = parse_bytes(a.budget, "--budget")
    pace, plans = request_of(a, budget).pace(), Plans()
    with spinner(planning_text(pace), quiet=a.json):
        planned = plans.planned(a, budget, began, pace)
        helps = advice_for(a, planned, plans)
    machine = planned.machine
    warnings = [*planned.warnings, *stored_warnings(planned, weights_as_of(a.weights_as, machine.is_cpu))]
    if budget > machine.device_bytes:
        warnings.append(f"budget {format_bytes(budget)} is more than the {format_bytes(machine.device_bytes)} of {machine.name}")
    write_each(
        (
            (a.out, lambda path: save_plan(path, planned.memgraph, recipe_of(a, planned))),
            (a.timeline, lambda path: write_timeline(path, planned, planned.facts)),
        )
    )
    if a.json:
        print(json.dumps({**planned.facts, "advice": None if helps is None else helps.facts(), "warnings": warnings}))
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(render(planned.report, None if helps is None else helps.text))
    return 0


OF_ONE_PLAN = ("graph", "passes", "warm", "free_order", "sweep", "outputs", "timeline")
"""Options that mean nothing to the plans of a generation."""


def _plan_set_command(a: argparse.Namespace, began: float) -> int:
    """`plan --generate N`: the plans of a whole generation, of N positions, prompts and all."""
    given = [f"--{word.replace('_', '-')}" for word in OF_ONE_PLAN if getattr(a, word)]
    given += ["--policy"] if a.policy != Policy.AUTO.value else []
    if given:
        raise UsageError(f"{', '.join(given)}: of one plan, and --generate makes a set of them; leave out")
    if a.spec is None:
        raise UsageError("nothing to plan: give a SPEC that has `state:`, as specs/llama.yaml")
    refuse_outside("--generate", a.generate, 2, MOST_POSITIONS)
    refuse_lacking_sizes(a.spec)
    machine, settings = load_machine(a.machine or "cpu", h2d=a.h2d, d2h=a.d2h, device_bytes=a.device_bytes), settings_of(a.set)
    request = request_of(a, parse_bytes(a.budget, "--budget"), machine.is_cpu)
    checkpoint = open_weights(a.weights) if a.weights else None
    first = open_model(a.spec, settings, checkpoint)
    sizes, rest = first.program.sizes, {name: value for name, value in settings.items() if name not in SIZES}
    if len(rest) + len({"batch", "seq"} & settings.keys()) < len(settings):
        raise UsageError("--set past and --set room: --generate sets them; leave out")
    prompt = int(sizes.get("seq", 1))
    if a.generate <= prompt:
        raise UsageError(f"--generate {a.generate} positions, and prompts of `seq` = {prompt} tokens: ask for more, or --set seq=N smaller")
    texts = TextLengths(int(sizes.get("batch", 1)), prompt, 1 if sizes.get("batch", 1) == 1 else prompt, a.generate - prompt + 1)
    told = Told()

    def model_at(given: Mapping[str, int]) -> Model:
        return open_model(a.spec, {**rest, **given}, checkpoint)

    with spinner(told.text, quiet=a.json):
        refuse_option_positions(model_at, texts.batch, "--generate", a.generate)
        plans = plan_texts(model_at, machine, request, texts, told.planning)
    plan_s = perf_counter() - began
    warnings = [*first.warnings, *stored_warnings(plans.first.planned, request.weights_as)]
    write_each(((a.out, lambda path: save_plan_set(path, plans.plan_set, set_recipe(a, plans, rest, machine))),))
    if a.json:
        print(json.dumps({**set_facts(plans), "plan_s": plan_s, "warnings": warnings}))
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(set_text(plans, plan_s))
    return 0


class Told:
    """Which plan of how many is being made, for a spinner."""

    def __init__(self) -> None:
        self._text = "planning"

    def planning(self, n: int, count: int) -> None:
        """Called before the n-th."""
        self._text = f"planning {n} of {count}"

    def text(self) -> str:
        """As it is now."""
        return self._text


def set_recipe(a: argparse.Namespace, plans: PlannedSet, settings: Mapping[str, str], machine: Machine) -> dict[str, object]:
    """What it takes to make these plans again. `settings` are those that are the same in all of them."""
    file, texts = spec_path(a.spec), plans.texts
    return {
        "spec": file.name,
        "spec_sha256": checksum(file),
        "settings": dict(settings),
        "dtype": plans.first.planned.graph.dtype.value,
        "budget_bytes": plans.budget_bytes,
        "weights_as": weights_as_word(a, machine, plans.first.planned.graph),
        "no_fuse": list(no_fuse_of(a.no_fuse)),
        "texts": asdict(texts),
        "machine": machine_facts(machine),
    }


def set_facts(plans: PlannedSet) -> dict[str, object]:
    """What `plan --generate --json` says: sizes in bytes, times in seconds."""
    phases = []
    for phase in (*plans.reads, *plans.buckets):
        report, bucket, first = phase.planned.report, phase.bucket, phase.first
        phases.append(
            {
                "past": bucket.past,
                "extra": bucket.extra,
                "tokens": bucket.tokens,
                "predicted_s": report.predicted_s,
                "bound_s": report.bound_s,
                "bound_ratio": report.bound_ratio,
                "h2d_bytes": report.h2d_bytes,
                "d2h_bytes": report.d2h_bytes,
                "resident_weights": len(resident_weights(phase)),
                "first_pass_s": report.predicted_s if first is None else first.seconds,
                "split": {str(letter): n for letter, n in phase.planned.graph.split if n > 1},
            }
        )
    texts = plans.texts
    return {
        "batch": texts.batch,
        "prompt_tokens": texts.longest,
        "positions": texts.positions,
        "budget_bytes": plans.budget_bytes,
        "host_bytes": plans.host_bytes,
        "verified": True,
        "phases": phases,
    }


def set_text(plans: PlannedSet, plan_s: float) -> str:
    """The same for a person."""
    texts = plans.texts
    lines = []
    for phase in plans.reads:
        report, bucket = (phase.first or phase).planned.report, phase.bucket
        ratio = "" if report.bound_ratio is None else f", {report.bound_ratio:.2f} × its bound"
        what = f"{texts.batch} of up to {texts.longest} tokens"
        if texts.chunk:
            what += f", {bucket.tokens} tokens from {_first_positions(bucket)} on"
        later = "" if phase.first is None else f"; {format_seconds(phase.seconds)} after another text, whose weights stayed"
        lines.append(f"prompts     {what}: {format_seconds(report.predicted_s)}{ratio}{later}")
    lines += [
        "positions         a token     × its bound   moved a token   resident weights",
    ]
    for phase in plans.buckets:
        report = phase.planned.report
        moved = format_bytes(report.h2d_bytes + report.d2h_bytes)
        times = "" if report.bound_ratio is None else f"{report.bound_ratio:.3f}"
        where, resident = _first_positions(phase.bucket), len(resident_weights(phase))
        lines.append(f"{where:<16}  {format_seconds(report.predicted_s):<10}  {times:<12}  {moved:<14}  {resident}")
    lines.append(f"memory      arena {format_bytes(plans.budget_bytes)}, host {format_bytes(plans.host_bytes)}")
    lines.append(f"plans       {len(plans.plan_set.phases)}, each and all together judged right, made in {format_seconds(plan_s)}")
    return "\n".join(lines)


def _first_positions(bucket: Bucket) -> str:
    """Where its passes begin."""
    return f"{bucket.past}-{bucket.past + bucket.extra}"


class Plans:
    """Plans of the spec or the trace that arguments name, one after another: what does not change from one to the next is made once."""

    def __init__(self) -> None:
        self._last: tuple[Mapping[str, str], Model, Planner] | None = None
        """Settings, and the spec opened with them."""

    def planned(self, a: argparse.Namespace, budget: int, began: float, pace: Pace | None = None) -> Planned:
        """The plan of the spec or the trace that `a` names; `began` is when the command did. From call to call only the budget, settings
        and what is searched for may change. Raises EinpageError."""
        if a.graph:
            return planned_trace(a, budget, began, pace)
        if a.spec is None:
            raise UsageError("nothing to plan: give a SPEC, as specs/llama.yaml, or --graph FILE.json, an access trace")
        machine = load_machine(a.machine or "cpu", h2d=a.h2d, d2h=a.d2h, device_bytes=a.device_bytes)
        request, settings = request_of(a, budget, machine.is_cpu), settings_of(a.set)
        if self._last is None or self._last[0] != settings:
            model = open_model(a.spec, settings, a.weights, request=request)
            self._last = settings, model, Planner(model.program)
        _, model, planner = self._last
        return replace(planner.plan(machine, request, began, pace), warnings=model.warnings)


def advice_for(a: argparse.Namespace, planned: Planned, plans: Plans) -> Advice | None:
    """What would help the plan most: found with plans that are not searched for. None for a loop, of which each plan takes seconds."""
    if a.passes is not None:
        return None
    known = a.graph is None or a.machine is not None or a.device_bytes is not None

    def again(budget: int, sizes: Mapping[str, int]) -> Planned:
        settings = {**settings_of(a.set), **sizes}
        changed = {
            "set": [f"{name}={value}" for name, value in settings.items()],
            "plan_seconds": 0.0,
            "plan_steps": None,
            "bounds": Effort.FAST.value,
        }
        return plans.planned(argparse.Namespace(**{**vars(a), **changed}), budget, perf_counter())

    return advice(planned, planned.sizes, planned.machine.device_bytes if known else None, again)


def planned_trace(a: argparse.Namespace, budget: int, began: float, pace: Pace | None) -> Planned:
    """The plan of the trace `a.graph`; `began` is when the command did. Raises UsageError, DoesNotFit.

    A trace has its sizes and times already, so options that speak of a spec are refused; its bytes may lie anywhere, so they are planned
    without alignment.
    """
    if a.spec is not None:
        raise UsageError(f"SPEC {a.spec} and --graph {a.graph} exclude each other: give one of them")
    given = [f"--{word.replace('_', '-')}" for word in OF_A_SPEC if getattr(a, word)]
    if given:
        raise UsageError(f"{', '.join(given)}: of a spec, and --graph {a.graph} is a trace, which has its sizes and times; leave out")
    machine = _trace_machine(a, budget)
    request = replace(request_of(a, budget), alignment=1)
    return plan_tasks(read_trace(a.graph), machine, request, began, pace)


def _trace_machine(a: argparse.Namespace, budget: int) -> Machine:
    """Without --machine, only the links are known, and copies have no latency."""
    if a.machine is not None:
        return load_machine(a.machine, h2d=a.h2d, d2h=a.d2h, device_bytes=a.device_bytes)
    if a.h2d is None:
        raise UsageError(
            f"--graph {a.graph}: how fast are the links? give --h2d RATE (and --d2h RATE), as in --h2d 24GB/s, or --machine NAME"
        )
    return links_only(a.h2d, a.d2h, budget if a.device_bytes is None else parse_bytes(a.device_bytes, "--device-bytes"))


def recipe_of(a: argparse.Namespace, planned: Planned) -> dict[str, object]:
    """What it takes to make this plan again."""
    word, file = ("graph", Path(a.graph)) if a.graph else ("spec", spec_path(a.spec))
    return {
        word: file.name,
        f"{word}_sha256": checksum(file),
        "settings": settings_of(a.set),
        "dtype": planned.graph.dtype.value,
        "budget_bytes": planned.memgraph.budget_bytes,
        "split": {str(k): n for k, n in planned.graph.split},
        "policy": planned.report.policy.value,
        "plan_steps": planned.report.plan_steps,
        "weights_as": weights_as_word(a, planned.machine, planned.graph),
        "no_fuse": list(no_fuse_of(a.no_fuse)),
        "outputs": [name for name, _ in planned.graph.outputs],
        "machine": machine_facts(planned.machine),
    }


def weights_as_word(a: argparse.Namespace, machine: Machine, graph: TaskGraph) -> str:
    """The form of weights that a plan is of: what was asked for, or `run` where no weight is kept as it is stored."""
    kept = any(isinstance(value.element_type, Stored) for value in graph.values)
    return weights_as_of(a.weights_as, machine.is_cpu).value if kept else WeightsAs.RUN.value


def show_command(a: argparse.Namespace) -> int:
    """Raises SpecError, UsageError, WeightError."""
    model = open_model(a.spec, settings_of(a.set), a.weights, train=a.train)
    for warning in model.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if a.train:
        refused = [option for option, given in (("--outputs", a.outputs), ("--split", a.split), ("--no-fuse", a.no_fuse)) if given]
        if refused:
            raise UsageError(f"--train shows statements, before anything is fused or split: leave out {refused[0]}")
        facts, text = shown_training(model, a.spec, DType(a.dtype))
        print(json.dumps(facts) if a.json else text)
        return 0
    shifted = shifted_sources(model)
    weights_as = weights_as_of(a.weights_as, True)
    built = split_as_told(model.program, DType(a.dtype), pieces_of(a.split), names_of(a.outputs), no_fuse_of(a.no_fuse), weights_as)
    if a.json:
        print(json.dumps({**built.facts(), **({"plus": shifted} if shifted else {})}))
        return 0
    print(built.text())
    for line in folded(f"{source} + {plus:g}" for source, plus in shifted.items()):
        print(f"read as     {line}")
    return 0


def shifted_sources(model: Model) -> dict[str, float]:
    """The checkpoint's tensors to which a number is added when they are read, and the number (`plus:`)."""
    chosen = model.resolved.source_by_weight.values() if model.resolved is not None else ()
    return {source.name: source.plus for source in chosen if source.plus}
