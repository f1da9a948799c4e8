"""What would every kernel of every shipped spec use on GPUs that are not here? Registers, spills, shared memory on sm_80, sm_86, sm_90.

Every job that the specs need at real sizes is written as Triton source and compiled; equal sources once. Then, with --variants, every
other tile that the tables offer for the products and attentions among them, once for those that differ in names alone. Gate: all compile,
fit the shared memory a program may have, and no matrix product and no attention spills. `mma` counts tensor-core instructions in the main
loop, `TMA` the copy engine's loads there, `TMA KiB` what it stores of a block's result; `way` says how factors are read and how fp32 is
multiplied.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.results import ROOT
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.differentiate.training import for_training, training_step
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob, PairsJob
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.einsum_front.tile.split import split
from einpage.kernels.launch.candidates import candidates
from einpage.kernels.launch.kernel import launches_of
from einpage.kernels.launch.usage import Resources, resources
from einpage.kernels.tiles.target import CAPABILITIES, Target
from einpage.kernels.tiles.tiles import SHARED_LIMIT


@dataclass(frozen=True, slots=True)
class Model:
    title: str
    spec: str
    sizes: tuple[tuple[str, int], ...]
    dtype: DType
    pieces: tuple[tuple[str, int], ...] = ()
    trains: bool = False
    """Whether a step of training is meant, and not a pass."""


Tiled = ContractJob | AttentionJob
"""Jobs for which there is a choice of tiles."""
_SMOLLM2 = (("layers", 2), ("model", 576), ("heads", 9), ("kv_heads", 3), ("ffn", 1536), ("vocab", 49152))
_LLAMA = (("layers", 2), ("seq", 2048))
MODELS = (
    Model("SmolLM2", "llama", (*_SMOLLM2, ("seq", 512)), DType.FP32),
    Model("SmolLM2", "llama", (*_SMOLLM2, ("seq", 512)), DType.BF16),
    Model("SmolLM2, 5 tokens", "llama", (*_SMOLLM2, ("seq", 5)), DType.BF16),
    Model("LLaMA-7B", "llama", _LLAMA, DType.BF16),
    Model("LLaMA-7B", "llama", _LLAMA, DType.FP16),
    Model("LLaMA-7B", "llama", _LLAMA, DType.FP32),
    Model("LLaMA-7B, cut", "llama", _LLAMA, DType.FP16, (("f", 4), ("v", 8), ("k", 4), ("s", 2))),
    Model("LLaMA-7B, 8 x 16 tokens", "llama", (("layers", 2), ("seq", 16), ("batch", 8)), DType.FP16),
    *(Model("SmolLM2, a step", "llama", (*_SMOLLM2, ("seq", 512)), dtype, trains=True) for dtype in (DType.FP32, DType.BF16)),
    Model("LLaMA-7B, a step", "llama", _LLAMA, DType.FP32, trains=True),
    Model("GPT-2", "gpt2", (("layers", 2), ("seq", 512)), DType.FP32),
    Model("GPT-2", "gpt2", (("layers", 2), ("seq", 512)), DType.BF16),
    *(Model(name, name, (), dtype) for name in ("mlp", "attention", "matmul_chain") for dtype in (DType.FP32, DType.BF16)),
)
"""Layers are alike, so two are as good as all: the first, and one that follows another."""
TRAIN = """
train:
  body:
    - loss = sum[b,s,v](all_logits[b,s,v] ** 2)
  loss: loss
  optimiser: adamw
