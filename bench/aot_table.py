"""What would every kernel of every shipped spec use on GPUs that are not here? Registers, spills, shared memory on sm_80, sm_86, sm_90.

Every job that the specs need at real sizes is written as Triton source and compiled; equal sources once. Gate: all compile, fit the
shared memory a program may have, and no matrix product and no attention spills. Five minutes; with --variants, which adds the tiles that
the table of matrix products offers besides those in use, ten.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.results import ROOT
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob
from einpage.einsum_front.spec.reader import load_document
from einpage.einsum_front.tile.split import split
from einpage.kernels.launch.usage import Resources, resources
from einpage.kernels.on_triton.contract import product_of
from einpage.kernels.tiles.product_tiles import variants
from einpage.kernels.tiles.target import CAPABILITIES, Target
from einpage.kernels.tiles.tiles import SHARED_LIMIT, Tiles


@dataclass(frozen=True, slots=True)
class Model:
    title: str
    spec: str
    sizes: tuple[tuple[str, int], ...]
    dtype: DType
    pieces: tuple[tuple[str, int], ...] = ()


_SMOLLM2 = (("layers", 2), ("model", 576), ("heads", 9), ("kv_heads", 3), ("ffn", 1536), ("vocab", 49152))
_LLAMA = (("layers", 2), ("seq", 2048))
MODELS = (
    Model("SmolLM2", "llama", (*_SMOLLM2, ("seq", 512)), DType.FP32),
    Model("SmolLM2", "llama", (*_SMOLLM2, ("seq", 512)), DType.BF16),
    Model("SmolLM2, 5 tokens", "llama", (*_SMOLLM2, ("seq", 5)), DType.BF16),
    Model("LLaMA-7B", "llama", _LLAMA, DType.BF16),
    Model("LLaMA-7B", "llama", _LLAMA, DType.FP16),
    Model("LLaMA-7B, cut", "llama", _LLAMA, DType.FP16, (("f", 4), ("v", 8), ("k", 4), ("s", 2))),
    Model("LLaMA-7B, 8 x 16 tokens", "llama", (("layers", 2), ("seq", 16), ("batch", 8)), DType.FP16),
    Model("GPT-2", "gpt2", (("layers", 2), ("seq", 512)), DType.FP32),
    Model("GPT-2", "gpt2", (("layers", 2), ("seq", 512)), DType.BF16),
    *(Model(name, name, (), dtype) for name in ("mlp", "attention", "matmul_chain") for dtype in (DType.FP32, DType.BF16)),
)
"""Layers are alike, so two are as good as all: the first, and one that follows another."""


def jobs_of(model: Model) -> dict[Job, str]:
    """Every job that runs on a GPU, with the name of the first task that needs it."""
    program = elaborate(load_document(ROOT / "specs" / f"{model.spec}.yaml"), dict(model.sizes))
    graph = split(fuse(program), {Letter(x): n for x, n in model.pieces}, model.dtype)
    out: dict[Job, str] = {}
    for task in graph.tasks:
        if task.job is not None and not isinstance(task.job, GatherJob):
            out.setdefault(task.job, task.name)
    return out


def targets(jobs: Sequence[Job], capability: int) -> Iterator[tuple[Target, list[Job]]]:
    """The tiles that the table offers besides those in use, each with the products it is offered for."""
    jobs_by_tile: dict[Tiles, list[Job]] = {}
    for job in jobs:
        if isinstance(job, ContractJob):
            for tiles in variants(product_of(job), capability)[1:]:
                jobs_by_tile.setdefault(tiles, []).append(job)
    for tiles, members in jobs_by_tile.items():
        yield Target(capability, tiles), members


def faults(r: Resources) -> list[str]:
    """What breaks the gate."""
    out = [f"does not compile: {r.error.strip().splitlines()[-1]}"] if r.error else []
    if r.shared_bytes > SHARED_LIMIT[r.capability]:
        out.append(f"{r.shared_bytes} bytes of shared memory, over {SHARED_LIMIT[r.capability]}")
    if r.spills and not isinstance(r.job, MapJob):
        out.append(f"{r.spills} spills")
    return out


def line(r: Resources, task: str) -> str:
    kind = {MapJob: "map", ContractJob: "product", AttentionJob: "attention"}[type(r.job)]
    block = "x".join(str(n) for _, n in r.launch.block)
    tiles = f"{r.launch.tiles.warps:>5} {r.launch.tiles.stages:>6}"
    usage = f"{r.registers:>4} {r.stack_bytes:>5} {r.spills:>6} {r.shared_bytes / 1024:>6.1f}"
    return f"sm_{r.capability} {kind:<9} {task[:34]:<34} {block:<15} {tiles} {usage}  {'; '.join(faults(r))}"


HEAD = f"{'arch':<5} {'kind':<9} {'first task':<34} {'block':<15} warps stages regs stack spills sh.KiB"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", type=int, nargs="+", choices=CAPABILITIES, default=CAPABILITIES)
    parser.add_argument("--variants", action="store_true", help="also the tiles of the table that are not in use")
    options = parser.parse_args(words)
    seen: set[tuple[int, str]] = set()
    all_found: list[tuple[Resources, str]] = []
    for model in MODELS:
        jobs = jobs_of(model)
        print(f"\n{model.title}, {model.dtype.value}\n{HEAD}")
        for capability in options.capabilities:
            asked = [(Target(capability), list(jobs))]
            asked += list(targets(list(jobs), capability)) if options.variants else []
            for target, members in asked:
                for r in resources(members, target):
                    if (capability, r.launch.text) not in seen or target.product is not None:
                        seen.add((capability, r.launch.text))
                        all_found.append((r, jobs[r.job]))
                        print(line(r, jobs[r.job]), flush=True)
    broken = [(r, task) for r, task in all_found if faults(r)]
    bounded = [(r, task) for r, task in all_found if not isinstance(r.job, MapJob)]
    worst = sorted(bounded, key=lambda found: (found[0].spills, found[0].registers), reverse=True)[:8]
    print(f"\n{len(all_found)} kernels, {len(broken)} break the gate. Of products and attention, the most spills and registers:\n{HEAD}")
    for r, task in [*worst, *(b for b in broken if b not in worst)]:
        print(line(r, task))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
