"""Attention of few queries: loops that are compiled, over keys and values where they lie. With few queries an attention takes as long as it
takes to begin it, and matrices are too small to be multiplied as such.

In: a job. Out: a TorchKernel of two to four calls, or None where it has more queries, factors that are not fp32 numbers, or tiles that end
within a product. A query's bits do not depend on the others. Rows whose scores are all -inf give 0.

    scores = q . k, each by LANES of its sum -> score instructions -> exp(score - max), sum; out += p * v, key by key; out / sum -> epilogue
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from torch import Tensor

from einpage.einsum_front.algebra.expr import Acc, Letter, Region
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.libraries import MOST_QUERIES
from einpage.einsum_front.graph.job import AttentionJob
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.blocks import extents
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, in_several_tiles
from einpage.kernels.multiply.gemm import Scratch
from einpage.kernels.multiply.matrix import Factor, clip
from einpage.kernels.on_llvm.compile import why_not_llvm
from einpage.kernels.on_llvm.loop_nests import Applied, Array, Constant, Element, Loaded, LoopNests, Nest, Spacing, loop_nests
from einpage.kernels.on_torch.attention import BLOCK_BYTES, AttentionLowering

SHORT_PRODUCTS = 1 << 17
"""So many products are over in some microseconds: the interpreter's lock is held for them."""


def prepare_few_queries(job: AttentionJob) -> TorchKernel | None:
    """`job`, if it is of few queries."""
    lowering = AttentionLowering(job)
    region = lowering.region
    alone = [x for x in lowering.queries if x not in lowering.k.letters]
    columns = tuple(x for x in lowering.v.letters if x in job.target and x not in lowering.queries)
    too_many = prod(region[x][1] - region[x][0] for x in alone) > MOST_QUERIES
    if why_not_llvm() is not None or too_many or not columns or not job.score_letters:
        return None
    if any(tile.dtype is not DType.FP32 for factor in (lowering.q, lowering.k, lowering.v) for tile in factor.tiles):
        return None
    keys = lowering.keys(region)
    if keys is None:
        return None
    region = dict(region) | {job.row: keys}
    scratch = Scratch(len(job.reads) + 1)
    scores, sums = scratch.tile("scores", (*lowering.queries, job.row), region), scratch.tile("sums", lowering.queries, region)
    into_result = lowering.no_epilogue()
    out = lowering.result if into_result else scratch.tile("out", (*lowering.queries, *columns), region)
    if 4 * sum(scratch.elements.values()) > BLOCK_BYTES:
        return None
    if any(part[x] != region[x] for _, of_q in _parts(lowering.q, region) for _, part in _parts(lowering.k, of_q) for x in lowering.inner):
        return None  # each nest sums a whole product
    steps = [_products(lowering, scores, region)]
    if job.score != Acc(0):
        steps.append(bind(lowering.score, region, job.reads, {0: scores}, [scores.window(lowering.scores, region)]))
    steps.append(_weighted(lowering, scores, sums, out, region, columns))
    if not into_result:
        steps.append(bind(lowering.epilogue, region, job.reads, {1: out}, [lowering.result.window(job.target, region)]))
    several = in_several_tiles(job.reads)
    extent = extents(region)
    temporaries = max(lowering.score.peak_bytes(extent, several), lowering.epilogue.peak_bytes(extent, several))
    return TorchKernel(tuple(steps), tuple(scratch.elements.values()), temporaries)


