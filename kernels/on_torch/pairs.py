"""The plain-torch definition of a PairsJob: blocks of rows, each against blocks of what is summed, as the mask leaves them.

In: a job. Out: a TorchKernel. A block holds the products of its pairs and their weights in scratch, never more than the limit allows;
weights take the place of the first product. Sums are accumulated block by block; a logarithm carries the largest weight along, as a
softmax over parts of a row does. Its Triton twin is on_triton/pairs.py.

    products x y -> weight instructions -> times the factor, added up -> epilogue instructions
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import inf, prod

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, Region, loads
from einpage.einsum_front.algebra.masks import decided, emptied
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import PairsJob
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_epilogue
from einpage.kernels.instructions.instruction_list import InstructionList
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import extents, fit, regions, whole
from einpage.kernels.layout.flags import clear_flag, raise_where_not_finite
from einpage.kernels.layout.window import (
    BoundCall,
    BoundStep,
    JobBuffers,
    StridedTile,
    Window,
    in_several_tiles,
    strided_tile,
    tile_borders,
)
from einpage.kernels.multiply.gemm import Scratch, multiply
from einpage.kernels.multiply.matrix import Factor, Letters, assign_roles, factor_of, letters_one_by_one, matrix_window, needs_no_copy
from einpage.kernels.multiply.products import ONLY_MM, Products

BLOCK_BYTES = 1 << 21
"""What a block of pairs may hold: two products and their weights stay in the caches of two cores meanwhile."""
LEAST = -3.0e38
"""What the largest weight of a row is taken for where all are -inf."""


def prepare_pairs(job: PairsJob, limit: int = BLOCK_BYTES, products: Products = ONLY_MM) -> TorchKernel:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a single pair does."""
    lowering = _PairsLowering(job)
    size = fit(lowering.largest_block(), [*lowering.rows, *job.letters], lambda n: lowering.cost(n, products), limit)
    scratch = Scratch(len(job.reads) + 1, products)
    steps = [clear_flag(len(job.reads))] if job.result.is_checked else []
    for block in lowering.blocks(size):
        steps += lowering.block(block, size, scratch)
        if job.result.is_checked:
            steps.append(raise_where_not_finite(lowering.result.window(job.target, block)))
    return TorchKernel(tuple(steps), tuple(scratch.elements.values()), max(lowering.temporary_bytes(size), scratch.product_bytes))


