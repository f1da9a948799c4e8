"""The plain-torch definition of an AttentionJob: queries in blocks, each against the keys that its mask leaves, a full row at a time.

In: a job. Out: a TorchKernel. A block holds its scores (queries x keys of one batch letter's value) in scratch, never more than the limit
allows; key tiles are multiplied one after the other into that block, so keys and values are read where they lie. Rows whose scores are
all -inf give 0. Its Triton twin is on_triton/attention.py.

    scores = q k^T -> score instructions -> exp(score - max), sum -> times v -> divided by the sum -> epilogue instructions
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

from einpage.einsum_front.algebra.expr import Acc, Letter, Region, loads
from einpage.einsum_front.algebra.masks import emptied
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.calls import exponentials
from einpage.kernels.instructions.compile import compile_epilogue
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import extents, fit, regions, whole
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, in_several_tiles, strided_tile, tile_borders
from einpage.kernels.multiply.gemm import Scratch, multiply
from einpage.kernels.multiply.matrix import Factor, Letters, assign_roles, factor_of, letters_one_by_one, matrix_window, needs_no_copy
from einpage.kernels.multiply.products import ONLY_MM, Products

KEY_STEP = 64
"""How finely the keys that a mask empties are left out."""
BLOCK_BYTES = 1 << 20
"""What a block of scores and all beside it may hold: it is read and written a dozen times, and stays in a core's own cache meanwhile."""


