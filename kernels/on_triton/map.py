"""Triton source of a MapJob: a block of rows (the letters no reduction binds) by columns (those it binds).

In: a job. Out: a launch for each set of target letters. A reduction is computed before what uses it. A row of up to a block's columns is
loaded once; a longer one is read again by each pass: one a reduction, one that writes (the softmax's maximum and sum in a single pass:
Milakov and Gimelshein, 2018). Everything a block reads of its own elements is read before it writes them, so the result may overwrite an
operand in place. Its plain-torch twin is on_torch/map.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Letter, Num, Reduce, Reduction, free_letters
from einpage.einsum_front.graph.job import Job, MapJob, OverflowJob, Part
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.on_triton.map_shape import map_shape, memory_order
from einpage.kernels.tiles.tiles import Tiles
from einpage.kernels.writer.launch import Launch
from einpage.kernels.writer.values import Val, arithmetic
from einpage.kernels.writer.writer import SHAPE, Scope, Writer

ONE = Tiles(1, 1, 0, 1, 1)
"""Of a kernel of one program that handles single numbers."""
NEUTRAL = {Reduction.SUM: "0.0", Reduction.MEAN: "0.0", Reduction.MAX: 'float("-inf")', Reduction.MIN: 'float("inf")'}
NAME = {Reduction.SUM: "total", Reduction.MEAN: "total", Reduction.MAX: "largest", Reduction.MIN: "least"}
JOIN = {Reduction.SUM: "{} + {}", Reduction.MEAN: "{} + {}", Reduction.MAX: "tl.maximum({}, {})", Reduction.MIN: "tl.minimum({}, {})"}


def map_launches(job: MapJob) -> list[Launch]:
    """One kernel for each set of target letters. Raises Unsupported where one cannot be written."""
    groups: dict[tuple[Letter, ...], list[Part]] = {}
    box = job.result.boxes[0]
    for part in job.parts:
        inside = all(not isinstance(i, Num) or box.start[d] <= i.value < box.end[d] for d, i in enumerate(part.target))
        if inside:
            letters = tuple(i.letter for i in part.target if isinstance(i, Axis))
            key = next((k for k in groups if set(k) == set(letters)), letters)
            groups.setdefault(key, []).append(part)
    return [_MapGenerator(job, letters, parts).launch() for letters, parts in groups.items()]


def overflow_launches(job: OverflowJob) -> list[Launch]:
    """One program that looks at the flags behind tiles."""
    w = Writer(job.reads, job.result, job.ranges)
    flags = [w.flag_address(w.pointer(0, j), job.reads[0], j) for j in range(len(job.reads[0].boxes))]
    flags += [w.pointer(i, 0) for i in range(1, len(job.reads))]
    w.base |= dict.fromkeys(w.pointers, 0)
    w.line("flag = 0.0")
    for address in flags:
        w.line(f"flag = tl.maximum(flag, tl.load({address}))")
    w.line(f"tl.store({w.out}, flag)")
    return [w.launch("overflow_kernel", f"whether {job.reads[0].name} is not finite", {}, 1, ONE)]


def clear_flag_launch(job: Job) -> Launch:
    """One program that writes 0 to the flag behind the result, before the kernel that may write 1."""
    w = Writer((), job.result, ())
    w.line(f"tl.store({w.flag_address(w.out, job.result)}, 0.0)")
    return w.launch("flag_kernel", f"{job.result.name}: its flag", {}, 1, ONE)


class _MapGenerator:
    """Writes one kernel of a map job."""

    def __init__(self, job: MapJob, letters: Sequence[Letter], parts: Sequence[Part]) -> None:
        self.job, self.parts = job, parts
        self.writer = Writer(job.reads, job.result, job.ranges, job.others)
        self.writer.reduce = self._reduction
        self.extent = {r.letter: r.extent for r in job.ranges}
        self.shape = map_shape(job, letters, parts)
        self.scopes: dict[tuple[Letter, ...], Scope] = {}
        self.soft: dict[Reduce, tuple[str, str]] = {}
        """Each row's maximum and sum of a softmax."""

    def launch(self) -> Launch:
        w, shape = self.writer, self.shape
        row_count = prod(self.extent[x] for x in shape.rows)
        blocks = -(-row_count // shape.tiles.rows)
        across = -(-prod(self.extent[x] for x in shape.columns) // shape.tiles.columns) if not shape.by_row else 1
        w.expect(p.expr for p in self.parts)
        w.names |= {"program", "row", "row_mask", "ROWS", "COLS"}
        w.line(f"program = {w.program()}")
        block = "program" if across == 1 else f"program // {across}"
        w.line(f"row = {block} * ROWS + tl.arange(0, ROWS)[:, None]  # [{' '.join(shape.rows)}]")
        w.line(f"row_mask = row < {row_count}")
        self.base = Scope(w.split("row", shape.rows, "r"), {"r": "row_mask"})
        for r in shape.by_row:
            self._reduce(r)
        if shape.by_row and shape.columns:
            self._columns(shape.columns, self._write)
        elif shape.columns:
            self._write(self._scope(f"program % {across} * COLS + {w.lanes('COLS', '[None, :]')}", shape.columns))
        else:
            self._write(self.base)
        constants = {"ROWS": shape.tiles.rows} | ({"COLS": shape.tiles.columns} if shape.by_row or shape.columns else {})
        what = f"{self.job.result.name}: rows over {' '.join(shape.rows) or 'nothing'}" + (
            f", columns over {' '.join(shape.columns)}" if shape.columns else ""
        )
        return w.launch("map_kernel", what, constants, blocks * across, shape.tiles)

    def _write(self, scope: Scope) -> None:
        axes = "rc" if "c" in scope.masks else "r"
        values = [self.writer.value(p.expr, scope) for p in self.parts]
        values = [v if v.is_number else Val(self.writer.assign("y", v.text), v.axes, v.kind) for v in values]
        for part, value in zip(self.parts, values, strict=True):
            self.writer.store(part.target, value, scope, axes, part.result)

    def _columns(self, letters: tuple[Letter, ...], body: Callable[[Scope], None]) -> None:
        """Run `body(scope)` for the columns of `letters`: once where they fit a block, else in a loop over them."""
        w = self.writer
        letters = memory_order(letters, self.job, self.parts)
        if self.shape.whole_rows:
            if letters not in self.scopes:
                self.scopes[letters] = self._scope(w.lanes("COLS", "[None, :]"), letters)
            body(self.scopes[letters])
            return
        start = w.fresh("start")
        with w.loop(start, f"range(0, {prod(self.extent[x] for x in letters)}, COLS)"):
            body(self._scope(f"{start} + {w.lanes('COLS', '[None, :]')}", letters))

    def _scope(self, numbers: str, letters: tuple[Letter, ...]) -> Scope:
        w = self.writer
        column = w.assign("column", f"{numbers}  # [{' '.join(letters)}]")
        mask = w.assign("column_mask", f"{column} < {prod(self.extent[x] for x in letters)}")
        return Scope({**self.base.letters, **w.split(column, letters, "c")}, {"r": "row_mask", "c": mask})

    def _reduction(self, r: Reduce, scope: Scope) -> Val:
        """`r` where it is read: a softmax of rows by its row's maximum and sum, any other in a loop of its own."""
        if r not in self.soft or (free_letters(r.body) - set(r.letters)) & scope.rebound:
            return inline(self.writer, r, scope)
        most, total = self.soft[r]
        body = arithmetic(self.writer.value(r.body, scope), False)
        return Val(self.writer.assign("soft", f"tl.exp({body.text} - {most}) / {total}"), body.axes | {"r"}, ValueKind.FLOAT)

    def _reduce(self, r: Reduce) -> None:
        """Compute `r` for every row, before what uses it."""
        w = self.writer
        if r.op is Reduction.SOFTMAX:
            self.soft[r] = self._softmax(r) if self.shape.whole_rows else self._long_softmax(r)
            return
        name = self._fold(r.op, r)
        if r.op is Reduction.MEAN:
            name = w.assign("mean", f"{name} / {float(prod(self.extent[x] for x in r.letters))}")
        w.fixed[r] = Val(name, frozenset("r"), ValueKind.FLOAT)

    def _fold(self, op: Reduction, r: Reduce, most: str | None = None) -> str:
        """A variable [ROWS, 1] with the body of `r` (or its exponential, once the maximum is known) folded over the row.

        Over a long row lanes are folded first, block upon block, and only then each other.
        """
        w = self.writer
        name = w.fresh(NAME[op])
        if not self.shape.whole_rows:
            w.line(f"{name} = tl.full((ROWS, COLS), {NEUTRAL[op]}, tl.float32)")

        def body(scope: Scope) -> None:
            value = arithmetic(w.value(r.body, scope), False).text
            text = f"tl.exp({value} - {most})" if most else value
            masked = f"tl.where({scope.masks['c']}, {text}, {NEUTRAL[op]})"
            w.line(f"{name} = {_across(op, masked) if self.shape.whole_rows else JOIN[op].format(name, masked)}")

        self._columns(r.letters, body)
        return name if self.shape.whole_rows else w.assign(name, _across(op, name))

    def _softmax(self, r: Reduce) -> tuple[str, str]:
        w = self.writer
        most = self._fold(Reduction.MAX, r)
        most = w.assign("row_max", f'tl.where({most} == float("-inf"), 0.0, {most})')
        total = self._fold(Reduction.SUM, r, most)
        return most, w.assign("row_sum", f"tl.where({total} == 0.0, 1.0, {total})")

    def _long_softmax(self, r: Reduce) -> tuple[str, str]:
        """The maximum and the sum in one pass (online softmax): each lane accumulates both."""
        w = self.writer
        most = w.assign("most", 'tl.full((ROWS, COLS), float("-inf"), tl.float32)')
        total = w.assign("total", "tl.zeros((ROWS, COLS), tl.float32)")

        def body(scope: Scope) -> None:
            value = arithmetic(w.value(r.body, scope), False).text
            score = w.assign("score", f'tl.where({scope.masks["c"]}, {value}, float("-inf"))')
            now = w.assign("most_now", f"tl.maximum({most}, {score})")
            safe = w.assign("safe", f'tl.where({now} == float("-inf"), 0.0, {now})')
            w.line(f"{total} = {total} * tl.exp({most} - {safe}) + tl.exp({score} - {safe})")
            w.line(f"{most} = {now}")

        self._columns(r.letters, body)
        row_max = w.assign("row_max", f"tl.max({most}, axis=1, keep_dims=True)")
        row_max = w.assign("row_max", f'tl.where({row_max} == float("-inf"), 0.0, {row_max})')
        row_sum = w.assign("row_sum", f"tl.sum({total} * tl.exp({most} - {row_max}), axis=1, keep_dims=True)")
        return row_max, w.assign("row_sum", f"tl.where({row_sum} == 0.0, 1.0, {row_sum})")


def _across(op: Reduction, text: str) -> str:
    """[ROWS, COLS] folded to [ROWS, 1]."""
    fold = {Reduction.SUM: "sum", Reduction.MEAN: "sum", Reduction.MAX: "max", Reduction.MIN: "min"}[op]
    return f"tl.{fold}({text}, axis=1, keep_dims=True)"


def inline(w: Writer, r: Reduce, scope: Scope) -> Val:
    """`r`, which depends on letters of an enclosing reduction, for every lane of `scope`: a loop over its letters, for all lanes of a
    block at once. Slower than a reduction of whole rows, and never wrong.

        y[s] = min[n](sum[m](x[s,m,n])):    lanes [s, n];  for m: total += x[s, m, n];  then the minimum over n
    """
    axes = frozenset(scope.masks)
    if r.op is Reduction.SOFTMAX:
        most = _loop(w, r, Reduction.MAX, scope)
        most = w.assign("inside_max", f'tl.where({most} == float("-inf"), 0.0, {most})')
        total = _loop(w, r, Reduction.SUM, scope, most)
        body = arithmetic(w.value(r.body, scope), False)
        text = f"tl.exp({body.text} - {most}) / tl.where({total} == 0.0, 1.0, {total})"
    else:
        text = _loop(w, r, r.op, scope)
        if r.op is Reduction.MEAN:
            text = f"{text} / {float(prod(w.range_by_letter[x].extent for x in r.letters))}"
    return Val(w.assign("inside", text), axes, ValueKind.FLOAT)


def _loop(w: Writer, r: Reduce, op: Reduction, scope: Scope, most: str | None = None) -> str:
    """A variable with the body of `r` (or its exponential, once the maximum is known) folded over the letters of `r`."""
    shape = ", ".join(SHAPE[a] if a in scope.masks else "1" for a in "rc")
    name = w.assign(NAME[op], f"tl.full(({shape}), {NEUTRAL[op]}, tl.float32)")
    step = w.fresh("step")
    with w.loop(step, f"range(0, {prod(w.range_by_letter[x].extent for x in r.letters)})"):
        at = w.assign("at", f"tl.full((1, 1), {step}, tl.int{64 if w.wide else 32})  # [{' '.join(r.letters)}]")
        letters = {**scope.letters, **w.split(at, r.letters, "")}
        inside = Scope(letters, scope.masks, accs=scope.accs, rebound=scope.rebound | frozenset(r.letters))
        value = arithmetic(w.value(r.body, inside), False).text
        w.line(f"{name} = " + JOIN[op].format(name, value if most is None else f"tl.exp({value} - {most})"))
    return name
