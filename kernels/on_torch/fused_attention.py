"""Attention jobs that torch has a kernel of its own for: scaled scores, of all keys or of those up to the query, over fp32 operands that
lie where that kernel can read them.

In: a job. Out: a TorchKernel, or None where on_torch/attention.py is to compute it. The kernel goes over the keys once, with a running
maximum and sum, and leaves out what a causal mask hides; heads are two dimensions of it, keys that heads share have stride 0 in one.
It has no `out=`: what it computes is allocated, then copied. Keys in several tiles, and those before the first query's own, are several
calls: what each finds is weighed by its sum of exponentials, of which the kernel gives the logarithm.

A row whose scores are NaN it may take for one without keys, and answer 0: then, and wherever a sum of exponentials is no number, the blocks
of on_torch/attention.py compute the heads of the call anew.

    q [b,s,k,g,e], k [b,t,k,e], t <= s      per b: queries [k, g, s, e], keys [k, g (stride 0), t, e]
    s from 1024 to 2047                     keys 0 to 1023 without a mask, then 1024 to 2047, the nth query up to the nth key
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from math import inf, prod

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Acc, Binary, Call, Expr, Letter, Num, Region, free_letters
from einpage.einsum_front.algebra.masks import is_minus_infinity
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.affine import Affine, affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, extents, fit, regions, whole
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, Window, in_several_tiles, tile_borders
from einpage.kernels.multiply.gemm import Scratch
from einpage.kernels.multiply.matrix import Factor, Letters, joined
from einpage.kernels.multiply.products import ONLY_MM, Products
from einpage.kernels.on_torch.attention import BLOCK_BYTES, AttentionLowering, Blocks

FP32 = torch.finfo(torch.float32)
QUERY_BLOCK, KEY_BLOCK = 256, 512
"""Scores that a thread of torch's kernel has at a time, at most."""


@dataclass(frozen=True, slots=True)
class SoftmaxForm:
    """An attention as torch's kernel knows it: softmax of `scale` times the products."""

    scale: float
    query: Letter
    """Rows of the matrices of queries."""
    own_key: int | None = None
    """The last key that the first query sees, the next query one more; None where all see all."""


def prepare_fused(job: AttentionJob, products: Products = ONLY_MM) -> TorchKernel | None:
    """`job` by torch's kernel; None where there is none, or it cannot do it. `products` are those of blocks computed anew."""
    if _torch_attention() is None:
        return None
    form = form_of(job)
    if form is None:
        return None
    lowering = AttentionLowering(job)
    fused, blocks = _Fused(lowering, form, products.threads), Blocks(lowering, BLOCK_BYTES, products)
    scratch = Scratch(len(job.reads) + 1, products)
    size = fit(fused.largest_block(), fused.heads, fused.temporary_bytes, SCRATCH_BYTES)
    steps: list[BoundStep] = []
    for heads in regions(lowering.region, fused.heads, size, {}):
        found = fused.steps(heads, scratch)
        if found is None:
            return None
        steps.append(_checked(*found, blocks.steps(heads, scratch)))
    temporaries = max(fused.temporary_bytes(size), blocks.temporary_bytes, scratch.product_bytes)
    return TorchKernel(tuple(steps), tuple(scratch.elements.values()), temporaries)


def form_of(job: AttentionJob) -> SoftmaxForm | None:
    """How torch's kernel computes these scores; None where it does not."""
    region, of_keys = whole(job.ranges), free_letters(job.k) | free_letters(job.v)
    rows = [x for x in job.target if x in free_letters(job.q) and x not in of_keys]
    match job.score:
        case Call("where", (mask, scores, hidden)) if is_minus_infinity(hidden):
            scale, found = scale_of(scores), causal(mask, job.row)
            if scale is None or scale < 0 or found is None:  # what is hidden is -inf before it is scaled
                return None
            query, ahead = found
            own_key = region[query][0] + ahead
            return SoftmaxForm(scale, query, own_key) if query in rows and own_key >= region[job.row][0] else None
        case scores:
            scale, longest = scale_of(scores), max(rows, key=lambda x: region[x][1] - region[x][0], default=None)
            return None if scale is None or longest is None else SoftmaxForm(scale, longest)


