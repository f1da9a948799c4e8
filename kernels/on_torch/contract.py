"""The plain-torch definition of a ContractJob: matrix products into fp32 accumulators, then the epilogue, block by block.

In: a job. Out: a TorchKernel. Where the epilogue is the accumulator itself, or an addition to it, and the result is fp32, the product goes
straight into the result; otherwise accumulators of a block lie in scratch and the epilogue's instructions carry them into the result.
Its Triton twin is on_triton/contract.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Letter, Load, Num, Region, loads
from einpage.einsum_front.base.dtype import DType, Stored
from einpage.einsum_front.graph.job import ContractJob, View
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_epilogue
from einpage.kernels.instructions.instruction_list import InstructionList
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, extents, fit, regions, whole
from einpage.kernels.layout.flags import clear_flag, fit_cache, raise_where_not_finite
from einpage.kernels.layout.window import BoundStep, StridedTile, Window, in_several_tiles, strided_tile, tile_borders
from einpage.kernels.multiply.gemm import Scratch, multiply
from einpage.kernels.multiply.matrix import (
    Factor,
    Letters,
    Roles,
    assign_roles,
    factor_of,
    letters_one_by_one,
    matrix_window,
    needs_no_copy,
)
from einpage.kernels.multiply.products import ONLY_MM, Products
from einpage.kernels.multiply.unpack_steps import limit_rows


def prepare_contract(job: ContractJob, limit: int = SCRATCH_BYTES, products: Products = ONLY_MM) -> TorchKernel:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a row does."""
    lowering = _ContractLowering(job)
    borders, order, several = lowering.borders(), lowering.block_letters(), in_several_tiles(job.reads)

    def blocks(size: Mapping[Letter, int]) -> Iterator[dict[Letter, tuple[int, int]]]:
        return regions(lowering.region, order, size, borders)

    def temporaries(size: Mapping[Letter, int], has_epilogue: bool) -> int:
        return lowering.epilogue.peak_bytes(size, several) if lowering.epilogue is not None and has_epilogue else 0

    def first_block(size: Mapping[Letter, int]) -> tuple[Scratch, bool]:
        scratch = Scratch(len(job.reads) + 1, products)
        _, has_epilogue = lowering.block(next(blocks(size)), size, scratch)
        return scratch, has_epilogue

    def cost(size: Mapping[Letter, int]) -> int:
        scratch, has_epilogue = first_block(size)
        return scratch.nbytes + temporaries(size, has_epilogue)

    def left_to_torch(size: Mapping[Letter, int]) -> int:
        return first_block(size)[0].left_to_torch

    size = lowering.largest_block()
    if first_block(size)[0].unpacks:
        size = lowering.panels(size)
    size = fit(size, list(lowering.region), cost, limit, left_to_torch)
    if job.result.is_checked:
        size = fit_cache(size, [x for x in job.target if x in order], job.target, job.result.dtype)
    scratch = Scratch(len(job.reads) + 1, products)
    steps: list[BoundStep] = [clear_flag(len(job.reads))] if job.result.is_checked else []
    temporary_bytes = 0
    for block in blocks(size):
        more, has_epilogue = lowering.block(block, size, scratch)
        steps += more
        temporary_bytes = max(temporary_bytes, temporaries(size, has_epilogue))
    return TorchKernel(tuple(steps), tuple(scratch.elements.values()), max(temporary_bytes, scratch.product_bytes))


