"""Triton source of a ContractJob: a tiled matrix product with the epilogue written into it.

In: a job. Out: its one launch. Target letters become rows (in x only), columns (in y only) or batch (in both; also any letter that two
contractions of the job use in different roles): a program computes ROWS x COLS elements of one batch index, for every contraction, then
the epilogue on them. Programs go through bands of GROUP blocks of rows column by column, so that what they read stays in the cache (as in
Triton's matrix multiplication tutorial). A persistent program takes one of these blocks after the other; its two loops are one to the
compiler, which loads the next block's factors while the engine stores the halves of the last. Its plain-torch twin is
on_torch/contract.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, Num
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Contraction, ContractJob
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.on_triton.product import BlockAxis, ProductWriter
from einpage.kernels.on_triton.product_loops import grouped, inner_size, loops
from einpage.kernels.tiles.product_tiles import ProductShape
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import Tiles, cover
from einpage.kernels.writer.descriptor import descriptor_of, result_descriptor
from einpage.kernels.writer.launch import STORES, Descriptor, Launch
from einpage.kernels.writer.values import Val
from einpage.kernels.writer.writer import Scope, Writer


def letters_of(load: Load) -> set[Letter]:
    """The letters that index a load by themselves."""
    return {i.letter for i in load.indices if isinstance(i, Axis)}


def contract_launches(job: ContractJob, target: Target) -> list[Launch]:
    """The kernel of `job` on `target`. Raises Unsupported where it cannot be written, as for a reduction within an epilogue."""
    return [_ContractGenerator(job, target).launch()]


def product_of(job: ContractJob) -> ProductShape:
    """What the choice of a tile depends on."""
    extent = {r.letter: r.extent for r in job.ranges}
    batch, rows, columns = (prod(extent[x] for x in group) for group in _roles(job))
    dtypes = {v.dtype for v in job.reads if any(v.name in (c.x.name, c.y.name) for c in job.contractions)}
    dtype = next(iter(dtypes)) if len(dtypes) == 1 else DType.FP32
    inner = max(prod(extent[x] for x in c.letters) for c in job.contractions)
    return ProductShape(dtype, batch, rows, columns, inner, len(job.contractions))


def _roles(job: ContractJob) -> tuple[list[Letter], list[Letter], list[Letter]]:
    """The target's letters as batch, rows and columns."""
    summed = set(job.contractions[0].letters)
    x, y = letters_of(job.contractions[0].x) - summed, letters_of(job.contractions[0].y) - summed
    rows, batch = x - y, x & y
    columns = set(job.target) - rows - batch
    for c in job.contractions[1:]:
        x, y = letters_of(c.x) - set(c.letters), letters_of(c.y) - set(c.letters)
        straight = (x & columns) | (y & rows)
        crossed = (x & rows) | (y & columns)
        batch |= min(straight, crossed, key=len)
    target = job.target
    return [t for t in target if t in batch], [t for t in target if t in rows - batch], [t for t in target if t in columns - batch]


