"""The plain-torch definition of a ContractJob: matrix products into fp32 accumulators, then the epilogue, block by block.

In: a job. Out: a program. Where the epilogue is the accumulator itself, or an addition to it, and the result is fp32, the product goes
straight into the result; otherwise accumulators of a block lie in scratch and a tape carries them into the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Expr, Letter, Load, Num, loads
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import ContractJob, View
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_epilogue
from einpage.kernels.instructions.instruction_list import Tape
from einpage.kernels.instructions.torch_kernel import Program
from einpage.kernels.layout.affine import Affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, Region, extents, fit, regions, whole
from einpage.kernels.layout.window import Memory, Op, Tile, Window, cuts, dims_of, tile_of, tiles
from einpage.kernels.on_torch.matrix import Factor, Groups, Scratch, fold, group, lies_well, multiply, separate_batch


def factor(load: Load, reads: tuple[View, ...]) -> Factor:
    """A load of a contraction as one side of a product."""
    operand = next(i for i, v in enumerate(reads) if v.name == load.name)
    assert all(isinstance(i, Axis | Num) for i in load.indices), "a contraction's loads are indexed by letters and numbers"
    dims = dims_of(load)
    assert dims is not None
    return Factor(
        tiles(reads[operand], operand, dims), tuple(dict.fromkeys(i.letter for i in load.indices if isinstance(i, Axis))), load.name
    )


class _Planner:
    """Everything about a contraction job that its blocks share."""

    def __init__(self, job: ContractJob) -> None:
        self.job = job
        self.region = {x: r for x, r in whole(job.ranges).items() if x in self._used(job)}
        self.pairs = [(factor(c.x, job.reads), factor(c.y, job.reads)) for c in job.contractions]
        self.result = self._stack(len(job.reads), job.result, None if job.last else 0)
        self.carries = [] if job.carry is None else [self._stack(job.carry, job.reads[job.carry], n) for n in range(len(job.contractions))]
        self.added = self._added()
        self.straight = (
            job.last
            and len(job.contractions) == 1
            and job.result.dtype is DType.FP32
            and (job.epilogue == Acc(0) or self.added is not None)
        )
        outs = [
            self.result if self.straight else None if job.last else self._stack(len(job.reads), job.result, n)
            for n in range(len(self.pairs))
        ]
        self.groups = [
            group(x, y, c.letters, out, job.target, self.region) for (x, y), c, out in zip(self.pairs, job.contractions, outs, strict=True)
        ]
        self.straight = self.straight and self._folds()
        self.tape = self._tape()

    @staticmethod
    def _used(job: ContractJob) -> set[Letter]:
        named = {i.letter for c in job.contractions for load in (c.x, c.y) for i in load.indices if isinstance(i, Axis)}
        return named | set(job.target)

    def _stack(self, operand: int, view: View, n: int | None) -> Tile:
        """A tile over the target's letters; number `n` of a stack of accumulators."""
        box = view.boxes[0]
        dims = tuple(Affine(((x, 1),), 0) for x in self.job.target)
        return tile_of(box, operand, 0, view.dtype, dims if n is None else (Affine((), n), *dims))

    def _added(self) -> Load | None:
        """The fp32 load that the epilogue only adds to the accumulator."""
        match self.job.epilogue:
            case Binary("+", Load() as load, Acc(0)) | Binary("+", Acc(0), Load() as load):
                view = next(v for v in self.job.reads if v.name == load.name)
                simple = self.job.carry is None and view.dtype is DType.FP32 and all(isinstance(i, Axis | Num) for i in load.indices)
                return load if simple else None
        return None

    def _folds(self) -> bool:
        g = self.groups[0]
        if set(g.out) != {x for x in self.job.target if x in self.region and self.region[x][1] - self.region[x][0] > 1} | set(g.out):
            return False
        one = dict(self.region) | {x: (self.region[x][0], self.region[x][0] + 1) for x in g.batch}
        return fold(self.result, one, (g.batch, g.rows, g.columns)) is not None

    def _tape(self) -> Tape | None:
        job = self.job
        if not job.last:
            return None
        accs = {n: frozenset(g.out) for n, g in enumerate(self.groups)}
        direct = frozenset(job.target) if job.result.dtype is DType.FP32 else None
        return compile_epilogue(job.epilogue, job.target, extents(self.region), job.reads, accs, direct)

    def borders(self) -> Mapping[Letter, set[int]]:
        """Where target letters must be cut: tile borders of what is multiplied or read in the epilogue."""
        out: dict[Letter, set[int]] = defaultdict(set)
        pairs: list[Load] = [load for c in self.job.contractions for load in (c.x, c.y)]
        for load in (*pairs, *_loads(self.job.epilogue, self.job.last)):
            for letter, places in cuts(next(v for v in self.job.reads if v.name == load.name), load).items():
                out[letter] |= places
        return out

    def block(self, region: Region, inner: Mapping[Letter, int], scratch: Scratch) -> tuple[list[Op], bool]:
        """Steps for one block of the target, and whether the epilogue's tape is among them."""
        job = self.job
        ops: list[Op] = []
        accs = {n: self._home(n, g, region, scratch) for n, g in enumerate(self.groups)}
        straight = self.straight and accs[0].operand == len(job.reads)
        for n, ((x, y), g) in enumerate(zip(self.pairs, self.groups, strict=True)):
            out = fold(accs[n], region, (g.batch, g.rows, g.columns))
            assert out is not None
            init, before = self._init(n, region, accs[n], out, straight)
            ops += before
            ops += multiply(x, y, out, g, region, inner, scratch, init)
            if not job.last and accs[n].operand != len(job.reads):
                ops.append(_spread(accs[n], self._stack(len(job.reads), job.result, n), job.target, region))
        if self.tape is None or straight:
            return ops, False
        return [*ops, bind(self.tape, region, job.reads, accs, [self.result.window(job.target, region)])], True

    def _home(self, n: int, g: Groups, region: Region, scratch: Scratch) -> Tile:
        """Where accumulator `n` of a block is computed: in the result where it can be, else in scratch."""
        roles = (g.batch, g.rows, g.columns)
        if self.straight:
            if fold(self.result, region, roles) is not None:
                return self.result
        elif not self.job.last:
            tile = self._stack(len(self.job.reads), self.job.result, n)
            if set(g.out) == set(self.job.target) and fold(tile, region, roles) is not None:
                return tile
        return scratch.tile(f"acc{n}", g.out, region)

    def _init(self, n: int, region: Region, tile: Tile, out: Window, straight: bool) -> tuple[Window | None, list[Op]]:
        """What product `n` is added to: a window of it where BLAS can read that, else a copy made in the accumulator first."""
        g = self.groups[n]
        if self.carries:
            source = self.carries[n]
            region = dict(region) | {x: (region[x][0], region[x][0] + 1) for x in self.job.target if x not in g.out}
        elif straight and self.added is not None:
            source = next(t for t in factor(self.added, self.job.reads).tiles if t.contains(region))
        else:
            return None, []
        window = _plain(source, region, (g.batch, g.rows, g.columns))
        return (window, []) if window is not None else (out, [_spread(source, tile, g.out, region)])