def scale_of(score: Expr) -> float | None:
    """What the product of queries and keys is multiplied by; None where scores are not that."""
    match score:
        case Acc(0):
            return 1.0
        case Binary("*", Num(by), x) | Binary("*", x, Num(by)):
            factor: float = by
        case Binary("/", x, Num(by)) if by:
            factor = 1 / by
        case _:
            return None
    found = scale_of(x)
    return None if found is None or not FP32.tiny <= abs(found * factor) <= FP32.max else found * factor


def causal(mask: Expr, row: Letter) -> tuple[Letter, int] | None:
    """(query, n) of a mask that lets a query see the keys up to n ahead of it; None of any other."""
    match mask:
        case Binary("<=" | "<" | ">=" | ">" as op, x, y):
            less, more, strictly = (x, y, op == "<") if op in ("<=", "<") else (y, x, op == ">")
            by = affine(Binary("-", less, more))
        case _:
            return None
    match by:
        case Affine(((query, -1), (key, 1)) | ((key, 1), (query, -1)), const) if key == row:
            return query, -const - strictly
    return None


class _Fused:
    """An attention by torch's kernel, and what all calls of it share."""

    def __init__(self, lowering: AttentionLowering, form: SoftmaxForm, threads: int) -> None:
        self.lowering, self.form, self.threads = lowering, form, threads
        job = lowering.job
        self.columns: Letters = tuple(x for x in lowering.v.letters if x in job.target and x not in lowering.queries)
        """Letters of the result that are of values alone."""
        self.heads: Letters = tuple(x for x in lowering.region if x not in (*self.columns, *job.score_letters, job.row, form.query))
        long = [x for x in self.heads if lowering.region[x][1] - lowering.region[x][0] > 1]
        self.batches: tuple[Letters, Letters] = (tuple(long[-2:-1]), tuple(long[-1:]))
        """Two dimensions of one call."""

    def largest_block(self) -> dict[Letter, int]:
        """What one call may do."""
        calls = [x for x in self.heads if (x,) not in self.batches]
        return extents(self.lowering.region) | dict.fromkeys(calls, 1)

    def temporary_bytes(self, size: Mapping[Letter, int]) -> int:
        """The most that a call for a block allocates, its result among it; or the epilogue after it."""
        rows = prod(size[x] for x in (*self.heads, self.form.query))
        columns = prod(size[x] for x in self.columns)
        block = min(size[self.form.query], QUERY_BLOCK) * (min(size[self.lowering.job.row], KEY_BLOCK) + columns + 2)
        of_rows = columns + 2 if len(self._parts(self.lowering.region)) == 1 else 2 * columns + 4
        epilogue = self.lowering.epilogue.peak_bytes(size, in_several_tiles(self.lowering.job.reads))
        return max(4 * (rows * of_rows + self.threads * block), epilogue)

    def _parts(self, region: Region) -> list[tuple[Region, bool]]:
        """The keys of each call, and whether the nth query sees them up to the nth; later keys are of no query."""
        job, (start, end), (first, last) = self.lowering.job, region[self.lowering.job.row], region[self.form.query]
        middle = end if self.form.own_key is None else min(self.form.own_key, end)
        borders = tile_borders(job.reads, [job.k, job.v])
        seen_by_all = regions(dict(region) | {job.row: (start, middle)}, [job.row], {job.row: end}, borders) if start < middle else ()
        own = dict(region) | {job.row: (middle, min(end, middle + last - first))}
        return [*((part, False) for part in seen_by_all), *([(own, True)] if middle < end else [])]

    def steps(self, region: Region, scratch: Scratch) -> tuple[_Attend, list[BoundStep]] | None:
        """The calls for some heads, and what comes after them; None where an operand lies otherwise than torch's kernel reads it."""
        lowering, job, query, row = self.lowering, self.lowering.job, self.form.query, self.lowering.job.row
        q = self._window(lowering.q, region, (query,), lowering.inner)
        if q is None:
            return None
        parts = []
        for keys, is_causal in self._parts(region):
            k = self._window(lowering.k, keys, (row,), lowering.inner)
            v = self._window(lowering.v, keys, (row,), self.columns)
            if k is None or v is None or q.size[3] != v.size[3]:
                return None
            parts.append((k, v, is_causal))
        into = None if not lowering.no_epilogue() else self._dimensions(lowering.result, region, (query,), self.columns)
        if into is not None:
            return _Attend(q, tuple(parts), into, self.form.scale), []
        out = scratch.tile("fused", (*self.heads, query, *self.columns), region)
        into = self._dimensions(out, region, (query,), self.columns)
        assert into is not None
        store = lowering.result.window(job.target, region)
        return _Attend(q, tuple(parts), into, self.form.scale), [bind(lowering.epilogue, region, job.reads, {1: out}, [store])]

    def _window(self, factor: Factor, region: Region, rows: Letters, columns: Letters) -> Window | None:
        found = factor.at(region)
        if len(found) != 1 or found[0].dtype is not DType.FP32 or not found[0].contains(region):
            return None
        window = self._dimensions(found[0], region, rows, columns)
        return window if window is not None and (window.size[3] == 1 or window.stride[3] == 1) else None

    def _dimensions(self, tile: StridedTile, region: Region, rows: Letters, columns: Letters) -> Window | None:
        """`tile` as [a batch, another, rows, columns]; None where strides do not allow it."""
        first, second = self.batches
        folded = [joined(tile, region, letters) for letters in (first, second, rows, columns)]
        if any(f is None for f in folded):
            return None
        sizes, strides = zip(*(f for f in folded if f is not None), strict=True)
        return Window(tile.operand, tile.tile, sizes, strides, tile.offset(region))


