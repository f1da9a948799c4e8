"""A model whose weights fit no memory, pass after pass: planned reads, beside accelerate's disk_offload.

    python -m bench.disk_peers [--layers 16 --width 2048] [--share 0.5] [--tokens 64] [--rounds 5] [--folder DIR]

A seeded LLaMA is made by transformers, in fp32. Ours keeps `share` of the weights in memory (an eighth of that on the device) and reads the
rest in each pass. The floor is the larger of the compute with all in memory and raw reads, of as many bytes as have to be read, interleaved
with the runs. The peer has the page cache for its files, which is dropped before each pass: a cycle over more than a cache holds is
read whole (measured under memory limits: 0.93 to 1.09 of the weights a pass). The gate is that all have the same logits. A loop over
mapped weights and AirLLM are not among them yet.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from einpage.checkpoints.disk.direct_file import DirectFile, open_scratch
from einpage.checkpoints.disk.engines import TransferOptions, make_engine
from einpage.checkpoints.disk.transfer import Transfer, run_all
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.load.inputs import TokenLists
from einpage.exec.measure.profiles import with_disk
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import DeviceKind, Dispatch, RunOptions, measured_machine
from einpage.exec.run.prepared import Prepared, choice_of, prepare_run
from einpage.exec.system.cache_folder import cache_folder
from einpage.memplan.machine.machine import Machine

MIB = 1 << 20
ON_DEVICE = 8
"""One part in so many of the memory for weights is the device's."""
LEAST_BYTES = 24 * MIB


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=cache_folder() / "disk_peers")
    a = parser.parse_args()
    made = a.folder / f"{a.layers}x{a.width}"
    make_model(made, a.layers, a.width)
    machine = with_disk(measured_machine(DeviceKind.CPU))
    torch.set_num_threads(machine.threads or 1)
    ids = tuple(range(1, a.tokens + 1))
    model = open_model("llama", {}, str(made), TokenLists((ids,), "the bench"))
    print(json.dumps(compared(model, machine, a.share, a.rounds, made, torch.tensor([ids]))))


def make_model(folder: Path, layers: int, width: int) -> None:
    """A seeded LLaMA in fp32, made where it is not there yet."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    if (folder / "config.json").exists():
        return
    torch.manual_seed(0)
    heads = width // 64
    config = LlamaConfig(
        hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 4), vocab_size=32000, max_position_embeddings=4096,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder, max_shard_size="100GB")


def peers(folder: Path) -> dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[Path]]]:
    """By name: what runs the model, and the files that it reads its weights from."""
    from accelerate import disk_offload  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from transformers import LlamaForCausalLM

    offloaded = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    offload = folder.with_name(f"{folder.name}-offloaded")
    disk_offload(offloaded, str(offload), execution_device=torch.device("cpu"))

    def last(model: Any, ids: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = model(ids, use_cache=False, logits_to_keep=1).logits[:, -1]
        return logits

    return {"accelerate": (partial(last, offloaded), sorted(offload.iterdir()))}


def timed_peer(call: Callable[[torch.Tensor], torch.Tensor], files: list[Path], ids: torch.Tensor) -> float:
    """Seconds of a pass that finds nothing of its files in the page cache."""
    for path in files:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    began = perf_counter()
    call(ids)
    return perf_counter() - began


def compared(model: Model, machine: Machine, share: float, rounds: int, folder: Path, ids: torch.Tensor) -> dict[str, object]:
    """Figures of ours, of all in memory, of raw reads and of peers, one after the other in each round."""
    request = PlanRequest(LEAST_BYTES, passes=1)
    resident = prepare_run(model, machine, RunOptions(replace(request, budget_bytes=1024 * MIB)))
    weights = sum(t.nbytes for t in resident.planned.graph.tensors if t.kind is Kind.WEIGHT)
    device = max(LEAST_BYTES, int(share * weights) // ON_DEVICE)
    host = max(LEAST_BYTES, int(share * weights) - device)
    ours = prepare_run(model, machine, RunOptions(replace(request, budget_bytes=device, host_budget_bytes=host)))
    assert ours.disk is not None
    timed(ours)
    timed(resident)
    expected, found = (next(iter(p.outputs().values())) for p in (resident, ours))
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3), "the gate: the same logits"
    others = peers(folder)
    for name, (call, _) in others.items():
        assert torch.allclose(call(ids), expected, rtol=1e-3, atol=1e-3), f"the gate: the logits of {name}"
    multiplied = multiplied_bytes(resident)
    must_read = max(0, multiplied - device - host)
    options = choice_of(ours.planned.machine)
    scratch = open_scratch(cache_folder(), max(must_read, MIB) // MIB * MIB)
    seconds: dict[str, list[float]] = {"ours": [], "all in memory": [], "raw reads": []}
    for _ in range(rounds):
        seconds["raw reads"].append(raw_reads(scratch, options))
        seconds["ours"].append(timed(ours))
        seconds["all in memory"].append(timed(resident))
        for name, (call, files) in others.items():
            seconds.setdefault(name, []).append(timed_peer(call, files, ids))
    medians = {what: median(found) for what, found in seconds.items()}
    floor = max(medians["all in memory"], medians["raw reads"])
    figures = {
        "weights_bytes": weights,
        "multiplied_bytes": multiplied,
        "device_bytes": device,
        "host_bytes": host,
        "must_read_bytes": must_read,
        "read_bytes": ours.disk_bytes[-1][0],
        "path": ours.disk.store.path,
        "median_s": medians,
        "floor_s": floor,
        "of_floor": floor / medians["ours"],
        "times_faster_than": {name: medians[name] / medians["ours"] for name in others},
    }
    for prepared in (ours, resident):
        prepared.close()
    scratch.close()
    return figures


def multiplied_bytes(prepared: Prepared) -> int:
    """Of weights that tasks on the device read whole; of tables that are looked up rows come."""
    tasks, tensors = prepared.planned.graph.tasks, prepared.planned.graph.tensors
    read = {t for task in tasks if not task.gathers for operand in task.operands for t in operand}
    return sum(tensors[t].nbytes for t in read if tensors[t].kind is Kind.WEIGHT)


def timed(prepared: Prepared) -> float:
    """Seconds of a steady pass."""
    return prepared.run(Dispatch.DYNAMIC)[-1].wall_s


def raw_reads(file: DirectFile, options: TransferOptions) -> float:
    """Seconds to read the whole file in the way that runs do, into 64 MiB by turns."""
    part = min(64 * MIB, file.nbytes)
    with mmap.mmap(-1, part) as memory:
        data = np.frombuffer(memory, np.uint8)
        address = data.ctypes.data
        del data
        engine, step = make_engine(options), options.block_bytes
        sizes = ((at, min(step, file.nbytes - at)) for at in range(0, file.nbytes, step))
        transfers = [Transfer(file.fd, at, address + at % part, n, n) for at, n in sizes]
        began = perf_counter()
        run_all(engine, transfers)
        seconds = perf_counter() - began
        engine.close()
    return seconds


if __name__ == "__main__":
    main()
