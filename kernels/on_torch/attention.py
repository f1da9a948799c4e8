"""The plain-torch definition of an AttentionJob: queries in blocks, each against the keys that its mask leaves, a full row at a time.

In: a job. Out: a program. A block holds its scores (queries x keys of one batch letter's value) in scratch, never more than the limit
allows; key tiles are multiplied one after the other into that block, so keys and values are read where they lie. Rows whose scores are
all -inf give 0.

    scores = q k^T -> score tape -> exp(score - max), sum -> times v -> divided by the sum -> epilogue tape
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from math import prod

from einpage.einsum_front.algebra.expr import Acc, Letter, Load, loads
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.calls import softmax_parts
from einpage.kernels.instructions.compile import compile_epilogue
from einpage.kernels.instructions.torch_kernel import Program
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, Region, extents, fit, regions, whole
from einpage.kernels.layout.mask import emptied
from einpage.kernels.layout.window import Memory, Op, Tile, cuts, tile_of
from einpage.kernels.on_torch.contract import factor
from einpage.kernels.on_torch.matrix import Factor, Letters, Scratch, fold, group, lies_well, multiply, separate_batch

KEY_STEP = 64
"""How finely the keys that a mask empties are left out."""


class _Planner:
    """Everything about an attention job that its blocks share."""

    def __init__(self, job: AttentionJob) -> None:
        self.job = job
        self.q, self.k, self.v = (factor(load, job.reads) for load in (job.q, job.k, job.v))
        every = whole(job.ranges)
        used = {*self.q.letters, *self.k.letters, *self.v.letters, *job.target}
        self.region = {x: r for x, r in every.items() if x in used}
        summed = set(job.score_letters)
        outer = [x for x in job.target if x in self.q.letters or x in self.k.letters]
        self.outer: Letters = tuple(x for x in outer if x not in summed)
        """Letters of the scores besides the row."""
        self.scores: Letters = (*self.outer, job.row)
        self.result = tile_of(job.result.boxes[0], len(job.reads), 0, job.result.dtype, tuple(Affine(((x, 1),), 0) for x in job.target))
        self.qk = group(self.q, self.k, job.score_letters, None, self.scores, self.region)
        self.scores = self.qk.out
        probabilities = Factor((Scratch(0).tile("scores", self.scores, self.region),), self.scores, "scores")
        self.pv = group(probabilities, self.v, (job.row,), self.result if self._plain_end() else None, job.target, self.region)
        row = extents(self.region)
        self.score_tape = compile_epilogue(job.score, self.scores, row, job.reads, {0: frozenset(self.scores)}, frozenset(self.scores))
        direct = frozenset(job.target) if job.result.dtype is DType.FP32 else None
        self.end_tape = compile_epilogue(job.epilogue, job.target, row, job.reads, {1: frozenset(self.pv.out)}, direct)
        self.split = frozenset(i for i, view in enumerate(job.reads) if len(view.boxes) > 1)

    def _plain_end(self) -> bool:
        return self.job.epilogue == Acc(1) and self.job.result.dtype is DType.FP32

    def borders(self, among: Collection[Load]) -> dict[Letter, set[int]]:
        out: dict[Letter, set[int]] = defaultdict(set)
        for load in among:
            for letter, places in cuts(next(v for v in self.job.reads if v.name == load.name), load).items():
                out[letter] |= places
        return out

    def keys(self, region: Region) -> tuple[int, int] | None:
        """The row's interval that the mask leaves for these queries, or None where it leaves nothing."""
        row = self.job.row
        start, stop = self.region[row]
        steps = [(a, min(a + KEY_STEP, stop)) for a in range(start, stop, KEY_STEP)]
        left = [s for s in steps if not emptied(self.job.score, dict(region) | {row: s})]
        return (left[0][0], left[-1][1]) if left else None

    def block(self, region: Region, size: Mapping[Letter, int], scratch: Scratch) -> list[Op]:
        """Steps for one block of queries."""
        job = self.job
        keys = self.keys(region)
        end = self.result if self._plain_end() and fold(self.result, region, (self.pv.batch, self.pv.rows, self.pv.columns)) else None
        out = end if end is not None else scratch.tile("out", self.pv.out, region)
        ops: list[Op] = []
        if keys is None:
            ops.append(_clear(out, self.pv.out, region))
        else:
            region = dict(region) | {job.row: keys}
            ops += self._rows(region, size, scratch, out)
        if end is None:
            ops.append(bind(self.end_tape, region, job.reads, {1: out}, [self.result.window(job.target, region)]))
        return ops

    def _rows(self, region: Region, size: Mapping[Letter, int], scratch: Scratch, out: Tile) -> Iterator[Op]:
        job, qk, pv = self.job, self.qk, self.pv
        scores = scratch.tile("scores", self.scores, region)
        borders = self.borders((job.k,))
        for part in regions(region, (job.row,), size, borders):
            window = fold(scores, part, (qk.batch, qk.rows, qk.columns))
            assert window is not None
            yield from multiply(self.q, self.k, window, qk, part, size, scratch)
        if job.score != Acc(0):
            yield from self._score(region, scores)
        sums = scratch.tile("sums", self.outer, region)
        yield _exponentials(scores, sums, self.scores, job.row, region)
        probabilities = Factor((scores,), self.scores, "scores")
        target = fold(out, region, (pv.batch, pv.rows, pv.columns))
        assert target is not None
        yield from multiply(probabilities, self.v, target, pv, region, size, scratch)
        yield _divide(out, sums, pv.out, region)

    def _score(self, region: Region, scores: Tile) -> Iterator[Op]:
        """The products turned into scores where they lie."""
        job = self.job
        score_borders = self.borders([x for x in loads(job.score) if x.name not in (job.q.name, job.k.name)])
        for part in regions(region, (job.row,), {job.row: region[job.row][1] - region[job.row][0]}, score_borders):
            yield bind(self.score_tape, part, job.reads, {0: scores}, [scores.window(self.scores, part)])


