"""Triton source of an AttentionJob: flash attention, one pass over the keys with a running maximum and sum.

In: a job. Out: a kernel's text. A program takes ROWS queries (letters of q alone, all of one batch index) and steps through the keys that
the mask can leave for them: bounds such as `t <= s` or `s - t < window` become the loop's own. Rows whose scores are all -inf give 0.
Published as FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from math import prod

from einpage.einsum_front.dtype import DType
from einpage.einsum_front.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Unary
from einpage.einsum_front.job import AttentionJob
from einpage.kernels.access import linear
from einpage.kernels.triton_contract import letters_of
from einpage.kernels.triton_launch import Launch
from einpage.kernels.triton_text import Frame, Writer, launch
from einpage.kernels.triton_tiles import ATTENTION, cover
from einpage.kernels.triton_values import Val


def attention_launches(job: AttentionJob) -> list[Launch]:
    return [_Kernel(job).launch()]


class _Kernel:
    def __init__(self, job: AttentionJob) -> None:
        self.job = job
        self.writer = Writer(job.reads, job.result, job.ranges)
        self.extent = {r.letter: r.extent for r in job.ranges}
        summed = set(job.score_letters)
        q, k, v = letters_of(job.q) - summed, letters_of(job.k) - summed - {job.row}, letters_of(job.v) - {job.row}
        batch = k | (q & v)
        self.batch = [x for x in job.target if x in batch]
        self.rows = self._slowest_first([x for x in job.target if x in q - batch])
        self.own = [x for x in job.target if x in v - batch]
        self.tiles = ATTENTION[job.result.dtype]
        self.row_count, self.batch_count = prod(self.extent[x] for x in self.rows), prod(self.extent[x] for x in self.batch)
        self.depth, self.width = prod(self.extent[x] for x in job.score_letters), prod(self.extent[x] for x in self.own)
        self.size = {
            "ROWS": cover(self.row_count, self.tiles.rows, 16),
            "KEYS": cover(self.extent[job.row], self.tiles.columns, 16),
            "INNER": cover(self.depth, 1 << 30, 16),
            "WIDTH": cover(self.width, 1 << 30, 16),
        }

    def _slowest_first(self, rows: list[Letter]) -> list[Letter]:
        """The letters that the mask compares with the row letter outermost, so that a block of queries spans few of their values."""
        compared = {x for bound in self._bounds() for x in bound[0]}
        return sorted(rows, key=lambda x: (x not in compared, rows.index(x)))

    def launch(self) -> Launch:
        job, w = self.job, self.writer
        blocks = -(-self.row_count // self.size["ROWS"])
        w.names |= {"program", "first", "row", "row_mask", "key", "key_mask", "width", "width_mask", "ROWS", "KEYS", "INNER", "WIDTH"}
        w.expect([job.score, job.epilogue])
        w.line("program = tl.program_id(0).to(tl.int64)")
        w.line(f"first = program % {blocks} * ROWS")
        w.line(f"row = first + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.rows)}]")
        w.line(f"row_mask = row < {self.row_count}")
        batch = w.split(f"(program // {blocks})", self.batch, "")
        queries = Frame({**batch, **w.split("row", self.rows, "r")}, {"r": "row_mask"})
        q = self._block(job.q, queries, job.score_letters, "[None, :]", "rd", "(ROWS, INNER)")
        w.line(f"width = tl.arange(0, WIDTH)[None, :].to(tl.int64)  # [{' '.join(self.own)}]")
        w.line(f"width_mask = width < {self.width}")
        own = w.split("width", self.own, "w")
        w.line('most = tl.full((ROWS, 1), float("-inf"), tl.float32)')
        w.line("total = tl.zeros((ROWS, 1), tl.float32)")
        w.line("attended = tl.zeros((ROWS, WIDTH), tl.float32)")
        w.names |= {"most", "total", "attended"}
        low, high = self._loop_bounds(batch)
        w.line(f"for start in range({low}, {high}, KEYS):")
        w.names.add("start")
        w.indent += 1
        self._step(queries, own, q)
        w.indent -= 1
        w.line("attended = attended / tl.where(total == 0.0, 1.0, total)")
        end = Frame({**queries.letters, **own}, {"r": "row_mask", "w": "width_mask"}, accs={1: Val("attended", frozenset("rw"), "f")})
        w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, end), end, "rw")
        what = f"{job.result.name}: queries over {' '.join(self.rows)}, keys over {job.row}, batch over {' '.join(self.batch) or 'nothing'}"
        return launch("attention_kernel", what, w, self.size, blocks * self.batch_count, self.tiles)

    def _step(self, queries: Frame, own: dict[Letter, Val], q: str) -> None:
        """One block of keys: scores, the running maximum and sum, and what is attended to."""
        job, w = self.job, self.writer
        r = w.range_by_letter[job.row]
        across = w.assign(str(job.row), "start + tl.arange(0, KEYS)[None, :].to(tl.int64)")
        w.line(f"key_mask = {across} < {r.extent}")
        batch = {x: v for x, v in queries.letters.items() if x in self.batch}
        keys = Frame({**batch, job.row: Val(across, frozenset("t"), "i")}, {"t": "key_mask"})
        k = self._block(job.k, keys, job.score_letters, "[:, None]", "dt", "(INNER, KEYS)")
        same = self._dtype(job.q) is self._dtype(job.k)
        wide = "" if same else ".to(tl.float32)"
        score = w.assign("score", f'tl.dot({q}{wide}, {k}{wide}, input_precision="ieee")')
        frame = Frame(
            {**queries.letters, job.row: Val(across, frozenset("t"), "i")},
            {"r": "row_mask", "t": "key_mask"},
            accs={0: Val(score, frozenset("rt"), "f")},
        )
        value = w.value(job.score, frame)
        w.line(f'{score} = tl.where(row_mask & key_mask, {value.text}, float("-inf"))')
        w.line(f"most_now = tl.maximum(most, tl.max({score}, axis=1, keep_dims=True))")
        w.line('safe = tl.where(most_now == float("-inf"), 0.0, most_now)')
        w.line(f"weight = tl.exp({score} - safe)")
        w.line("kept = tl.exp(most - safe)")
        w.line("total = total * kept + tl.sum(weight, axis=1, keep_dims=True)")
        down = w.assign(str(job.row), "start + tl.arange(0, KEYS)[:, None].to(tl.int64)")
        below = w.assign("key_mask", f"{down} < {r.extent}")
        values = Frame({**batch, **own, job.row: Val(down, frozenset("t"), "i")}, {"t": below, "w": "width_mask"})
        v = self._whole(w.load(job.v, values), "tw", "(KEYS, WIDTH)", f"tl.broadcast_to({below}, (KEYS, WIDTH))")
        w.line(f'attended = tl.dot(weight, {v}.to(tl.float32), attended * kept, input_precision="ieee")')
        w.line("most = most_now")

    def _block(self, load: Load, frame: Frame, inner: tuple[Letter, ...], shape: str, axes: str, full: str) -> str:
        """A block of q or k with its summed letters along INNER, 0 beyond their end."""
        w = self.writer
        number = w.assign("inner", f"tl.arange(0, INNER){shape}.to(tl.int64)  # [{' '.join(inner)}]")
        mask = w.assign("inner_mask", f"{number} < {self.depth}")
        letters = {x: v for x, v in frame.letters.items() if x not in inner}
        here = Frame({**letters, **w.split(number, inner, "d")}, {**frame.masks, "d": mask})
        return self._whole(w.load(load, here), axes, full, f"tl.broadcast_to({mask}, {full})")

    def _whole(self, held: Val, axes: str, full: str, mask: str) -> str:
        if held.axes == frozenset(axes):
            return held.text
        return self.writer.assign("block", f"tl.where({mask}, tl.broadcast_to({held.text}, {full}), 0)")

    def _dtype(self, load: Load) -> DType:
        return next(v.dtype for v in self.job.reads if v.name == load.name)

    # which keys a block of queries can see

    def _bounds(self) -> Iterator[tuple[dict[Letter, int], int]]:
        """Conditions of the mask, as affine forms that are >= 0 where the score may be finite."""
        score = self.job.score
        while isinstance(score, Call) and score.fn == "where" and _is_minus_inf(score.args[2]):
            yield from _conditions(score.args[0])
            score = score.args[1]

    def _loop_bounds(self, batch: dict[Letter, Val]) -> tuple[str, str]:
        w, row = self.writer, self.job.row
        r = w.range_by_letter[row]
        lows, highs = ["0"], [str(r.extent)]
        for form, const in self._bounds():
            c = form.get(row, 0)
            others = {x: f for x, f in form.items() if x != row and f}
            if abs(c) != 1 or not set(others) <= set(batch) | set(self.rows):
                continue
            starts = [f"{w.start(x)} * {f}" for x, f in form.items() if f]
            extremes = [self._extreme(x, f, batch) for x, f in others.items()]
            most = " + ".join([*extremes, *starts, str(const)])  # the most the rest can be in this block, keys counted from 0
            if c < 0:  # t <= rest
                highs.append(w.assign("high", f"{most} + 1"))
            else:  # t >= -rest
                lows.append(w.assign("low", f"-({most})"))
        low, high = lows[0], highs[0]
        for other in lows[1:]:
            low = w.assign("from_key", f"tl.maximum({low}, {other})")
        for other in highs[1:]:
            high = w.assign("to_key", f"tl.minimum({high}, {other})")
        return low, high

    def _extreme(self, letter: Letter, factor: int, batch: dict[Letter, Val]) -> str:
        """The largest value of factor * letter among this block's queries, the letter counted from 0."""
        r = self.writer.range_by_letter[letter]
        if letter in batch:
            return f"{batch[letter].text} * {factor}"
        if letter != self.rows[0]:
            return str(factor * (r.extent - 1) if factor > 0 else 0)
        inner = prod(self.extent[x] for x in self.rows[1:])
        if factor > 0:
            return f"(tl.minimum((first + ROWS - 1) // {inner}, {r.extent - 1})) * {factor}"
        return f"(first // {inner}) * {factor}"


def _is_minus_inf(e: Expr) -> bool:
    match e:
        case Num(value):
            return value == -math.inf
        case Unary("-", Num(value)):
            return value == math.inf
    return False


def _conditions(e: Expr) -> Iterator[tuple[dict[Letter, int], int]]:
    match e:
        case Binary("and", x, y):
            yield from _conditions(x)
            yield from _conditions(y)
        case Binary("<=" | "<", x, y) | Binary(">=" | ">", y, x):
            form = linear(Binary("-", y, x))
            if form is not None:
                yield form[0], form[1] - (1 if e.op in ("<", ">") else 0)