class _Loops:
    """Nests over parts of tiles. A dimension is a letter's, in one part of its interval."""

    def __init__(self) -> None:
        self.dims: dict[tuple[Letter, tuple[int, int]], int] = {}
        self._arrays: dict[tuple[int, int, tuple[tuple[Letter, int], ...], tuple[int, ...]], int] = {}
        self._tiles: list[tuple[StridedTile, int, dict[int, int]]] = []
        """Of each array, with the element at which it begins and its stride by dimension."""
        self.nests: list[Nest] = []

    def dimensions(self, letters: Sequence[Letter], region: Region) -> tuple[int, ...]:
        return tuple(self.dims.setdefault((x, region[x]), len(self.dims)) for x in letters)

    def array(self, tile: StridedTile, region: Region) -> int:
        """That of `tile` in `region`."""
        letters = tuple(x for x in tile.stride if x in region)
        dims = self.dimensions(letters, region)
        key = tile.operand, tile.tile, tuple(tile.stride.items()), dims
        if key not in self._arrays:
            self._arrays[key] = len(self._tiles)
            self._tiles.append((tile, tile.offset(region), {d: tile.stride[x] for d, x in zip(dims, letters, strict=True)}))
        return self._arrays[key]

    def step(self) -> BoundStep:
        """What runs the nests."""
        inner = {nest.dims[-1] for nest in self.nests}
        extents = [end - start for _, (start, end) in self.dims]
        holds_lock = sum(prod(extents[d] for d in nest.dims) for nest in self.nests) <= SHORT_PRODUCTS
        tiles, arrays = tuple(self._tiles), list[Array]()
        for _, _, stride in tiles:
            spacing = [Spacing.NONE] * len(extents)
            for d, step in stride.items():
                spacing[d] = Spacing.ONE if d in inner and step == 1 else Spacing.MANY
            arrays.append(Array(Element.FP32, tuple(spacing)))
        nests = LoopNests(len(extents), tuple(arrays), tuple(self.nests))

        def bound(buffers: JobBuffers) -> BoundCall:
            table, kept = list[int](extents), list[Tensor]()
            for tile, first, stride in tiles:
                kept.append(buffers[tile.operand][tile.tile])
                table += [kept[-1].data_ptr() + 4 * first, *(stride.get(d, 0) for d in range(len(extents)))]
            kernel, numbers = loop_nests(nests, holds_lock), np.array(table, np.int64)
            address = numbers.ctypes.data

            def call() -> object:
                kernel(address)
                return numbers, kept  # addresses are of these

            return call

        return bound


def _parts(factor: Factor, region: Region) -> list[tuple[StridedTile, Region]]:
    """The tiles that hold `region` together, each with its share."""
    return [(tile, clip(tile, region)) for tile in factor.at(region)]


def _products(lowering: AttentionLowering, scores: StridedTile, region: Region) -> BoundStep:
    """scores[queries, key] = sum over `inner` of q * k."""
    inner = lowering.inner
    loops, times = _Loops(), (Applied("*", (0, 1)),)
    for q, of_q in _parts(lowering.q, region):
        for k, part in _parts(lowering.k, of_q):
            dims = loops.dimensions((*lowering.queries, lowering.job.row, *inner), part)
            values = (Loaded(loops.array(q, part)), Loaded(loops.array(k, part)), *times)
            over = frozenset(loops.dimensions(inner, part))
            loops.nests.append(Nest(dims, values, ((loops.array(scores, part), 2),), "sum", over))
    return loops.step()


def _weighted(
    lowering: AttentionLowering, scores: StridedTile, sums: StridedTile, out: StridedTile, region: Region, columns: tuple[Letter, ...]
) -> BoundStep:
    """out[queries, columns] = exponentials of the scores, times values, divided by their sum."""
    loops, queries, row = _Loops(), lowering.queries, lowering.job.row
    s, total, target = (loops.array(tile, region) for tile in (scores, sums, out))
    of_scores, keys = loops.dimensions((*queries, row), region), frozenset(loops.dimensions((row,), region))
    loops.nests.append(Nest(of_scores, (Loaded(s),), ((total, 0),), "max", keys))
    most = (Loaded(s), Loaded(total), Constant(-3.0e38), Applied("max", (1, 2)))
    loops.nests.append(Nest(of_scores, (*most, Applied("-", (0, 3)), Applied("exp", (4,))), ((s, 5),)))
    loops.nests.append(Nest(of_scores, (Loaded(s),), ((total, 0),), "sum", keys))
    of_out = loops.dimensions((*queries, *columns), region)
    loops.nests.append(Nest(of_out, (Constant(0.0),), ((target, 0),)))
    for v, part in _parts(lowering.v, region):
        here = [loops.array(tile, part) for tile in (scores, v, out)]
        loaded = (Loaded(here[0]), Loaded(here[1]), Loaded(here[2]))
        values = (*loaded, Applied("*", (0, 1)), Applied("+", (2, 3)))
        loops.nests.append(Nest(loops.dimensions((*queries, row, *columns), part), values, ((here[2], 4),)))
    divided = (Loaded(target), Loaded(total), Constant(1e-30), Applied("max", (1, 2)), Applied("/", (0, 3)))
    loops.nests.append(Nest(of_out, divided, ((target, 4),)))
    return loops.step()
