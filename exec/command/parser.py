"""The command line: `einpage show | plan | run | verify | pack | machine`. Words in, exit status out.

0 done, 1 our bug, 2 the user's mistake, 3 does not fit, 130 interrupted. With `--json` stdout holds one JSON object and nothing else;
what is for a person's eyes while waiting goes to stderr. `show`, `plan`, `verify` and `pack` never import torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from time import perf_counter

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.base.errors import EinpageError, UsageError
from einpage.einsum_front.base.units import format_bytes, parse_bytes
from einpage.exec.build.advice import advice
from einpage.exec.build.judged_plan import Planned, make_loop, make_plan
from einpage.exec.build.model import open_model
from einpage.exec.build.task_graph import build_graph, cut_graph
from einpage.exec.command.options import fusions_of, names_of, pieces_of, settings_of, start_of, write_timeline
from einpage.exec.command.pack import pack_from_arguments
from einpage.exec.command.trace import planned_trace
from einpage.exec.command.verify import verify_from_arguments
from einpage.exec.load.find_spec import spec_names, spec_path
from einpage.exec.system.files import refuse_unwritable
from einpage.exec.system.interrupt import ends_at_once
from einpage.exec.system.spinner import planning, said_to_wait
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.graph.planfile import save_plan
from einpage.memplan.plan import PlanOptions
from einpage.memplan.problem.machine import Machine, load_machine, machine_names, machine_text
from einpage.memplan.report import render as render_report
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.schedule.static_plans import Policy

DTYPE = DType.FP32.value
"""What a spec is planned and run in where nobody says."""


def answer(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; every error is one message on stderr. Interrupts pass."""
    arguments = parser().parse_args(argv)
    try:
        command = arguments.command_function
        return int(command(arguments))
    except EinpageError as error:
        print(f"einpage: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        return 0
    except Exception:
        traceback.print_exc()
        print("einpage: this is a bug of ours; the lines above say where", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The grammar of the command line."""
    root = argparse.ArgumentParser(prog="einpage", description="A model as math in YAML, a plan for every byte, a run that replays it.")
    commands = root.add_subparsers(required=True, metavar="COMMAND")

    show = commands.add_parser("show", help="sizes, FLOPs, what fused and what did not, the largest working set")
    _spec_arguments(show)
    show.set_defaults(command_function=show_command)

    plan = commands.add_parser("plan", help="plan under a budget, judge the plan, predict its time, bound it")
    _spec_arguments(plan, may_be_absent=True)
    _plan_arguments(plan, budget_required=False)
    plan.add_argument("--graph", metavar="FILE.json[.gz]", help="plan an access trace instead of a spec; its tasks bring their times")
    plan.add_argument("--machine", metavar="NAME|FILE", help=f"a profile: {', '.join(machine_names())} (default: cpu, for a spec)")
    statics = "a static plan in place of the planner's (auto, the default)"
    plan.add_argument("--policy", choices=[p.value for p in Policy], default=Policy.AUTO.value, help=statics)
    plan.add_argument("--free-order", action="store_true", help="let independent tasks change places where that is faster")
    plan.add_argument("--warm", action="store_true", help="start with weights on the device, as far as they fit")
    plan.add_argument("--out", metavar="FILE", help="save the plan as JSON")
    plan.add_argument(
        "--sweep", metavar="NAME=LOW:HIGH[:N]", help="a plan for each budget (budget=4GiB:40GiB) or size (seq=512:8192): time against it"
    )
    efforts = "fast: no linear programme; lp: always solve; auto: where it is cheap and the plan is not known to be good (default)"
    plan.add_argument("--bounds", choices=[e.value for e in Effort], default=Effort.AUTO.value, help=efforts)
    plan.set_defaults(command_function=plan_command, effort=None)

    run = commands.add_parser("run", help="plan and run with real weights")
    _spec_arguments(run)
    _plan_arguments(run)
    run.add_argument("--machine", metavar="NAME|FILE", help="plan for this profile instead of the measured one")
    run.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    run.add_argument("--dispatch", choices=("dynamic", "static", "serial"), default="dynamic")
    run.add_argument("--kernels", choices=("auto", "torch", "triton"), default="auto")
    run.add_argument("--prompt", action="append", metavar="TEXT", help="repeat for a batch")
    run.add_argument("--tokens", metavar="FILE", help="JSON: a list of token ids, or a list of such lists")
    run.add_argument("--input", action="append", default=[], metavar="NAME=FILE", help="a .json, .npy or .safetensors array")
    run.add_argument("--perplexity", action="store_true", help="of the prompt or tokens")
    run.add_argument("--threads", type=int, metavar="N", help="threads a kernel may use")
    run.add_argument("--logits", metavar="FILE", help="save the outputs as safetensors")
    run.add_argument("--trace", metavar="FILE", help="save a Chrome/Perfetto trace")
    run.set_defaults(command_function=run_command, warm=False, policy=Policy.AUTO.value, free_order=False)

    verify = commands.add_parser("verify", help="judge a saved plan again")
    verify.add_argument("plan", metavar="PLAN.json")
    verify.add_argument("--spec", metavar="SPEC", help="prove too that its graph is what this spec says")
    verify.add_argument("--weights", metavar="PATH|random:SEED", help="for --spec: the checkpoint that gave the sizes, if one did")
    verify.add_argument("--graph", metavar="FILE.json[.gz]", help="prove too that its graph is this access trace")
    verify.add_argument("--json", action="store_true")
    verify.set_defaults(command_function=verify_from_arguments)

    packing = commands.add_parser("pack", help="place buffers whose lives are known: minimalloc's CSV")
    packing.add_argument("file", metavar="FILE.csv", help="columns id,lower,upper,size; a buffer is alive in [lower, upper)")
    packing.add_argument("--capacity", required=True, metavar="SIZE", help="the height to stay within: 1MiB, 1048576")
    packing.add_argument("--seconds", type=float, default=60.0, metavar="S", help="stop searching after this long (default: 60)")
    packing.add_argument("--seed", type=int, default=0, metavar="N", help="of the search's choices (default: 0)")
    packing.add_argument("--out", metavar="FILE.csv", help="where it fits, write the same columns and offset")
    packing.add_argument("--json", action="store_true", help="one JSON object on stdout, where it does not fit as well")
    packing.set_defaults(command_function=pack_from_arguments)

    machine = commands.add_parser("machine", help="the profiles there are, or this machine's own")
    machine.add_argument("name", nargs="?", help="a profile to print")
    machine.add_argument("--measure", action="store_true", help="measure this machine and keep the result for `run`")
    machine.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="what --measure measures")
    machine.add_argument("--json", action="store_true")
    machine.set_defaults(command_function=machine_command)
    return root


def _spec_arguments(p: argparse.ArgumentParser, may_be_absent: bool = False) -> None:
    p.add_argument(
        "spec", metavar="SPEC", nargs="?" if may_be_absent else None, help=f"a YAML file, or one that ships: {', '.join(spec_names())}"
    )
    p.add_argument("--set", action="append", default=[], metavar="K=V", help="a size or scalar of the spec")
    p.add_argument("--weights", metavar="PATH|random:SEED", help="a checkpoint: its metadata gives the sizes")
    p.add_argument("--dtype", choices=[d.value for d in RUN_DTYPES], default=None if may_be_absent else DTYPE, help=f"default: {DTYPE}")
    p.add_argument("--outputs", metavar="NAMES", help="comma-separated; default: the first the spec declares")
    p.add_argument("--split", metavar="f=4,v=16", help="fix how many pieces letters are cut into")
    p.add_argument("--no-fuse", metavar="WHAT", help="leave in parts: attention (its scores become tensors)")
    p.add_argument("--json", action="store_true", help="one JSON object on stdout")


def _plan_arguments(p: argparse.ArgumentParser, budget_required: bool = True) -> None:
    p.add_argument("--budget", required=budget_required, metavar="SIZE", help="the device arena: 64MiB, 8GiB, 1.5GB")
    p.add_argument("--h2d", metavar="RATE", help="override the profile's host → device bytes/s")
    p.add_argument("--d2h", metavar="RATE", help="override the profile's device → host bytes/s")
    p.add_argument("--device-bytes", metavar="SIZE", help="override the profile's device memory")
    efforts = "0: plan at once (default; for --graph it is 1); 1 to 3: look longer for a faster plan; never a slower one"
    p.add_argument("--effort", type=int, choices=range(4), default=0, help=efforts)
    p.add_argument("--passes", type=int, metavar="N", help="run N times in a row: plan a pass that leaves the weights that fit in place")
    p.add_argument("--timeline", metavar="FILE", help="write the picture of every byte as one HTML page (or .svg)")


def show_command(a: argparse.Namespace) -> int:
    model = open_model(a.spec, settings_of(a.set), a.weights)
    built = cut_graph(model.program, DType(a.dtype), pieces_of(a.split), names_of(a.outputs), fusions_of(a.no_fuse))
    print(json.dumps(built.facts()) if a.json else built.text())
    return 0


def plan_command(a: argparse.Namespace) -> int:
    began = perf_counter()
    refuse_unwritable(a.out, a.timeline)
    if a.effort is None:
        a.effort = usual_effort(a)
    if a.sweep:
        from einpage.exec.command.sweep import sweep_from_arguments

        return sweep_from_arguments(a, planned_for)
    if a.budget is None:
        raise UsageError("plan needs --budget SIZE, the device arena, as 8GiB; or --sweep budget=4GiB:40GiB")
    budget = parse_bytes(a.budget, "--budget")
    with said_to_wait(planning(a.effort), quiet=a.json):
        planned = planned_for(a, budget, began)
        helps = advice_for(a, planned)
    machine = planned.machine
    warnings = []
    if budget > machine.device_bytes:
        warnings.append(f"budget {format_bytes(budget)} is more than the {format_bytes(machine.device_bytes)} of {machine.name}")
    if a.out:
        save_plan(Path(a.out), planned.memgraph, recipe_of(a, planned))
    if a.timeline:
        write_timeline(Path(a.timeline), planned, None)
    facts = {**planned.report, "split": {str(k): n for k, n in planned.graph.split}, "advice": helps, "warnings": warnings}
    if a.json:
        print(json.dumps(facts))
        return 0
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(render_report({**planned.report, "advice": helps}))
    return 0


def usual_effort(a: argparse.Namespace) -> int:
    """What `plan` does unasked: a trace is worth seconds, a spec is answered at once; warm and static plans know no other effort than 0."""
    return int(a.graph is not None and a.policy == Policy.AUTO.value and not a.warm and a.passes is None)


def planned_for(a: argparse.Namespace, budget: int, began: float) -> Planned:
    """The plan of the spec or the trace that `a` names; `began` is when the command did. Raises EinpageError."""
    return planned_trace(a, budget, began) if a.graph else planned_spec(a, budget, began)


def advice_for(a: argparse.Namespace, planned: Planned) -> dict[str, object] | None:
    """What would help the plan most: found with plans of effort 0. None for a loop, of which each plan takes seconds."""
    if start_of(a) is Start.LOOP:
        return None
    known = a.graph is None or a.machine is not None or a.device_bytes is not None

    def again(budget: int, sizes: Mapping[str, int]) -> Planned:
        words = {**settings_of(a.set), **sizes}
        changed = {"set": [f"{name}={value}" for name, value in words.items()], "effort": 0, "bounds": Effort.FAST.value}
        return planned_for(argparse.Namespace(**{**vars(a), **changed}), budget, perf_counter())

    return advice(planned, planned.sizes, planned.machine.device_bytes if known else None, again)


def planned_spec(a: argparse.Namespace, budget: int, began: float) -> Planned:
    """The plan of `a.spec`; `began` is when the command did. Raises EinpageError."""
    if a.spec is None:
        raise UsageError("nothing to plan: give a SPEC, as specs/llama.yaml, or --graph FILE.json, an access trace")
    machine = load_machine(a.machine or "cpu", h2d=a.h2d, d2h=a.d2h, device_bytes=a.device_bytes)
    model = open_model(a.spec, settings_of(a.set), a.weights)
    dtype, outputs, pieces, no_fuse = DType(a.dtype or DTYPE), names_of(a.outputs), pieces_of(a.split), fusions_of(a.no_fuse)
    start = start_of(a)
    if start is Start.LOOP:
        return make_loop(model.program, dtype, budget, machine, a.passes, outputs, pieces, no_fuse, began, a.effort)
    built = build_graph(model.program, dtype, budget, outputs, pieces, no_fuse)
    options = PlanOptions(effort=a.effort, policy=Policy(a.policy), start=start, free_order=a.free_order)
    return replace(make_plan(built, machine, budget, options, began, Effort(a.bounds)), sizes=model.program.sizes)


def run_command(a: argparse.Namespace) -> int:
    with ends_at_once():
        from einpage.exec.command.run import run_from_arguments
    return run_from_arguments(a)


def machine_command(a: argparse.Namespace) -> int:
    if a.measure:
        from einpage.exec.run.choose import device_for, measured_machine

        machine = measured_machine(device_for(a.device).kind, again=True)
    elif a.name:
        machine = load_machine(a.name)
    else:
        shipped = [load_machine(name) for name in machine_names()]
        print(json.dumps([machine_facts(m) for m in shipped]) if a.json else "\n".join(machine_line(m) for m in shipped))
        return 0
    print(json.dumps(machine_facts(machine)) if a.json else machine_text(machine), end="\n" if a.json else "")
    return 0


def machine_facts(m: Machine) -> dict[str, object]:
    """A profile as JSON."""
    return {
        "name": m.name,
        "device_bytes": m.device_bytes,
        "host_bytes": m.host_bytes,
        "flops_per_s": {d.value: rate for d, rate in m.flops_per_s},
        "device_bytes_per_s": m.device_bytes_per_s,
        "h2d_bytes_per_s": m.h2d_bytes_per_s,
        "d2h_bytes_per_s": m.d2h_bytes_per_s,
        "copy_latency_s": m.copy_latency_s,
        "launch_latency_s": m.launch_latency_s,
        "threads": m.threads,
        "about": m.about,
    }


def machine_line(m: Machine) -> str:
    rates = ", ".join(f"{d.value} {rate / 1e12:g}" for d, rate in m.flops_per_s)
    return f"{m.name:<10} {format_bytes(m.device_bytes):>8}  link {m.h2d_bytes_per_s / 1e9:g} GB/s  TFLOP/s {rates}"


def recipe_of(a: argparse.Namespace, planned: Planned) -> dict[str, object]:
    """What it takes to make this plan again."""
    word, file = ("graph", Path(a.graph)) if a.graph else ("spec", spec_path(a.spec))
    return {
        word: file.name,
        f"{word}_sha256": sha256(file.read_bytes()).hexdigest(),
        "settings": settings_of(a.set),
        "dtype": planned.graph.dtype.value,
        "budget_bytes": planned.memgraph.budget_bytes,
        "split": {str(k): n for k, n in planned.graph.split},
        "policy": planned.report["policy"],
        "no_fuse": list(fusions_of(a.no_fuse)),
        "outputs": [name for name, _ in planned.graph.outputs],
        "machine": machine_facts(planned.machine),
    }