"""
"""Any loss: what matters is the way back."""


def jobs_of(model: Model) -> dict[Job, str]:
    """Every job that runs on a GPU, with the name of the first task that needs it."""
    path = ROOT / "specs" / f"{model.spec}.yaml"
    document = load_document(path) if not model.trains else read_document(path.read_text() + TRAIN, str(path))
    program = elaborate(for_training(document) if model.trains else document, dict(model.sizes))
    if model.trains:
        program = training_step(program, document).program.with_states_as_outputs()
    graph = split(
        fuse(program, [o.name for o in program.outputs] if model.trains else None), {Letter(x): n for x, n in model.pieces}, model.dtype
    )
    out: dict[Job, str] = {}
    for task in graph.tasks:
        if task.job is not None and not isinstance(task.job, GatherJob):
            out.setdefault(task.job, task.name)
    return out


def targets(jobs: Sequence[Job], capability: int) -> Iterator[tuple[Target, list[Job]]]:
    """The tiles that the tables offer besides those in use, each with the jobs it is offered for; for jobs of fp32, exact ones too."""
    jobs_by_target: dict[Target, list[Job]] = {}
    alike = {tuple(nameless(x.text) for x in launches_of(job, Target(capability))): job for job in jobs if isinstance(job, Tiled)}
    for job in alike.values():
        for target in candidates(job, Target(capability))[1:]:
            jobs_by_target.setdefault(target, []).append(job)
    yield from jobs_by_target.items()


def nameless(text: str) -> str:
    """A kernel's text with its names numbered: two that are equal compile to the same code."""
    number_by_name: dict[str, int] = {}
    code = re.sub(r'""".*?"""|#.*', "", text)
    return re.sub(r"[A-Za-z_]\w*", lambda word: f"n{number_by_name.setdefault(word[0], len(number_by_name))}", code)


def faults(r: Resources) -> list[str]:
    """What breaks the gate."""
    out = [f"does not compile: {r.error.strip().splitlines()[-1]}"] if r.error else []
    if r.shared_bytes > SHARED_LIMIT[r.capability]:
        out.append(f"{r.shared_bytes} bytes of shared memory, over {SHARED_LIMIT[r.capability]}")
    if r.spills and not isinstance(r.job, MapJob):
        out.append(f"{r.spills} spills")
    return out


def line(r: Resources, task: str) -> str:
    kind = {MapJob: "map", ContractJob: "product", AttentionJob: "attention", PairsJob: "pairs"}[type(r.job)]
    block = "x".join(str(n) for name, n in r.launch.block if name != "HALF")
    tiles = f"{r.launch.tiles.warps:>5} {r.launch.tiles.stages:>6}"
    usage = f"{r.registers:>4} {r.stack_bytes:>5} {r.spills:>6} {r.shared_bytes / 1024:>6.1f}"
    way = "" if kind == "map" else r.launch.way
    loop = f"{r.loop_tensor_core:>4} {r.loop_engine_loads:>4} {r.stored_bytes / 1024:>7.1f}"
    return f"sm_{r.capability} {kind:<9} {task[:34]:<34} {block:<15} {tiles} {usage} {loop}  {'; '.join([way, *faults(r)])}".rstrip()


HEAD = f"{'arch':<5} {'kind':<9} {'first task':<34} {'block':<15} warps stages regs stack spills sh.KiB  mma  TMA TMA KiB  way"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--capabilities", type=int, nargs="+", choices=CAPABILITIES, default=CAPABILITIES)
    parser.add_argument("--variants", action="store_true", help="also the tiles of the tables that are not in use")
    parser.add_argument(
        "--models", default="", metavar="TEXT", help="only models in whose title and dtype TEXT stands, as in 'LLaMA-7B, fp16'"
    )
    options = parser.parse_args(words)
    seen: dict[int, set[tuple[str, int, int]]] = {capability: set() for capability in options.capabilities}
    all_found: list[tuple[Resources, str]] = []
    for model in (m for m in MODELS if options.models in f"{m.title}, {m.dtype.value}"):
        jobs = jobs_of(model)
        print(f"\n{model.title}, {model.dtype.value}\n{HEAD}")
        for capability in options.capabilities:
            asked = [(Target(capability), list(jobs))]
            asked += list(targets(list(jobs), capability)) if options.variants else []
            for target, members in asked:
                for r in resources(members, target, skip=seen[capability]):
                    seen[capability].add(r.launch.compiled_as)
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