class _PairsLowering:
    """A job of pairs, and what all its blocks share."""

    def __init__(self, job: PairsJob) -> None:
        self.job = job
        self.sides = [(factor_of(c.x, job.reads), factor_of(c.y, job.reads)) for c in job.products]
        self.factor = None if job.factor is None else factor_of(job.factor, job.reads)
        of_pairs = {x for pair in self.sides for side in pair for x in side.letters} - {x for c in job.products for x in c.letters}
        used = {x for pair in self.sides for side in pair for x in side.letters} | {*job.target}
        self.region = {x: r for x, r in whole(job.ranges).items() if x in used}
        self.rows: Letters = tuple(x for x in job.target if x in of_pairs)
        pair = (*self.rows, *job.letters)
        self.roles = [assign_roles(x, y, c.letters, None, pair, self.region) for (x, y), c in zip(self.sides, job.products, strict=True)]
        self.pair: Letters = self.roles[0].out
        """The letters of a pair, as weights lie in scratch."""
        assert set(self.pair) == set(pair), "the first product has all letters of a pair"
        indices = tuple(Affine(((x, 1),), 0) for x in job.target)
        self.result = strided_tile(job.result.boxes[0], len(job.reads), 0, job.result.dtype, indices)
        extent = extents(self.region)
        accs = {n: frozenset(roles.out) for n, roles in enumerate(self.roles)}
        self.accs, self.weights = accs, dict[Expr, InstructionList]()
        """What computes weights where some conditions are known."""
        self.weight = self._weight(job.weight)
        weights = Factor((Scratch(0).tile("product 0", self.pair, self.region),), self.pair, "weights")
        self.is_result = job.epilogue == Acc(len(job.products)) and job.result.dtype is DType.FP32 and self.factor is not None
        """Whether what the factors add up to is the result."""
        self.sum = None
        if self.factor is not None:
            out = self.result if self.is_result else None
            self.sum = assign_roles(weights, self.factor, job.letters, out, job.target, self.region)
        self.total: Letters = self.rows if self.sum is None else self.sum.out
        direct = frozenset(job.target) if job.result.dtype is DType.FP32 else None
        self.epilogue = compile_epilogue(job.epilogue, job.target, extent, job.reads, {len(job.products): frozenset(self.total)}, direct)
        factors = [load for c in job.products for load in (c.x, c.y)]
        self.borders = tile_borders(job.reads, [*factors, *([] if job.factor is None else [job.factor]), *_plain(job.weight)])
        self.several = in_several_tiles(job.reads)

    def _weight(self, e: Expr) -> InstructionList:
        if e not in self.weights:
            letters = frozenset(self.pair)
            self.weights[e] = compile_epilogue(e, self.pair, extents(self.region), self.job.reads, self.accs, letters)
        return self.weights[e]

    def largest_block(self) -> dict[Letter, int]:
        """All of the job, but for batch letters that are taken one value at a time because nothing is packed then."""

        def no_copy(one: Region) -> bool:
            return all(
                needs_no_copy(x, one, roles.of_x) and needs_no_copy(y, one, roles.of_y)
                for (x, y), roles in zip(self.sides, self.roles, strict=True)
            ) and (self.sum is None or self.factor is None or needs_no_copy(self.factor, one, self.sum.of_y))

        one_by_one = letters_one_by_one(self.roles[0].batch, self.region, no_copy)
        return extents(self.region) | dict.fromkeys(one_by_one, 1)

    def blocks(self, size: Mapping[Letter, int]) -> Iterator[dict[Letter, tuple[int, int]]]:
        """Of rows."""
        return regions(self.region, self.rows, size, self.borders)

    def cost(self, size: Mapping[Letter, int], products: Products) -> int:
        """Bytes that a block of `size` holds."""
        scratch = Scratch(len(self.job.reads) + 1, products)
        whole_region = {x: (r[0], min(r[1], r[0] + size[x])) for x, r in self.region.items()}
        self._pairs(whole_region, size, scratch, scratch.tile("total", self.total, whole_region), first=True)
        return scratch.nbytes + self.temporary_bytes(size)

    def temporary_bytes(self, size: Mapping[Letter, int]) -> int:
        """The most that the steps of a block allocate for themselves, but for products."""
        sums = 16 * prod(size[x] for x in self.rows)
        return max(self.weight.peak_bytes(size, self.several), self.epilogue.peak_bytes(size, self.several), sums)

    def block(self, region: Region, size: Mapping[Letter, int], scratch: Scratch) -> list[BoundStep]:
        """Steps for one block of rows."""
        job = self.job
        into_result = self.sum is not None and self.is_result and matrix_window(self.result, region, self.sum.of_out) is not None
        total = self.result if into_result else scratch.tile("total", self.total, region)
        steps: list[BoundStep] = []
        for part in regions(region, job.letters, size, self.borders):
            if not emptied(job.score, part):
                steps += self._pairs(part, size, scratch, total, first=not steps)
        if not steps:
            steps.append(_fill(total.window(self.total, region), inf if job.is_logarithm else 0.0))
        elif job.is_logarithm:
            steps.append(_logarithm(total.window(self.total, region), self._most(region, scratch).window(self.total, region)))
        if not into_result:
            results = [self.result.window(job.target, region)]
            steps.append(bind(self.epilogue, region, job.reads, {len(job.products): total}, results))
        return steps

    def _most(self, region: Region, scratch: Scratch) -> StridedTile:
        """The largest weight of each row so far."""
        return scratch.tile("most", self.total, region)

    def _pairs(self, region: Region, size: Mapping[Letter, int], scratch: Scratch, total: StridedTile, *, first: bool) -> list[BoundStep]:
        """Steps that add the pairs of `region` to `total`."""
        job = self.job
        steps: list[BoundStep] = []
        tiles: dict[int, StridedTile] = {}
        for n, ((x, y), roles) in enumerate(zip(self.sides, self.roles, strict=True)):
            tiles[n] = scratch.tile(f"product {n}", roles.out, region)
            window = matrix_window(tiles[n], region, roles.of_out)
            assert window is not None
            scratch.owner = f"{n} "
            steps += multiply(x, y, window, roles, region, size, scratch)
        scratch.owner = ""
        weight = decided(job.weight, region)
        if weight != Acc(0):
            steps.append(bind(self._weight(weight), region, job.reads, tiles, [tiles[0].window(self.pair, region)]))
        if self.sum is not None and self.factor is not None:
            weights = Factor((tiles[0],), self.pair, "weights")
            out = matrix_window(total, region, self.sum.of_out)
            assert out is not None
            return [*steps, *multiply(weights, self.factor, out, self.sum, region, size, scratch, None if first else out)]
        dims = tuple(self.pair.index(x) for x in job.letters)
        found, sums = tiles[0].window(self.pair, region), total.window(self.pair, region)
        if job.is_logarithm:
            return [*steps, _exponentials(found, sums, self._most(region, scratch).window(self.pair, region), dims, first)]
        return [*steps, _added(found, sums, dims, first)]


def _plain(e: object) -> list[Load]:
    """The loads of an expression that bare letters index."""
    return [load for load in loads(e) if all(isinstance(i, Axis) for i in load.indices)]  # type: ignore[arg-type]


def _fill(window: Window, value: float) -> BoundStep:
    return lambda buffers: lambda: window.of(buffers).fill_(value)


def _rows(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """`x` with one element along `dims`, along which all are the same."""
    for dim in dims:
        x = x.narrow(dim, 0, 1)
    return x


def _added(weights: Window, sums: Window, dims: tuple[int, ...], first: bool) -> BoundStep:
    def bound(buffers: JobBuffers) -> BoundCall:
        found, total = weights.of(buffers), _rows(sums.of(buffers), dims)

        def add() -> None:
            more = torch.sum(found, dim=dims, keepdim=True)
            total.copy_(more) if first else total.add_(more)

        return add

    return bound


def _exponentials(weights: Window, sums: Window, most: Window, dims: tuple[int, ...], first: bool) -> BoundStep:
    """The sums of exponentials less the largest weight, which may grow."""

    def bound(buffers: JobBuffers) -> BoundCall:
        found, total, largest = weights.of(buffers), _rows(sums.of(buffers), dims), _rows(most.of(buffers), dims)

        def add() -> None:
            now = torch.amax(found, dim=dims, keepdim=True).clamp_(min=LEAST)
            if not first:
                now = torch.maximum(now, largest)
                total.mul_(largest.sub_(now).exp_())
            more = torch.sum(found.sub_(now).exp_(), dim=dims, keepdim=True)
            total.copy_(more) if first else total.add_(more)
            largest.copy_(now)

        return add

    return bound


def _logarithm(total: Window, most: Window) -> BoundStep:
    """The logarithm of sums; inf of a sum of nothing."""

    def bound(buffers: JobBuffers) -> Callable[[], object]:
        sums, largest = total.of(buffers), most.of(buffers)

        def logarithm() -> None:
            empty = sums == 0
            sums.log_().add_(largest).masked_fill_(empty, inf)

        return logarithm

    return bound