def _plain(tile: Tile, region: Region, roles: tuple[tuple[Letter, ...], ...]) -> Window | None:
    """As `gemm.fold`, for a window that is only added: any strides will do once folded, and every letter must be there."""
    if any(region[x][1] - region[x][0] > 1 and x not in tile.stride for role in roles for x in role):
        return None
    batch, rows, columns = roles
    return fold(tile, region, (batch, rows, columns))


def _spread(source: Tile, target: Tile, order: tuple[Letter, ...], region: Region) -> Op:
    """Copy, broadcasting over letters the source lacks."""
    given, taken = source.window(order, region), target.window(order, region)

    def spread(memory: Memory) -> None:
        taken.of(memory).copy_(given.of(memory))

    return spread


def _loads(e: Expr, wanted: bool) -> tuple[Load, ...]:
    return loads(e) if wanted else ()


def contract_program(job: ContractJob, limit: int = SCRATCH_BYTES) -> Program:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a row does."""
    plan = _Planner(job)
    inner_letters = {x for c in job.contractions for x in c.letters}
    free = [x for x in plan.region if x not in inner_letters]
    size = extents(plan.region)
    for (x, y), g in zip(plan.pairs, plan.groups, strict=True):

        def folds(one: Region, x: Factor = x, y: Factor = y, g: Groups = g) -> bool:
            out = not plan.straight or fold(plan.result, one, (g.batch, g.rows, g.columns)) is not None
            return out and lies_well(x, one, (g.batch, g.rows, g.inner)) and lies_well(y, one, (g.batch, g.inner, g.columns))

        for letter in g.batch[: separate_batch(g.batch, plan.region, folds)]:
            size[letter] = 1
    split = frozenset(i for i, view in enumerate(job.reads) if len(view.boxes) > 1)

    borders = plan.borders()
    order = tuple(dict.fromkeys(x for x in (*plan.groups[0].columns, *job.target) if x in free))

    def blocks(e: Mapping[Letter, int]) -> Iterator[dict[Letter, tuple[int, int]]]:
        return regions(plan.region, order, e, borders)

    def cost(e: Mapping[Letter, int]) -> int:
        scratch = Scratch(len(job.reads) + 1)
        _, taped = plan.block(next(blocks(e)), e, scratch)
        return scratch.nbytes + (plan.tape.peak_bytes(e, split) if plan.tape and taped else 0)

    size = fit(size, list(plan.region), cost, limit)
    scratch = Scratch(len(job.reads) + 1)
    ops: list[Op] = []
    temporary = 0
    for block in blocks(size):
        more, taped = plan.block(block, size, scratch)
        ops += more
        if taped and plan.tape is not None:
            temporary = plan.tape.peak_bytes(size, split)
    return Program(tuple(ops), tuple(scratch.elements.values()), temporary)
