"""Triton source of a ContractJob: a tiled matrix product with the epilogue written into it.

In: a job. Out: a kernel's text. Target letters become rows (in x only), columns (in y only) or batch (in both; also any letter that two
contractions of the job use in different roles): a program computes ROWS x COLS elements of one batch index, for every contraction, then
the epilogue on them.
"""

from __future__ import annotations

from math import prod

from einpage.einsum_front.dtype import DType
from einpage.einsum_front.expr import Axis, Expr, Letter, Load, Num
from einpage.einsum_front.job import Contraction, ContractJob
from einpage.kernels.triton_launch import Launch
from einpage.kernels.triton_text import Frame, Writer, launch
from einpage.kernels.triton_tiles import PRODUCT, cover
from einpage.kernels.triton_values import Val


def letters_of(load: Load) -> set[Letter]:
    return {i.letter for i in load.indices if isinstance(i, Axis)}


def contract_launches(job: ContractJob) -> list[Launch]:
    return [_Kernel(job).launch()]


class _Kernel:
    def __init__(self, job: ContractJob) -> None:
        self.job = job
        self.writer = Writer(job.reads, job.result, job.ranges)
        self.extent = {r.letter: r.extent for r in job.ranges}
        self.batch, self.rows, self.columns = self._roles()
        dtypes = {v.dtype for v in job.reads if any(v.name in (c.x.name, c.y.name) for c in job.contractions)}
        self.tiles = PRODUCT[next(iter(dtypes)) if len(dtypes) == 1 else DType.FP32]
        self.row_count, self.column_count, self.batch_count = (
            prod(self.extent[x] for x in group) for group in (self.rows, self.columns, self.batch)
        )
        inner = max(prod(self.extent[x] for x in c.letters) for c in job.contractions)
        self.size = {
            "ROWS": cover(self.row_count, self.tiles.rows, 16),
            "COLS": cover(self.column_count, self.tiles.columns, 16),
            "INNER": cover(inner, self.tiles.inner, 16),
        }

    def _roles(self) -> tuple[list[Letter], list[Letter], list[Letter]]:
        job = self.job
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

    def launch(self) -> Launch:
        job, w = self.job, self.writer
        row_blocks, column_blocks = -(-self.row_count // self.size["ROWS"]), -(-self.column_count // self.size["COLS"])
        w.names |= {"program", "row", "col", "row_mask", "col_mask", "ROWS", "COLS", "INNER"}
        w.expect([job.epilogue] if job.last else [])
        w.line("program = tl.program_id(0).to(tl.int64)")
        w.line(f"row = program // {column_blocks} % {row_blocks} * ROWS + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.rows)}]")
        w.line(f"col = program % {column_blocks} * COLS + tl.arange(0, COLS)[None, :]  # [{' '.join(self.columns)}]")
        w.line(f"row_mask = row < {self.row_count}")
        w.line(f"col_mask = col < {self.column_count}")
        letters = w.split(f"(program // {row_blocks * column_blocks})", self.batch, "")
        letters |= w.split("row", self.rows, "r") | w.split("col", self.columns, "c")
        frame = Frame(letters, {"r": "row_mask", "c": "col_mask"})
        accs = {n: Val(self._product(n, c, frame), frozenset("rc"), "f") for n, c in enumerate(job.contractions)}
        self._finish(accs, frame)
        programs = row_blocks * column_blocks * self.batch_count
        over = [" ".join(group) or "nothing" for group in (self.rows, self.columns, self.batch)]
        what = f"{job.result.name}: rows over {over[0]}, columns over {over[1]}, batch over {over[2]}"
        return launch("contract_kernel", what, w, self.size, programs, self.tiles)

    def _product(self, n: int, c: Contraction, frame: Frame) -> str:
        """A variable [ROWS, COLS] with the (incoming and) new sum of contraction `n`."""
        w = self.writer
        count = prod(self.extent[x] for x in c.letters)
        start = "tl.zeros((ROWS, COLS), tl.float32)"
        if self.job.carry is not None:
            held = Load(self.job.reads[self.job.carry].name, self._stacked(n))
            start = f"tl.broadcast_to({w.load(held, frame).text}, (ROWS, COLS))"
        acc = w.assign(f"acc{n}", start)
        k = w.fresh("k")
        w.line(f"for {k} in range(0, {count}, INNER):")
        w.indent += 1
        x, y = (c.y, c.x) if self._crossed(c) else (c.x, c.y)
        left = self._factor(x, k, "[None, :]", ("r", "k"), c.letters, count, frame)
        right = self._factor(y, k, "[:, None]", ("k", "c"), c.letters, count, frame)
        same = {self._dtype(x), self._dtype(y)}
        wide = "" if len(same) == 1 else ".to(tl.float32)"
        w.line(f'{acc} = tl.dot({left}{wide}, {right}{wide}, {acc}, input_precision="ieee")')
        w.indent -= 1
        return acc

    def _crossed(self, c: Contraction) -> bool:
        """True where x of this contraction runs along columns (it then stands on the right)."""
        return bool((letters_of(c.x) - set(c.letters)) & set(self.columns)) or bool((letters_of(c.y) - set(c.letters)) & set(self.rows))

    def _dtype(self, load: Load) -> DType:
        return next(v.dtype for v in self.job.reads if v.name == load.name)

    def _stacked(self, n: int) -> tuple[Expr, ...]:
        """Indices of accumulator `n` in a stack."""
        return (Num(n), *(Axis(x) for x in self.job.target))

    def _factor(
        self, load: Load, start: str, shape: str, axes: tuple[str, str], inner: tuple[Letter, ...], count: int, frame: Frame
    ) -> str:
        """One side of the product as a full [ROWS, INNER] or [INNER, COLS] block, 0 beyond the sum's end."""
        w = self.writer
        number = w.assign("inner", f"({start} + tl.arange(0, INNER)){shape}.to(tl.int64)  # [{' '.join(inner)}]")
        mask = w.assign("inner_mask", f"{number} < {count}")
        letters = {x: v for x, v in frame.letters.items() if x not in inner}
        here = Frame({**letters, **w.split(number, inner, "k")}, {**frame.masks, "k": mask})
        held = w.load(load, here)
        name = held.text
        full = "(ROWS, INNER)" if axes[0] == "r" else "(INNER, COLS)"
        if held.axes != frozenset(axes):
            name = w.assign(f"{load.name}_block", f"tl.where(tl.broadcast_to({mask}, {full}), tl.broadcast_to({name}, {full}), 0)")
        return name

    def _finish(self, accs: dict[int, Val], frame: Frame) -> None:
        job, w = self.job, self.writer
        if job.last:
            frame.accs = accs
            w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, frame), frame, "rc")
            return
        for n, acc in accs.items():
            w.store(self._stacked(n), acc, frame, "rc", job.result.boxes[0])
