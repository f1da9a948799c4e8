"""Who else runs a model larger than its device, and how fast? LLaMA-7B, the same fp16 weights, the same cap, in both regimes.

512 and 2048 tokens are bound by the link, 16384 by arithmetic. Ours runs cold (nothing on the device at the start) and steady (what fits
stays between passes); so does the ring, which streams everything or keeps what fits. Each is warmed up; the median of several passes
counts. Gate of each row: its logits are within 2e-2 of those of transformers with everything resident. A peer that is not installed, or
breaks, is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bench.gpu import rivals
from bench.gpu.formulas import relative
from bench.gpu.host_weights import HostWeights, in_host_memory
from bench.gpu.links import profile
from bench.gpu.report import Report, Setting
from bench.gpu.rivals import Missing, Prefill
from bench.gpu.runs import WARM_UPS, forget_memory, kept_arena, opened, opened_tokens, prepared, repeat
from bench.plan_quality import MODELS
from bench.ring import SLOTS, flat_parameters
from einpage.exec.device.stream_memory import KeptMemory
from einpage.exec.run.choose import Dispatch

GIB = 1 << 30
TOLERANCE = 2e-2
REPEATS = 3
SEQUENCES = (512, 2048, 16384)
CAP = 8 * GIB
ROOM = {16384: 3 * GIB}
"""What a peer keeps free for activations and for its allocator."""
TINY = {"model": 64, "layers": 4, "heads": 4, "kv_heads": 4, "ffn": 96, "vocab": 128}
LEAST_LEFT_S = 10.0


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    make: Callable[[], Prefill]
    keeps: bool
    """Whether some weights stay on the device between passes."""
    capped: bool = True


@dataclass(slots=True)
class Shared:
    """What all rows share: one set of weights on the host, and the same once more, pinned, for the ring."""

    report: Report
    sizes: dict[str, int]
    host_weights: HostWeights
    kept: KeptMemory
    pinned: list[Tensor] | None = None

    @property
    def setting(self) -> Setting:
        return self.report.setting

    def transformer(self) -> Any:
        return rivals.transformer(self.sizes, self.host_weights.values)

    def ring(self, kept: int) -> Prefill:
        model = self.transformer()
        if self.pinned is None:
            self.pinned = [flat_parameters(layer, not self.setting.dry) for layer in rivals.ring_layers(model)]
        return rivals.ring(model, self.pinned, self.setting.device, kept)


def measure(report: Report) -> None:
    with closing(kept_arena(report.setting)) as kept:
        _measure_all(report, kept)


def _measure_all(report: Report, kept: KeptMemory) -> None:
    setting = report.setting
    sizes = TINY if setting.dry else MODELS["7B"]
    shared: Shared | None = None
    for seq in (40,) if setting.dry else SEQUENCES:
        if not setting.dry and setting.left_s() < 3 * LEAST_LEFT_S:
            report.leave_out(f"{seq} tokens")
            continue
        shared = shared or Shared(report, sizes, in_host_memory(opened(sizes, seq)), kept)
        try:
            _measure(shared, seq)
        except Missing as missing:
            report.lacks("every peer", f"{missing}; there is nothing to compare logits with")
            return


def _measure(shared: Shared, seq: int) -> None:
    report, setting = shared.report, shared.setting
    tokens = torch.tensor([opened_tokens(shared.sizes["vocab"], seq)], device=setting.device)
    repeats = 1 if setting.dry else REPEATS
    everything = Peer("all resident", lambda: rivals.resident(shared.transformer(), setting.device), True, False)
    wanted, walls = timed(setting, everything, tokens, repeats)
    ours = _ours(shared, seq, wanted)
    if report.begin(f"{everything.name}, {seq} tokens"):
        _row(report, everything, seq, wanted, walls, wanted, ours)
    for peer in peers(shared, seq):
        what = f"{peer.name}, {seq} tokens"
        if not report.begin(what, LEAST_LEFT_S):
            continue
        try:
            logits, walls = timed(setting, peer, tokens, repeats)
        except Missing as missing:
            report.lacks(what, str(missing))
        except Exception as error:  # a peer that breaks says nothing about us
            report.lacks(what, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}")
            report.need_device()
            forget_memory(setting)
        else:
            _row(report, peer, seq, logits, walls, wanted, ours)


def _row(report: Report, peer: Peer, seq: int, logits: Tensor, walls: list[float], wanted: Tensor, ours: dict[str, float]) -> None:
    wall_s, error = median(walls), relative(logits, wanted)
    regime = "steady" if peer.keeps else "cold"
    times_ours = wall_s / ours[regime] if regime in ours else None
    key = {"peer": peer.name, "regime": regime, "seq": seq, "cap_bytes": CAP if peer.capped else None}
    figures = {"wall_s": wall_s, "walls_s": walls, "times_ours": times_ours}
    compared = "" if times_ours is None else f"{times_ours:.2f} x ours ({regime}), "
    said = f"logits within {error:.1e}"
    report.row(f"{peer.name}, {seq} tokens", error <= TOLERANCE, said, key, figures, f"{wall_s:.4f} s, {compared}{said}")


def peers(shared: Shared, seq: int) -> Iterator[Peer]:
    """Most telling first."""
    device, sizes = shared.setting.device, shared.sizes
    layer_bytes = 2 * (4 * sizes["model"] ** 2 + 3 * sizes["model"] * sizes["ffn"])
    room = CAP - ROOM.get(seq, GIB)
    kept = min(sizes["layers"] // 2, room // layer_bytes - SLOTS)
    yield Peer("ring, two slots", lambda: shared.ring(0), False)
    yield Peer(f"ring, {kept} layers stay", lambda: shared.ring(kept), True)
    yield Peer("accelerate device map", lambda: rivals.accelerate_map(shared.transformer(), device, room), True)
    yield Peer("FlexTensor", lambda: rivals.flextensor_offload(shared.transformer(), device, room), True)
    yield Peer("DeepSpeed ZeRO-3", lambda: rivals.deepspeed_zero3(shared.transformer(), device), False)
    yield Peer("accelerate cpu_offload", lambda: rivals.accelerate_offload(shared.transformer(), device), False)


def timed(setting: Setting, peer: Peer, tokens: Tensor, repeats: int) -> tuple[Tensor, list[float]]:
    """Logits of the last pass on the host, and wall seconds of each after the first. Its memory is given back."""
    on_gpu = setting.device.type == "cuda"
    if on_gpu:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(CAP / total if peer.capped else 1.0)
    prefill: Prefill | None = None
    try:
        prefill = peer.make()
        for _ in range(prefill.warm_ups):
            logits = prefill.run(tokens)
        walls = []
        for _ in range(repeats):
            if on_gpu:
                torch.cuda.synchronize()
            began = perf_counter()
            logits = prefill.run(tokens)
            if on_gpu:
                torch.cuda.synchronize()
            walls.append(perf_counter() - began)
        return logits.cpu(), walls
    finally:
        if prefill is not None:
            prefill.close()
        prefill = None
        if on_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)
        forget_memory(setting)


def _ours(shared: Shared, seq: int, wanted: Tensor) -> dict[str, float]:
    """Wall seconds, cold and steady, of those whose logits are right."""
    report, setting = shared.report, shared.setting
    found: dict[str, float] = {}
    machine = profile(setting.out, setting.dry)
    budget = (128 << 10) if setting.dry else CAP
    for regime, passes in (("cold", None), ("steady", 3)):
        what = f"einpage {regime}, {seq} tokens"
        key = {"peer": "einpage", "regime": regime, "seq": seq, "cap_bytes": budget}
        if not report.begin(what, LEAST_LEFT_S):  # an earlier process may have had it
            for row in report.rows:
                if key.items() <= row.items() and row.get("wall_s"):
                    found[regime] = row["wall_s"]
            continue
        try:
            model = shared.host_weights.give_to(opened(shared.sizes, seq))
            with prepared(setting, model, machine, budget, passes, shared.kept) as ready:
                repeat(ready, Dispatch.STATIC, WARM_UPS)
                run = repeat(ready, Dispatch.STATIC, REPEATS if passes is None and not setting.dry else 1)
                predicted_s = ready.planned.report.predicted_s
            del ready
        except Exception as error:
            report.failed(what, error)
            continue
        distance = relative(run.logits[0], wanted)
        figures = {"wall_s": run.wall_s, "walls_s": run.walls_s, "predicted_s": predicted_s}
        said = f"logits within {distance:.1e}"
        report.row(what, distance <= TOLERANCE, said, key, figures, f"{run.wall_s:.4f} s, {said}")
        if distance <= TOLERANCE:
            found[regime] = run.wall_s
        forget_memory(setting)
    return found
