"""The plain-torch definition of a PairsJob without products: rows of the factor added where an index says.

In: a job. Out: a TorchKernel. Rows are added in their order, so that a result has the same bits however it is cut; those whose index is of
another tile are left out. In another dtype than fp32, and where there is an epilogue, sums of a block of the result lie in scratch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from einpage.einsum_front.algebra.expr import Acc, Letter
from einpage.einsum_front.algebra.rewrite import one_hot_of
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import PairsJob
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_epilogue
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, extents, fit, regions, whole
from einpage.kernels.layout.flags import clear_flag, raise_where_not_finite
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, Window, in_several_tiles, strided_tile, tile_borders
from einpage.kernels.multiply.gemm import Scratch
from einpage.kernels.multiply.matrix import factor_of


def prepare_added_rows(job: PairsJob, limit: int = SCRATCH_BYTES) -> TorchKernel:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a single row does."""
    found = one_hot_of(job.weight)
    assert found is not None, "a job of pairs without products adds rows"
    assert job.factor is not None, "a job of pairs without products adds rows"
    index, row = found
    indices, factor = factor_of(index, job.reads), factor_of(job.factor, job.reads)
    own = tuple(x for x in job.target if x != row)
    region = {x: r for x, r in whole(job.ranges).items() if x in {row, *own, *job.letters}}
    result = strided_tile(job.result.boxes[0], len(job.reads), 0, job.result.dtype, tuple(Affine(((x, 1),), 0) for x in job.target))
    is_result = job.epilogue == Acc(0) and job.result.dtype is DType.FP32
    direct = frozenset(job.target) if job.result.dtype is DType.FP32 else None
    epilogue = compile_epilogue(job.epilogue, job.target, extents(region), job.reads, {0: frozenset((row, *own))}, direct)
    borders = tile_borders(job.reads, [index, job.factor])

    def temporary_bytes(size: Mapping[Letter, int]) -> int:
        rows = prod(size[x] for x in job.letters)
        of_epilogue = 0 if is_result else epilogue.peak_bytes(size, in_several_tiles(job.reads))
        return max(rows * (32 + 8 * prod(size[x] for x in own)), of_epilogue)

    def cost(size: Mapping[Letter, int]) -> int:
        return temporary_bytes(size) + (0 if is_result else 4 * prod(size[x] for x in (row, *own)))

    size = fit(extents(region), [row, *own, *job.letters] if not is_result else [*job.letters, *own], cost, limit)
    scratch = Scratch(len(job.reads) + 1)
    steps: list[BoundStep] = [clear_flag(len(job.reads))] if job.result.is_checked else []
    for block in regions(region, (row, *own), size, borders):
        total = result if is_result else scratch.tile("total", (row, *own), block)
        into = total.window((row, *own), block)
        steps.append(_zero(into))
        for part in regions(block, job.letters, size, borders):
            (places,), (rows,) = indices.at(part), factor.at(part)
            steps.append(_add(places.window(job.letters, part), rows.window((*job.letters, *own), part), into, part[row][0]))
        if not is_result:
            steps.append(bind(epilogue, block, job.reads, {0: total}, [result.window(job.target, block)]))
        if job.result.is_checked:
            steps.append(raise_where_not_finite(result.window(job.target, block)))
    return TorchKernel(tuple(steps), tuple(scratch.elements.values()), temporary_bytes(size))


def _zero(into: Window) -> BoundStep:
    return lambda buffers: into.of(buffers).zero_


def _add(places: Window, rows: Window, into: Window, first: int) -> BoundStep:
    """Add `rows` at `places` less `first`, those that are rows of `into`."""
    summed = len(places.size)

    def bound(buffers: JobBuffers) -> BoundCall:
        at, what, total = places.of(buffers), rows.of(buffers), into.of(buffers)

        def add() -> None:
            where = at.reshape(-1).long() - first
            inside = ((where >= 0) & (where < total.shape[0])).nonzero().flatten()
            found = what.reshape(-1, *what.shape[summed:]).index_select(0, inside)
            total.index_add_(0, where.index_select(0, inside), found.to(torch.float32))

        return add

    return bound