class _ContractGenerator:
    """Writes the kernel of one contraction job."""

    def __init__(self, job: ContractJob, target: Target) -> None:
        self.job, self.target = job, target
        self.writer = w = Writer(job.reads, job.result, job.ranges)
        self.batch, self.rows, self.columns = _roles(job)
        self.product = product_of(job)
        self.loops = [loop for terms in grouped(job.contractions, [self._crossed(c) for c in job.contractions]) for loop in loops(w, terms)]
        self.tiles = next(tiles for tiles in target.products(self.product) if self._can_be(tiles))
        self.size = {
            "ROWS": cover(self.product.rows, self.tiles.rows, 16),
            "COLS": cover(self.product.columns, self.tiles.columns, 16),
            "INNER": inner_size(self.loops, self.tiles.inner),
        }
        if self.tiles.persistent:
            self.size["HALF"] = self.size["COLS"] // STORES
        self.blocks = -(-self.product.rows // self.size["ROWS"]) * -(-self.product.columns // self.size["COLS"]) * self.product.batch

    def _can_be(self, tiles: Tiles) -> bool:
        """Whether the job can be written so. Warps are not specialised over pointers (that does not compile), nor where sums are carried to
        the next job (that takes more shared memory than there is). A persistent program has two loops, of which the compiler makes one, and
        a result that the copy engine can write."""
        if not tiles.descriptors:
            return True
        if (tiles.specialised or tiles.persistent) and (self.job.carry is not None or not self.job.last):
            return False
        if tiles.persistent and self.job.result.is_checked:  # the copy engine writes no flag
            return False
        if tiles.persistent and (
            len(self.loops) != 1 or prod(self.loops[0].extents) <= tiles.inner or self._result_descriptor(STORES * 16, STORES * 16) is None
        ):
            return False
        return self._copy_engine_can_read()

    def _result_descriptor(self, rows: int, columns: int) -> Descriptor | None:
        """The result as the copy engine writes it, blocks of so many rows and columns in parts."""
        return result_descriptor(self.writer, [Axis(x) for x in self.job.target], self.rows, self.columns, (rows, columns // STORES))

    def _copy_engine_can_read(self) -> bool:
        """Whether every factor is a matrix that the copy engine can read."""
        readable = []
        for loop in self.loops:
            with self.writer.over(loop.ranges):
                sides = [(load, letters) for t in loop.terms for load, letters in ((t.left, self.rows), (t.right, self.columns))]
                readable += [
                    loop.hoisted and descriptor_of(self.writer, load, letters, loop.runs, 16, 16) is not None for load, letters in sides
                ]
        return all(readable)

    def launch(self) -> Launch:
        job, w = self.job, self.writer
        w.names |= {
            "program",
            "start",
            "stored",
            "block",
            "band",
            "height",
            "row",
            "col",
            "row_first",
            "col_first",
            "row_mask",
            "col_mask",
            *self.size,
        }
        w.expect([job.epilogue] if job.last else [])
        programs = self.blocks
        if self.tiles.persistent:
            programs = min(programs, self.target.multiprocessors)
            self._persistent(programs)
        else:
            w.line(f"program = {w.program()}")
            scope, axes = self._block()
            accs = self._sums(scope, axes)
            self._finish({n: Val(acc, frozenset("rc"), ValueKind.FLOAT) for n, acc in accs.items()}, scope)
        over = [" ".join(group) or "nothing" for group in (self.rows, self.columns, self.batch)]
        what = f"{job.result.name}: rows over {over[0]}, columns over {over[1]}, batch over {over[2]}"
        return w.launch("contract_kernel", what, self.size, programs, self.tiles)

    def _sums(self, scope: Scope, axes: Mapping[str, BlockAxis]) -> dict[int, str]:
        """The variable that holds each contraction's sum over one block."""
        products = ProductWriter(self.writer, scope, axes, self.loops, self.size, self.tiles, self.target.fp32_products)
        accs = {n: self._initial(n, scope) for n in range(self.product.sums)}
        for loop in self.loops:
            products.write(loop, accs)
        return accs

    def _persistent(self, programs: int) -> None:
        """The loop over blocks. Which block is stored is counted apart: else the compiler would keep what it computed for the loads until
        the end of the sum, and the loads of the next block would wait for it."""
        w = self.writer
        first = "tl.program_id(0)"
        w.line(f"stored = {w.program()} - {programs}")
        with w.loop("start", f"tl.range({first}, {self.blocks}, {programs}, flatten=True)"):
            w.line(f"program = {'tl.full((), start, tl.int64)' if w.wide else 'start'}")
            accs = self._sums(*self._block())
            w.line(f"stored += {programs}")
            w.line("program = stored")
            scope, axes = self._block()
            self._store_in_halves(accs, scope, axes["c"])

    def _store_in_halves(self, accs: Mapping[int, str], scope: Scope, columns: BlockAxis) -> None:
        """The epilogue on the left columns of a block, then on the right ones; the engine writes the former meanwhile."""
        w, job = self.writer, self.job
        found = self._result_descriptor(self.size["ROWS"], self.size["COLS"])
        assert found is not None, "a persistent tile was chosen for a result that the copy engine cannot write"
        out = w.descriptor(found, job.result.name)
        halves = {n: (w.fresh(f"{acc}_left"), w.fresh(f"{acc}_right")) for n, acc in accs.items()}
        for n, acc in accs.items():
            w.line(f"{halves[n][0]}, {halves[n][1]} = tl.split(tl.permute(tl.reshape({acc}, (ROWS, 2, HALF)), (0, 2, 1)))")
        for side in range(STORES):
            first = w.assign("half_first", f"col_first{' + HALF' if side else ''}")
            col = w.assign("half", f"{first} + tl.arange(0, HALF)[None, :]  # [{' '.join(columns.letters)}]")
            masks = {axis: mask for axis, mask in scope.masks.items() if axis != "c"}
            if columns.ragged:
                masks["h"] = w.assign("half_mask", f"{col} < {columns.count}")
            letters = {x: v for x, v in scope.letters.items() if x not in columns.letters} | w.split(col, columns.letters, "h")
            half = Scope(letters, masks)
            half.accs = {n: Val(names[side], frozenset("rh"), ValueKind.FLOAT) for n, names in halves.items()}
            narrow = ".to(tl.int32)" if w.wide else ""
            w.store_block(out, (f"row_first{narrow}", f"{first}{narrow}"), w.value(job.epilogue, half), "rh")

    def _block(self) -> tuple[Scope, dict[str, BlockAxis]]:
        """Which rows and columns `program` computes, and the letters of each."""
        w, p = self.writer, self.product
        row_blocks, column_blocks = -(-p.rows // self.size["ROWS"]), -(-p.columns // self.size["COLS"])
        w.line(f"block = program % {row_blocks * column_blocks}")
        group = min(self.tiles.group, row_blocks)
        w.line(f"band = block // {group * column_blocks} * {group}")
        height = str(group)
        if row_blocks % group:
            w.line(f"height = tl.minimum({row_blocks} - band, {group})")
            height = "height"
        w.line(f"row_first = (band + block % {group * column_blocks} % {height}) * ROWS")
        w.line(f"col_first = block % {group * column_blocks} // {height} * COLS")
        w.line(f"row = row_first + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.rows)}]")
        w.line(f"col = col_first + tl.arange(0, COLS)[None, :]  # [{' '.join(self.columns)}]")
        letters = w.split(f"(program // {row_blocks * column_blocks})", self.batch, "")
        axes, masks = {}, {}
        for axis, name, count, group_letters in (("r", "row", p.rows, self.rows), ("c", "col", p.columns, self.columns)):
            ragged = count % self.size[_SIZE[axis]] > 0
            if ragged:
                masks[axis] = f"{name}_mask"
                w.line(f"{name}_mask = {name} < {count}")
            axes[axis] = BlockAxis(name, tuple(group_letters), count, ragged)
            letters |= w.split(name, group_letters, axis)
        return Scope(letters, masks), axes

    def _initial(self, n: int, scope: Scope) -> str:
        """The incoming sum of contraction `n`, or 0."""
        w = self.writer
        start = "tl.zeros((ROWS, COLS), tl.float32)"
        if self.job.carry is not None:
            carried = Load(self.job.reads[self.job.carry].name, self._stack(n))
            start = f"tl.broadcast_to({w.load(carried, scope).text}, (ROWS, COLS))"
        return w.assign(f"acc{n}", start)

    def _crossed(self, c: Contraction) -> bool:
        """True where x of this contraction runs along columns (it then stands on the right)."""
        return bool((letters_of(c.x) - set(c.letters)) & set(self.columns)) or bool((letters_of(c.y) - set(c.letters)) & set(self.rows))

    def _stack(self, n: int) -> tuple[Expr, ...]:
        """Indices of accumulator `n` in a stack."""
        return (Num(n), *(Axis(x) for x in self.job.target))

    def _finish(self, accs: dict[int, Val], scope: Scope) -> None:
        job, w = self.job, self.writer
        if job.last:
            scope.accs = accs
            w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, scope), scope, "rc")
            return
        for n, acc in accs.items():
            w.store(self._stack(n), acc, scope, "rc")


_SIZE = {"r": "ROWS", "c": "COLS"}
