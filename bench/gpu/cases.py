"""What is timed: fused jobs of specs/llama.yaml at real sizes, and plain products.

A case holds a job as the planner would hand it out, operands on the device, what it costs (FLOPs, the bytes it must at least read and
write), how far a result is from the right one (formulas.py), and the calls of the library that it is timed against.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.formulas import FORMULAS, attention_error, error_of, heads
from bench.results import ROOT
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, Job, View
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.kernels.instructions.torch_kernel import Operands
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE

Calls = dict[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    kind: str
    """product | attention | rows"""
    dtype: DType
    job: Job
    operands: Operands
    result: Tensor
    flops: int
    nbytes: int
    error: Callable[[Tensor], float]
    """Of a result: its largest difference ÷ the largest right value."""
    rivals: Mapping[str, Callable[[], object]]
    """The library's ways of doing the same, or of moving as many bytes."""


def product(name: str, job: ContractJob, device: torch.device) -> Case:
    """The case of a `product_job`."""
    return _case(name, "product", job, 2 * prod(r.extent for r in job.ranges), device)


def llama(name: str, sizes: Mapping[str, int], wanted: tuple[str, ...], dtype: DType, device: torch.device) -> Iterator[Case]:
    """Cases of one layer of LLaMA by the words of TITLE; each is made when it is asked for, as its operands may be large."""
    for word, job, flops in layer_jobs(sizes, wanted, dtype):
        yield _case(f"{name} {TITLE[word]}", word, job, flops, device)


def layer_jobs(sizes: Mapping[str, int], wanted: tuple[str, ...], dtype: DType) -> Iterator[tuple[str, Job, int]]:
    """Word, job and FLOPs of tasks of one layer of LLaMA, unsplit."""
    program = open_model(ROOT / "specs/llama.yaml", {"layers": 1, "vocab": 128, **sizes}).program
    graph = build_graph(program, PlanRequest(1 << 60, dtype, ("all_logits",))).graph
    tasks = {_word(task.name): task for task in graph.tasks}
    for word in wanted:
        job = tasks[word].job
        assert job is not None
        yield word, job, tasks[word].flops


TITLE = {"h": "norm", "q": "q", "qr": "rotation", "o": "attention", "x.1": "wo + x", "y": "gate, up", "x.2": "w2 + x"}
"""By the value that a task of the spec computes."""
FACTORS = {"product": ("x", "w"), "q": ("h", "wq"), "x.1": ("o", "wo"), "y": ("n", "w1", "w3"), "x.2": ("y", "w2")}
"""Of the products: what is multiplied, by which weights."""


def _word(task: str) -> str:
    """`h` of `h.0[0:1,…]`; the two sums into x keep their version."""
    value = task.partition("[")[0]
    return value if value.startswith("x.") else value.partition(".")[0]


def _case(name: str, word: str, job: Job, flops: int, device: torch.device) -> Case:
    generator = torch.Generator(device).manual_seed(flops % 1009)
    tensors = {view.name: _random(view, generator, device) for view in job.reads}
    operands = tuple((tensors[view.name],) for view in job.reads)
    dtype = job.result.dtype
    result = torch.empty(job.result.boxes[0].shape, dtype=TORCH_DTYPE[dtype], device=device)
    nbytes = sum(t.nbytes for t in tensors.values()) + result.nbytes
    rivals: Calls
    if isinstance(job, AttentionJob):
        q, k, v = (heads(tensors[load.name]) for load in (job.q, job.k, job.v))
        kind, error, rivals = "attention", attention_error(q, k, v), _attention(q, k, v)
    elif word in FACTORS:
        source, *weights = (tensors[name] for name in FACTORS[word])
        kind, error, rivals = "product", error_of(FORMULAS[word], tensors), {"matmul": _matmul(source, weights)}
    else:
        kind, error, rivals = "rows", error_of(FORMULAS[word], tensors), {"copy": _copy(nbytes, device)}
    return Case(name, kind, dtype, job, operands, result, flops, nbytes, error, rivals)


def _random(view: View, generator: torch.Generator, device: torch.device) -> Tensor:
    """Near 1 in size; a weight so small that its products stay near 1."""
    shape = view.boxes[0].shape
    values = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
    if view.name.startswith("w"):
        values /= sqrt(prod(shape) / shape[0])
    return values.to(TORCH_DTYPE[view.dtype])


# The library's ways.


def _matmul(source: Tensor, weights: list[Tensor]) -> Callable[[], object]:
    """The bare product of the same FLOPs: weights that share their input stacked, no epilogue."""
    inner = source.shape[-1] if source.dim() < 4 else prod(source.shape[2:])
    x, weight = source.reshape(-1, inner), torch.cat([w.reshape(-1, inner) for w in weights])
    out = torch.empty(len(x), len(weight), dtype=x.dtype, device=x.device)
    return lambda: torch.matmul(x, weight.T, out=out)


def _copy(nbytes: int, device: torch.device) -> Callable[[], object]:
    """Half the bytes read, half of them written."""
    source, target = torch.zeros(2, nbytes // 2, dtype=torch.uint8, device=device)
    return lambda: target.copy_(source)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Calls:
    """Each fused backend that takes these operands; on the CPU whatever torch chooses."""

    def attend() -> Tensor:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])

    def with_backend(backend: SDPBackend) -> Callable[[], object]:
        def call() -> object:
            with sdpa_kernel(backend):
                return attend()

        return call

    if q.device.type != "cuda":
        return {"default": attend}
    found: Calls = {}
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        call = with_backend(backend)
        try:
            call()
        except RuntimeError:
            continue
        found[backend.name.removesuffix("_ATTENTION").lower()] = call
    assert found, "no fused backend takes these operands"
    return found