@dataclass(frozen=True, slots=True)
class _Attend:
    """Calls of torch's kernel whose answers are joined."""

    q: Window
    parts: tuple[tuple[Window, Window, bool], ...]
    """Keys, their values, and whether the nth query sees those up to the nth only."""
    into: Window
    scale: float

    def bound(self, buffers: JobBuffers) -> Callable[[], bool]:
        """What calls it, and says whether its answer is right; nothing is written where it may not be."""
        attention = _torch_attention()
        assert attention is not None
        queries, target = self.q.of(buffers), self.into.of(buffers)
        first, *others = (
            partial(attention, queries, k.of(buffers), v.of(buffers), dropout_p=0.0, is_causal=is_causal, scale=self.scale)
            for k, v, is_causal in self.parts
        )

        def attend() -> bool:
            found, log_sums = first()
            if not _are_of_numbers(log_sums):
                return False
            for call in others:
                more, log_more = call()
                if not _are_of_numbers(log_more):
                    return False
                found.lerp_(more, torch.sigmoid(log_more - log_sums).unsqueeze_(-1))
                torch.logaddexp(log_sums, log_more, out=log_sums)
                del more, log_more  # the next call allocates as much
            target.copy_(found)
            return True

        return attend


def _are_of_numbers(log_sums: Tensor) -> bool:
    """Whether all scores were numbers. NaN compares with neither end; 0 is that of a row taken for one without keys."""
    least, most = torch.aminmax(log_sums.abs())
    return 0 < least.item() <= most.item() < inf


def _checked(attend: _Attend, after: list[BoundStep], anew: list[BoundStep]) -> BoundStep:
    """`attend` and what comes after it, or all of it `anew`."""

    def bind_all(buffers: JobBuffers) -> BoundCall:
        first, then = attend.bound(buffers), [step(buffers) for step in after]

        def run() -> None:
            for call in then if first() else [step(buffers) for step in anew]:
                call()

        return run

    return bind_all


@cache
def _torch_attention() -> Callable[..., tuple[Tensor, Tensor]] | None:
    """Torch's flash attention for CPUs; None where it was built without it."""
    packet = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    call: Callable[..., tuple[Tensor, Tensor]] | None = None if packet is None else packet.default
    return call
