"""How much longer runs on this CPU take than its best rates say: measured on a small model that streams, as real ones do.

In: a Machine whose rates were the best of several samples. Out: a factor of at least 1, for predictions; bounds keep the rates, which
nothing should beat. Tenths of a second.
"""

from __future__ import annotations

from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.device.arena import HostArena, host_copies
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.dispatch.dynamic import run_dynamic
from einpage.exec.load.fill import fill
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import PROFILES

SPEC = PROFILES.parent / "llama.yaml"
SIZES = {"batch": 1, "seq": 8, "model": 576, "layers": 6, "heads": 9, "kv_heads": 3, "ffn": 1536, "vocab": 8192}
"""100 MB of weights in fp32, of which the arena holds a sixth."""
BUDGET = 16 << 20
RUNS = 9


def usual_slowdown(machine: Machine) -> float:
    """Measured ÷ predicted seconds: the lower quartile of RUNS runs, each on a device of its own.

    Runs as short as these are often delayed by as much as they take by whatever else the machine does; a longer one only by a
    part of it.
    """
    model = open_model(SPEC, SIZES, "random:0")
    assert model.resolved is not None
    planned = plan_program(model.program, machine, PlanRequest(BUDGET))
    host = HostArena(planned.memgraph.host_bytes)
    slots = host_copies(planned.memgraph, host)
    fill(planned.graph, model.resolved, slots)
    for tensor in planned.graph.tensors:
        if tensor.kind is Kind.INPUT:
            slots[tensor.id].fill_(1)  # a token, and a length
    walls = [
        run_dynamic(planned.memgraph, CpuDevice(planned.memgraph, host, threads=machine.threads, onednn=machine.onednn)).wall_s
        for _ in range(RUNS)
    ]
    return max(1.0, sorted(walls)[RUNS // 4] / planned.timeline.makespan_s)
