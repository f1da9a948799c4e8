"""Runs of the real system for the parts that measure them: models opened with weights in host memory, runs repeated, device memory watched.

In: sizes of LLaMA, a budget, a dispatcher. Out: wall seconds of each repetition, the logits, and how much device memory the driver saw in
use while a run was going on.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from bench.gpu.machine_facts import device_used_before
from bench.gpu.report import Setting
from bench.results import ROOT
from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.exec.device.stream_memory import KeptMemory
from einpage.exec.device.streams import COMPUTE, StreamDevice
from einpage.exec.dispatch.engine import Measured
from einpage.exec.load.inputs import TokenLists
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import DeviceKind, Dispatch, RunOptions, choices_for, kept_memory
from einpage.exec.run.prepared import Prepared, prepare_run
from einpage.kernels.tiles.target import AS_IT_IS
from einpage.memplan.graph.memgraph import Compute, NodeId
from einpage.memplan.machine.machine import Machine

SPEC = ROOT / "specs" / "llama.yaml"
POLL_S = 0.005
KERNEL_PASSES = 2
WARM_UPS = 2
"""Runs before those that count: the first compiles, the second may record a CUDA graph."""


def opened(sizes: dict[str, int], seq: int, weights: str = "random:0") -> Model:
    """LLaMA of `sizes` over one sequence of `seq` seeded token ids."""
    tokens = TokenLists((tuple(opened_tokens(sizes["vocab"], seq)),), "the bench's tokens")
    return open_model(SPEC, dict(sizes), weights, tokens)


def opened_tokens(vocab: int, seq: int) -> list[int]:
    """The token ids that `opened` takes."""
    tokens: list[int] = torch.randint(0, vocab, (seq,), generator=torch.Generator().manual_seed(seq)).tolist()
    return tokens


@contextmanager
def prepared(
    setting: Setting, model: Model, machine: Machine, budget: int, passes: int | None = None, kept: KeptMemory | None = None
) -> Iterator[Prepared]:
    """Planned and loaded in fp16 on the setting's device, its own kernels; all memory is given back at the end, the host's to `kept`
    where its arena is used. A rehearsal's streams run torch's kernels."""
    kernels = "torch" if setting.dry else "triton"
    kind = DeviceKind(setting.device_word)
    choices, refused = (AS_IT_IS, None) if setting.dry else choices_for(None, kind, DType.FP16)
    request = PlanRequest(budget, DType.FP16, ("logits",), passes=passes)
    options = RunOptions(request, device=kind, kernels=kernels, choices=choices, tiles_refused=refused)
    ready = prepare_run(model, machine, options, kept=kept)
    try:
        yield ready
    finally:
        ready.close()


def kept_arena(setting: Setting) -> KeptMemory:
    """The host's arena for a part's runs: mapped, backed and registered once. To be closed."""
    return kept_memory(DeviceKind(setting.device_word))


@dataclass(frozen=True, slots=True)
class Runs:
    """Repetitions under one dispatcher."""

    walls_s: tuple[float, ...]
    measured: Measured
    """Of the last."""
    logits: Tensor

    @property
    def wall_s(self) -> float:
        return median(self.walls_s)


def repeat(ready: Prepared, dispatch: Dispatch, times: int) -> Runs:
    """Run so often; of several passes each counts but the first, which may find the device colder than it leaves it."""
    walls: list[float] = []
    for _ in range(times):
        passes = ready.run(dispatch)
        walls += [m.wall_s for m in passes[1:] or passes]
    return Runs(tuple(walls), passes[-1], ready.outputs()["logits"])


def kernels_alone_s(ready: Prepared) -> float:
    """Seconds that the plan's kernels take one behind the other, by the device's own events around all of them: no copy, no wait of the
    host, and what a launch costs the host is hidden behind the kernel before. On a device without streams, by the wall clock.

    Which bytes a kernel finds in the arena does not change how long it takes, but for indices: those that look up by them are left out.
    """
    device = ready.device
    memgraph = ready.planned.memgraph
    jobs = {NodeId(i): memgraph.graph.tasks[node.task].job for i, node in enumerate(memgraph.nodes) if isinstance(node, Compute)}
    nodes = [node for node, job in jobs.items() if job is not None and all(view.dtype in RUN_DTYPES for view in job.reads)]
    found = []
    for _ in range(KERNEL_PASSES):
        if not isinstance(device, StreamDevice):
            began = perf_counter()
            for node in nodes:
                device.compute(node)
            found.append(perf_counter() - began)
            continue
        first = device.driver.record(COMPUTE)
        for node in nodes:
            for chunk in range(device.chunks(node)):
                device.enqueue(node, chunk)
        last = device.driver.record(COMPUTE)
        device.driver.synchronize(last)
        found.append(device.driver.seconds(first, last))
    return min(found)


class Watched:
    """The most device memory in use by this process while a block of code runs, as the driver counts it; None where nobody knows."""

    def __init__(self, setting: Setting) -> None:
        self.peak_bytes: int | None = None
        self._before = None if setting.dry else device_used_before()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        if self._before is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._before is not None:
            self._thread.join()

    def _watch(self) -> None:
        assert self._before is not None
        while True:
            free, total = torch.cuda.mem_get_info()
            self.peak_bytes = max(self.peak_bytes or 0, total - free - self._before)
            if self._stop.wait(POLL_S):
                return


def forget_memory(setting: Setting) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
