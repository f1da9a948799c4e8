"""Triton source of a MapJob: a block of rows (the letters no reduction binds) by columns (those it binds).

In: parts with the same target letters. Out: a kernel's text. A reduction is computed before what uses it. A row of up to a block's
columns is held at once; a longer one is read again by each pass: one a reduction, one that writes. Everything a block reads of its own
elements is read before it writes them, so the result may lie where an operand does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

from einpage.einsum_front.expr import Axis, Expr, Letter, Num, Reduce, Reduction, children
from einpage.einsum_front.job import MapJob, Part
from einpage.kernels.triton_launch import Launch
from einpage.kernels.triton_text import Frame, Writer, launch
from einpage.kernels.triton_tiles import POINTWISE, ROW, cover
from einpage.kernels.triton_values import Val

_NEUTRAL = {Reduction.SUM: "0.0", Reduction.MEAN: "0.0", Reduction.MAX: 'float("-inf")', Reduction.MIN: 'float("inf")'}


def map_launches(job: MapJob) -> list[Launch]:
    """One kernel for each set of target letters."""
    groups: dict[tuple[Letter, ...], list[Part]] = {}
    box = job.result.boxes[0]
    for part in job.parts:
        inside = all(not isinstance(i, Num) or box.start[d] <= i.value < box.stop[d] for d, i in enumerate(part.target))
        if inside:
            letters = tuple(i.letter for i in part.target if isinstance(i, Axis))
            key = next((k for k in groups if set(k) == set(letters)), letters)
            groups.setdefault(key, []).append(part)
    return [_Kernel(job, letters, parts).launch() for letters, parts in groups.items()]


def reductions(e: Expr) -> Iterator[Reduce]:
    """Every reduction in `e`, inner ones first."""
    for child in children(e):
        yield from reductions(child)
    if isinstance(e, Reduce):
        yield e


class _Kernel:
    def __init__(self, job: MapJob, letters: Sequence[Letter], parts: Sequence[Part]) -> None:
        self.job, self.parts = job, parts
        self.writer = Writer(job.reads, job.result, job.ranges)
        self.extent = {r.letter: r.extent for r in job.ranges}
        self.reduces = list(dict.fromkeys(r for p in parts for r in reductions(p.expr)))
        bound = {x for r in self.reduces for x in r.letters}
        self.outer = [x for x in letters if x not in bound]
        self.inner = [x for x in letters if x in bound]
        self.frames: dict[tuple[Letter, ...], Frame] = {}
        self.soft: dict[Reduce, tuple[str, str]] = {}
        longest = max([prod(self.extent[x] for x in r.letters) for r in self.reduces] + [prod(self.extent[x] for x in self.inner)])
        self.columns = cover(longest, ROW.columns)
        self.fits = longest <= ROW.columns
        self.tiles = ROW if self.reduces else POINTWISE
        self.row_count = prod(self.extent[x] for x in self.outer)
        self.rows = cover(self.row_count, max(1, POINTWISE.rows // self.columns))

    def launch(self) -> Launch:
        w = self.writer
        w.expect(p.expr for p in self.parts)
        w.line(f"row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.outer)}]")
        w.line(f"row_mask = row < {self.row_count}")
        w.names |= {"row", "row_mask", "ROWS", "COLS"}
        self.base = Frame(w.split("row", self.outer, "r"), {"r": "row_mask"})
        for r in self.reduces:
            self._reduce(r)
        if self.inner:
            self._columns(tuple(self.inner), self._write)
        else:
            self._write(self.base)
        programs = -(-self.row_count // self.rows)
        constants = {"ROWS": self.rows} | ({"COLS": self.columns} if self.reduces else {})
        what = f"{self.job.result.name}: rows over {' '.join(self.outer) or 'nothing'}" + (
            f", columns over {' '.join(self.inner)}" if self.inner else ""
        )
        return launch("map_kernel", what, w, constants, programs, self.tiles)

    def _write(self, frame: Frame) -> None:
        axes = "rc" if "c" in frame.masks else "r"
        values = [self._softened(p.expr, frame) for p in self.parts]
        held = [v if v.kind == "c" else Val(self.writer.assign("y", v.text), v.axes, v.kind) for v in values]
        for part, value in zip(self.parts, held, strict=True):
            self.writer.store(part.target, value, frame, axes)

    def _columns(self, letters: tuple[Letter, ...], body: Callable[[Frame], None]) -> None:
        """Run `body(frame)` for the columns of `letters`: once where they fit a block, else in a loop."""
        w = self.writer
        count = prod(self.extent[x] for x in letters)
        if self.fits:
            if letters not in self.frames:
                self.frames[letters] = self._frame("tl.arange(0, COLS)[None, :]", letters, count)
            body(self.frames[letters])
            return
        start = w.fresh("start")
        w.line(f"for {start} in range(0, {count}, COLS):")
        w.indent += 1
        body(self._frame(f"{start} + tl.arange(0, COLS)[None, :]", letters, count))
        w.indent -= 1

    def _frame(self, numbers: str, letters: tuple[Letter, ...], count: int) -> Frame:
        w = self.writer
        column = w.assign("column", f"({numbers}).to(tl.int64)  # [{' '.join(letters)}]")
        mask = w.assign("column_mask", f"{column} < {count}")
        return Frame({**self.base.letters, **w.split(column, letters, "c")}, {"r": "row_mask", "c": mask})

    def _softened(self, e: Expr, frame: Frame) -> Val:
        """`e` in `frame`, its softmaxes written with their row's maximum and sum."""
        for r in reductions(e):
            if r.op is Reduction.SOFTMAX and (r, False) not in frame.memo:
                most, total = self.soft[r]
                body = self.writer.value(r.body, frame)
                for letter in r.letters:
                    self.writer._letter(letter, frame)
                text = f"tl.exp({body.text} - {most}) / {total}"
                frame.memo[(r, False)] = Val(self.writer.assign("soft", text), body.axes | {"r"}, "f")
        return self.writer.value(e, frame)

    def _reduce(self, r: Reduce) -> None:
        """Compute `r` for every row, before what uses it."""
        if r.op is Reduction.SOFTMAX:
            most = self._fold(Reduction.MAX, r, None)
            most = self.writer.assign("row_max", f'tl.where({most} == float("-inf"), 0.0, {most})')
            total = self._fold(Reduction.SUM, r, most)
            self.soft[r] = (most, self.writer.assign("row_sum", f"tl.where({total} == 0.0, 1.0, {total})"))
        else:
            name = self._fold(r.op, r, None)
            if r.op is Reduction.MEAN:
                name = self.writer.assign("mean", f"{name} / {float(prod(self.extent[x] for x in r.letters))}")
            self.writer.fixed[r] = Val(name, frozenset("r"), "f")

    def _fold(self, op: Reduction, r: Reduce, most: str | None) -> str:
        """A variable [ROWS, 1] with the body of `r` (or its exponential, once the maximum is known) folded over the row."""
        w = self.writer
        hint = {Reduction.SUM: "total", Reduction.MEAN: "total", Reduction.MAX: "largest", Reduction.MIN: "least"}[op]
        name = w.fresh(hint)
        if not self.fits:
            w.line(f"{name} = tl.full((ROWS, 1), {_NEUTRAL[op]}, tl.float32)")

        def body(frame: Frame) -> None:
            value = self._softened(r.body, frame)
            text = f"tl.exp({value.text} - {most})" if most else value.text
            kept = f"tl.where(row_mask & {frame.masks['c']}, {text}, {_NEUTRAL[op]})"
            if value.kind == "b":
                kept = f"tl.where(row_mask & {frame.masks['c']} & {value.text}, 1.0, 0.0)"
            part = f"tl.{_FOLD[op]}({kept}, axis=1, keep_dims=True)"
            w.line(f"{name} = {part if self.fits else _JOIN[op].format(name, part)}")

        self._columns(r.letters, body)
        return name


_FOLD = {Reduction.SUM: "sum", Reduction.MEAN: "sum", Reduction.MAX: "max", Reduction.MIN: "min"}
_JOIN = {Reduction.SUM: "{} + {}", Reduction.MEAN: "{} + {}", Reduction.MAX: "tl.maximum({}, {})", Reduction.MIN: "tl.minimum({}, {})"}