def prepare_attention(job: AttentionJob, limit: int = BLOCK_BYTES, products: Products = ONLY_MM) -> TorchKernel:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a row does."""
    lowering = AttentionLowering(job)
    scratch = Scratch(len(job.reads) + 1, products)
    blocks = Blocks(lowering, limit, products)
    steps = blocks.steps(lowering.region, scratch)
    return TorchKernel(tuple(steps), tuple(scratch.elements.values()), max(blocks.temporary_bytes, scratch.product_bytes))


class Blocks:
    """Of queries, as many as keep temporaries under a limit."""

    def __init__(self, lowering: AttentionLowering, limit: int, products: Products) -> None:
        job = lowering.job
        self._lowering, self._products = lowering, products
        self._borders = tile_borders(job.reads, [job.q, job.k, job.v, *loads(job.epilogue)])
        self._several = in_several_tiles(job.reads)
        self._size = fit(lowering.largest_block(), [*lowering.queries, job.row], self._cost, limit)
        self.temporary_bytes = self._temporaries(self._size)
        """The most that the steps of a block allocate for themselves, but for products."""

    def steps(self, region: Region, scratch: Scratch) -> list[BoundStep]:
        """Steps for all blocks of `region`, one after the other."""
        return [step for block in self._within(region, self._size) for step in self._lowering.block(block, self._size, scratch)]

    def _within(self, region: Region, size: Mapping[Letter, int]) -> Iterator[dict[Letter, tuple[int, int]]]:
        return regions(region, self._lowering.queries, size, self._borders)

    def _temporaries(self, size: Mapping[Letter, int]) -> int:
        lowering, row = self._lowering, whole(self._lowering.job.ranges)[self._lowering.job.row]
        full = {**size, lowering.job.row: row[1] - row[0]}
        sums = 8 * prod(size[x] for x in lowering.queries)
        return max(lowering.score.peak_bytes(full, self._several), lowering.epilogue.peak_bytes(size, self._several), sums)

    def _cost(self, size: Mapping[Letter, int]) -> int:
        lowering, scratch = self._lowering, Scratch(len(self._lowering.job.reads) + 1, self._products)
        *_, last = self._within(lowering.region, size)
        lowering.block(last, size, scratch)
        lowering.block(next(self._within(lowering.region, size)), size, scratch)
        return scratch.nbytes + self._temporaries(size)


class AttentionLowering:
    """An attention job, and what all its blocks share."""

    def __init__(self, job: AttentionJob) -> None:
        self.job = job
        self.q, self.k, self.v = (factor_of(load, job.reads) for load in (job.q, job.k, job.v))
        used = {*self.q.letters, *self.k.letters, *self.v.letters, *job.target}
        self.region = {x: r for x, r in whole(job.ranges).items() if x in used}
        of_scores = [x for x in job.target if x in self.q.letters or x in self.k.letters]
        self.queries: Letters = tuple(x for x in of_scores if x not in job.score_letters)
        """Letters of the scores other than the row: batch and queries."""
        self.inner: Letters = tuple(dict.fromkeys(x for x in (*self.q.letters, *self.k.letters) if x in job.score_letters))
        """What a score is summed over: the letters of queries as they lie, then those of keys alone."""
        indices = tuple(Affine(((x, 1),), 0) for x in job.target)
        self.result = strided_tile(job.result.boxes[0], len(job.reads), 0, job.result.dtype, indices)
        self.qk = assign_roles(self.q, self.k, job.score_letters, None, (*self.queries, job.row), self.region)
        self.scores = self.qk.out
        probabilities = Factor((Scratch(0).tile("scores", self.scores, self.region),), self.scores, "scores")
        self.pv = assign_roles(probabilities, self.v, (job.row,), self.result if self.no_epilogue() else None, job.target, self.region)
        extent = extents(self.region)
        self.score = compile_epilogue(job.score, self.scores, extent, job.reads, {0: frozenset(self.scores)}, frozenset(self.scores))
        direct = frozenset(job.target) if job.result.dtype is DType.FP32 else None
        self.epilogue = compile_epilogue(job.epilogue, job.target, extent, job.reads, {1: frozenset(self.pv.out)}, direct)

    def no_epilogue(self) -> bool:
        """Whether the result is what the values add up to."""
        return self.job.epilogue == Acc(1) and self.job.result.dtype is DType.FP32

    def largest_block(self) -> dict[Letter, int]:
        """All of the job, but for batch letters that are taken one value at a time because no key is packed then."""

        def no_copy(one: Region) -> bool:
            return needs_no_copy(self.k, one, self.qk.of_y) and needs_no_copy(self.v, one, self.pv.of_y)

        one_by_one = letters_one_by_one(self.qk.batch, self.region, no_copy)
        columns = [x for x in self.qk.columns if x != self.job.row]
        return extents(self.region) | dict.fromkeys((*one_by_one, *columns), 1)

    def keys(self, region: Region) -> tuple[int, int] | None:
        """The row's interval that the mask leaves for these queries, or None where it leaves nothing."""
        row = self.job.row
        start, end = self.region[row]
        steps = [(a, min(a + KEY_STEP, end)) for a in range(start, end, KEY_STEP)]
        seen = [s for s in steps if not emptied(self.job.score, dict(region) | {row: s})]
        return (seen[0][0], seen[-1][1]) if seen else None

    def block(self, region: Region, size: Mapping[Letter, int], scratch: Scratch) -> list[BoundStep]:
        """Steps for one block of queries."""
        job = self.job
        keys = self.keys(region)
        into_result = self.no_epilogue() and matrix_window(self.result, region, self.pv.of_out) is not None
        out = self.result if into_result else scratch.tile("out", self.pv.out, region)
        steps: list[BoundStep] = []
        if keys is None:
            steps.append(_clear(out, self.pv.out, region))
        else:
            region = dict(region) | {job.row: keys}
            steps += self._rows(region, size, scratch, out)
        if not into_result:
            steps.append(bind(self.epilogue, region, job.reads, {1: out}, [self.result.window(job.target, region)]))
        return steps

    def _rows(self, region: Region, size: Mapping[Letter, int], scratch: Scratch, out: StridedTile) -> Iterator[BoundStep]:
        job, qk, pv = self.job, self.qk, self.pv
        scores = scratch.tile("scores", self.scores, region)
        for part in regions(region, (job.row,), size, tile_borders(job.reads, [job.k])):
            window = matrix_window(scores, part, qk.of_out)
            assert window is not None
            yield from multiply(self.q, self.k, window, qk, part, size, scratch)
        if job.score != Acc(0):
            yield from self._score(region, scores)
        sums = scratch.tile("sums", self.queries, region)
        yield _exponentials(scores, sums, self.scores, job.row, region)
        probabilities = Factor((scores,), self.scores, "scores")
        target = matrix_window(out, region, pv.of_out)
        assert target is not None
        yield from multiply(probabilities, self.v, target, pv, region, size, scratch)
        yield _divide(out, sums, pv.out, region)

    def _score(self, region: Region, scores: StridedTile) -> Iterator[BoundStep]:
        """The products turned into scores where they lie."""
        job = self.job
        borders = tile_borders(job.reads, [x for x in loads(job.score) if x.name not in (job.q.name, job.k.name)])
        for part in regions(region, (job.row,), {job.row: region[job.row][1] - region[job.row][0]}, borders):
            yield bind(self.score, part, job.reads, {0: scores}, [scores.window(self.scores, part)])


def _exponentials(scores: StridedTile, sums: StridedTile, order: Letters, row: Letter, region: Region) -> BoundStep:
    window, totals = scores.window(order, region), sums.window(order, region)
    dims = (order.index(row),)

    def exponentials_and_sum(buffers: JobBuffers) -> BoundCall:
        x, total = window.of(buffers), totals.of(buffers)
        return lambda: total.copy_(exponentials(x, dims, out=x)[1])

    return exponentials_and_sum


def _divide(out: StridedTile, sums: StridedTile, order: Letters, region: Region) -> BoundStep:
    window, totals = out.window(order, region), sums.window(order, region)

    def divide(buffers: JobBuffers) -> BoundCall:
        found, total = window.of(buffers), totals.of(buffers)
        return lambda: found.div_(total.clamp_(min=1e-30))

    return divide


def _clear(out: StridedTile, order: Letters, region: Region) -> BoundStep:
    window = out.window(order, region)
    return lambda buffers: window.of(buffers).zero_