class _ContractLowering:
    """A contraction job, and what all its blocks share."""

    def __init__(self, job: ContractJob) -> None:
        self.job = job
        self.region = {x: r for x, r in whole(job.ranges).items() if x in self._used(job)}
        self.pairs = [(factor_of(c.x, job.reads), factor_of(c.y, job.reads)) for c in job.contractions]
        self.result = self._stack(len(job.reads), job.result, None if job.last else 0)
        self.carries = [] if job.carry is None else [self._stack(job.carry, job.reads[job.carry], n) for n in range(len(job.contractions))]
        self.addend = self._addend()
        product_alone = job.epilogue == Acc(0) or self.addend is not None
        into_result = job.last and len(job.contractions) == 1 and job.result.dtype is DType.FP32 and product_alone
        outs = [
            self.result if into_result else None if job.last else self._stack(len(job.reads), job.result, n) for n in range(len(self.pairs))
        ]
        self.roles = [
            assign_roles(x, y, c.letters, out, job.target, self.region)
            for (x, y), c, out in zip(self.pairs, job.contractions, outs, strict=True)
        ]
        self.into_result = into_result and self._result_is_a_matrix()
        """Whether the product is the result: no accumulator, no epilogue."""
        self.epilogue = self._epilogue()

    @staticmethod
    def _used(job: ContractJob) -> set[Letter]:
        named = {i.letter for c in job.contractions for load in (c.x, c.y) for i in load.indices if isinstance(i, Axis)}
        return named | set(job.target)

    def _stack(self, operand: int, view: View, n: int | None) -> StridedTile:
        """A tile over the target's letters; number `n` of a stack of accumulators."""
        indices = tuple(Affine(((x, 1),), 0) for x in self.job.target)
        return strided_tile(view.boxes[0], operand, 0, view.dtype, indices if n is None else (Affine((), n), *indices))

    def _addend(self) -> Load | None:
        """The fp32 load that the epilogue only adds to the accumulator."""
        match self.job.epilogue:
            case Binary("+", Load() as load, Acc(0)) | Binary("+", Acc(0), Load() as load):
                view = next(v for v in self.job.reads if v.name == load.name)
                simple = self.job.carry is None and view.dtype is DType.FP32 and all(isinstance(i, Axis | Num) for i in load.indices)
                return load if simple else None
        return None

    def _result_is_a_matrix(self) -> bool:
        roles = self.roles[0]
        if any(x not in roles.out and x in self.region and self.region[x][1] - self.region[x][0] > 1 for x in self.job.target):
            return False
        one = dict(self.region) | {x: (self.region[x][0], self.region[x][0] + 1) for x in roles.batch}
        return matrix_window(self.result, one, roles.of_out) is not None

    def _epilogue(self) -> InstructionList | None:
        job = self.job
        if not job.last:
            return None
        accs = {n: frozenset(roles.out) for n, roles in enumerate(self.roles)}
        direct = frozenset(job.target) if job.result.dtype is DType.FP32 else None
        return compile_epilogue(job.epilogue, job.target, extents(self.region), job.reads, accs, direct)

    def borders(self) -> Mapping[Letter, set[int]]:
        """Where target letters must be split: tile borders of what is multiplied or read in the epilogue."""
        factors = [load for c in self.job.contractions for load in (c.x, c.y)]
        return tile_borders(self.job.reads, [*factors, *(loads(self.job.epilogue) if self.job.last else ())])

    def block_letters(self) -> Letters:
        """The letters that blocks divide, outermost first."""
        inner = {x for c in self.job.contractions for x in c.letters}
        return tuple(dict.fromkeys(x for x in (*self.roles[0].columns, *self.job.target) if x in self.region and x not in inner))

    def largest_block(self) -> dict[Letter, int]:
        """All of the job, but for batch letters that are taken one value at a time because nothing is packed then."""
        size = extents(self.region)
        for (x, y), roles in zip(self.pairs, self.roles, strict=True):

            def no_copy(one: Region, x: Factor = x, y: Factor = y, roles: Roles = roles) -> bool:
                out = not self.into_result or matrix_window(self.result, one, roles.of_out) is not None
                return out and needs_no_copy(x, one, roles.of_x) and needs_no_copy(y, one, roles.of_y)

            for letter in letters_one_by_one(roles.batch, self.region, no_copy):
                size[letter] = 1
        return size

    def panels(self, size: Mapping[Letter, int]) -> dict[Letter, int]:
        """`size`, or less, so that rows of stored weights that are unpacked at a time stay in a cache, and lie one after the other."""
        out = dict(size)
        for factor in (factor for pair in self.pairs for factor in pair):
            for tile in factor.tiles:
                if isinstance(tile.dtype, Stored):
                    limit_rows(out, tile, tile.dtype)
        return out

    def block(self, region: Region, inner: Mapping[Letter, int], scratch: Scratch) -> tuple[list[BoundStep], bool]:
        """Steps for one block of the target, and whether the epilogue's instructions are among them."""
        job = self.job
        steps: list[BoundStep] = []
        accs = {n: self._accumulator(n, roles, region, scratch) for n, roles in enumerate(self.roles)}
        into_result = self.into_result and accs[0].operand == len(job.reads)
        for n, ((x, y), roles) in enumerate(zip(self.pairs, self.roles, strict=True)):
            out = matrix_window(accs[n], region, roles.of_out)
            assert out is not None
            init, before = self._init(n, region, accs[n], out, into_result)
            steps += before
            steps += multiply(x, y, out, roles, region, inner, scratch, init)
            if not job.last and accs[n].operand != len(job.reads):
                steps.append(_broadcast(accs[n], self._stack(len(job.reads), job.result, n), job.target, region))
        written = self.result.window(job.target, region)
        has_epilogue = self.epilogue is not None and not into_result
        if self.epilogue is not None and has_epilogue:
            steps.append(bind(self.epilogue, region, job.reads, accs, [written]))
        if job.result.is_checked:
            steps.append(raise_where_not_finite(written))
        return steps, has_epilogue

    def _accumulator(self, n: int, roles: Roles, region: Region, scratch: Scratch) -> StridedTile:
        """Where accumulator `n` of a block is computed: in the result where it can be, else in scratch."""
        if self.into_result:
            if matrix_window(self.result, region, roles.of_out) is not None:
                return self.result
        elif not self.job.last:
            tile = self._stack(len(self.job.reads), self.job.result, n)
            if set(roles.out) == set(self.job.target) and matrix_window(tile, region, roles.of_out) is not None:
                return tile
        return scratch.tile(f"acc{n}", roles.out, region)

    def _init(self, n: int, region: Region, tile: StridedTile, out: Window, into_result: bool) -> tuple[Window | None, list[BoundStep]]:
        """What product `n` is added to: a window of it where BLAS can read that, else a copy made in the accumulator first."""
        roles = self.roles[n]
        if self.carries:
            source = self.carries[n]
            region = dict(region) | {x: (region[x][0], region[x][0] + 1) for x in self.job.target if x not in roles.out}
        elif into_result and self.addend is not None:
            source = next(t for t in factor_of(self.addend, self.job.reads).tiles if t.contains(region))
        else:
            return None, []
        everywhere = all(region[x][1] - region[x][0] == 1 or x in source.stride for x in roles.out)
        window = matrix_window(source, region, roles.of_out) if everywhere else None
        return (window, []) if window is not None else (out, [_broadcast(source, tile, roles.out, region)])


def _broadcast(source: StridedTile, target: StridedTile, order: Letters, region: Region) -> BoundStep:
    """Copy, broadcasting over letters the source lacks."""
    read, written = source.window(order, region), target.window(order, region)
    return lambda buffers: partial(written.of(buffers).copy_, read.of(buffers))
