"""`einpage plan --graph`: an access trace in place of a spec.

In: the words of the command line. Out: Planned. A trace has its sizes and times already, so words that speak of a spec are refused; its
bytes may lie anywhere, so they are planned without alignment; without `--machine`, only the links are known, and copies have no latency.
"""

from __future__ import annotations

import argparse
from time import perf_counter

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import parse_bytes
from einpage.einsum_front.graph.trace_file import read_trace
from einpage.exec.build.judged_plan import Planned, plan_graph, with_passes
from einpage.exec.command.options import start_of
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.plan import PlanOptions
from einpage.memplan.problem.machine import Machine, links_only, load_machine
from einpage.memplan.schedule.static_plans import Policy

OF_A_SPEC = ("set", "weights", "dtype", "outputs", "split", "no_fuse")
"""Options that mean nothing to a trace."""


def planned_trace(a: argparse.Namespace, budget: int, began: float) -> Planned:
    """The plan of the trace `a.graph`; `began` is when the command did. Raises UsageError, DoesNotFit."""
    if a.spec is not None:
        raise UsageError(f"SPEC {a.spec} and --graph {a.graph} exclude each other: give one of them")
    given = [f"--{word.replace('_', '-')}" for word in OF_A_SPEC if getattr(a, word)]
    if given:
        raise UsageError(f"{', '.join(given)}: of a spec, and --graph {a.graph} is a trace, which has its sizes and times; leave out")
    machine = _machine(a, budget)
    options = PlanOptions(alignment=1, effort=a.effort, policy=Policy(a.policy), start=start_of(a), free_order=a.free_order)
    planned = plan_graph(read_trace(a.graph), machine, budget, options, began, Effort(a.bounds))
    return with_passes(planned, a.passes, perf_counter() - began) if a.passes is not None else planned


def _machine(a: argparse.Namespace, budget: int) -> Machine:
    if a.machine is not None:
        return load_machine(a.machine, h2d=a.h2d, d2h=a.d2h, device_bytes=a.device_bytes)
    if a.h2d is None:
        raise UsageError(
            f"--graph {a.graph}: how fast are the links? give --h2d RATE (and --d2h RATE), as in --h2d 24GB/s, or --machine NAME"
        )
    return links_only(a.h2d, a.d2h, budget if a.device_bytes is None else parse_bytes(a.device_bytes, "--device-bytes"))