def _exponentials(scores: Tile, sums: Tile, order: Letters, row: Letter, region: Region) -> Op:
    given, totals = scores.window(order, region), sums.window(order, region)
    dims = (order.index(row),)

    def exponentials(memory: Memory) -> None:
        x = given.of(memory)
        _, total = softmax_parts(x, dims, out=x)
        totals.of(memory).copy_(total)

    return exponentials


def _divide(out: Tile, sums: Tile, order: Letters, region: Region) -> Op:
    window, totals = out.window(order, region), sums.window(order, region)

    def divide(memory: Memory) -> None:
        window.of(memory).div_(totals.of(memory).clamp_(min=1e-30))

    return divide


def _clear(out: Tile, order: Letters, region: Region) -> Op:
    window = out.window(order, region)

    def clear(memory: Memory) -> None:
        window.of(memory).zero_()

    return clear


def attention_program(job: AttentionJob, limit: int = SCRATCH_BYTES) -> Program:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a row does."""
    plan = _Planner(job)
    size = extents(plan.region)

    def folds(one: Region) -> bool:
        keys = lies_well(plan.k, one, (plan.qk.batch, plan.qk.inner, plan.qk.columns))
        return keys and lies_well(plan.v, one, (plan.pv.batch, plan.pv.inner, plan.pv.columns))

    for letter in plan.qk.batch[: separate_batch(plan.qk.batch, plan.region, folds)]:
        size[letter] = 1
    size |= {letter: 1 for letter in plan.qk.columns if letter != job.row}
    row = whole(job.ranges)[job.row]
    free = plan.outer
    borders = plan.borders([job.q, job.k, job.v, *loads(job.epilogue)])
    borders = {x: places for x, places in borders.items() if x in free}

    def blocks(e: Mapping[Letter, int]) -> Iterator[dict[Letter, tuple[int, int]]]:
        return regions(plan.region, free, e, borders)

    def temporaries(e: Mapping[Letter, int]) -> int:
        full = {**e, job.row: row[1] - row[0]}
        reduced = 8 * prod(e[x] for x in plan.outer)
        return max(plan.score_tape.peak_bytes(full, plan.split), plan.end_tape.peak_bytes(e, plan.split), reduced)

    def cost(e: Mapping[Letter, int]) -> int:
        scratch = Scratch(len(job.reads) + 1)
        *_, last = blocks(e)
        plan.block(last, e, scratch)
        plan.block(next(blocks(e)), e, scratch)
        return scratch.nbytes + temporaries(e)

    size = fit(size, [*free, job.row], cost, limit)
    scratch = Scratch(len(job.reads) + 1)
    ops: list[Op] = []
    for block in blocks(size):
        ops += plan.block(block, size, scratch)
    return Program(tuple(ops), tuple(scratch.elements.values()), temporaries(size))
