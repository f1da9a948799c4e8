"""Triton source of an AttentionJob: flash attention, one pass over the keys with a running maximum and sum.

In: a job. Out: a kernel's text. A program takes ROWS queries (letters of q alone, all of one batch index) and steps through the keys that
the mask can leave for them, in up to three loops: keys at the edges of the mask or at the end, and between them those that every query
sees, with no mask at all. Scores count in powers of two, their scale folded in. Rows whose scores are all -inf give 0.
Published as FlashAttention-2 (Dao, 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, children, free_letters, loads, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from einpage.kernels.on_triton.contract import letters_of
from einpage.kernels.on_triton.key_bounds import Limit, limits, taken_apart
from einpage.kernels.on_triton.key_loop import Stream, parts_of_row, stream
from einpage.kernels.tiles.attention_tiles import attention_tiles
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import cover
from einpage.kernels.writer.launch import Launch
from einpage.kernels.writer.linear_index import times
from einpage.kernels.writer.values import Val, arithmetic, truth
from einpage.kernels.writer.writer import TL_DTYPE, Frame, Writer, launch

CACHED = 16 << 20
"""Bytes of keys and values that one round of programs reads: they stay in a large GPU's cache."""


def attention_launches(job: AttentionJob, target: Target) -> list[Launch]:
    return [_Kernel(job, target).launch()]


class _Kernel:
    def __init__(self, job: AttentionJob, target: Target) -> None:
        self.job = job
        self.writer = Writer(job.reads, job.result, job.ranges)
        self.extent = {r.letter: r.extent for r in job.ranges}
        self.dtype = {v.name: v.dtype for v in job.reads}
        self.score = taken_apart(job.score)
        self._roles()
        self.row_count, self.batch_count = prod(self.extent[x] for x in self.rows), prod(self.extent[x] for x in self.batch)
        self.depth, self.width = prod(self.extent[x] for x in job.score_letters), prod(self.extent[x] for x in self.own)
        factors = {self.dtype[load.name] for load in (job.q, job.k, job.v)}
        dtype = factors.pop() if len(factors) == 1 else DType.FP32
        self.parts = parts_of_row(self.writer, job.row, (job.k, job.v))
        head = max(self.depth, self.width)
        self.tiles = target.attention or attention_tiles(dtype, head, self.row_count, len(self.parts), target.capability)
        self.keys = self.extent[job.row]
        self.size = {
            "ROWS": cover(self.row_count, self.tiles.rows, 16),
            "KEYS": cover(self.keys, self.tiles.columns, 16),
            "INNER": cover(self.depth, 1 << 30, 16),
            "WIDTH": cover(self.width, 1 << 30, 16),
        }
        self.blocks = -(-self.row_count // self.size["ROWS"])

    def _roles(self) -> None:
        """Target letters as batch, queries and those of v alone. The queries' letter that the mask compares with keys is outermost: a
        block then spans few of its values."""
        job = self.job
        summed = set(job.score_letters)
        q, k, v = letters_of(job.q) - summed, letters_of(job.k) - summed - {job.row}, letters_of(job.v) - {job.row}
        batch = k | (q & v)
        self.batch = [x for x in job.target if x in batch]
        self.own = [x for x in job.target if x in v - batch]
        rows = [x for x in job.target if x in q - batch]
        self.limits = limits(self.score.conditions, job.row, rows, self.batch, lambda load: not self.dtype[load.name].is_float)
        compared = {x for limit in self.limits for x, _ in limit.letters}
        self.rows = sorted(rows, key=lambda x: (x not in compared, rows.index(x)))

    def launch(self) -> Launch:
        job, w = self.job, self.writer
        w.names |= {"program", "block", "first", "row", "most", "total", "attended", "score", "weight", "kept", "most_now"}
        w.names |= {"safe", "start", "tile", "begin", "end", *self.size}
        w.expect([*self.score.conditions, self.score.body, job.epilogue])
        batch = self._place()
        ragged = self.row_count % self.size["ROWS"] > 0
        inside = w.assign("row_inside", f"tl.minimum(row, {self.row_count - 1})") if ragged else "row"
        queries = Frame({**batch, **w.split(inside, self.rows, "r")}, {})
        q = self._inner("[None, :]")
        held = w.load(job.q, Frame({**queries.letters, **q.letters}, {**queries.masks, **q.masks}))
        self.q = self._whole(held, "rd", "(ROWS, INNER)", q.masks)
        width = w.assign("width", f"tl.arange(0, WIDTH)[None, :]  # [{' '.join(self.own)}]")
        width_masks = {"w": w.assign("width_mask", f"{width} < {self.width}")} if self.width < self.size["WIDTH"] else {}
        self.lanes = {"d": self._inner("[:, None]"), "w": Frame(w.split(width, self.own, "w"), width_masks)}
        self.queries, self.scalars = queries, batch
        self._hoist(self.score.body)
        for condition in self.score.conditions:
            self._hoist(condition)
        w.line('most = tl.full((ROWS,), float("-inf"), tl.float32)')
        w.line("total = tl.zeros((ROWS,), tl.float32)")
        w.line("attended = tl.zeros((ROWS, WIDTH), tl.float32)")
        self._attend()
        w.line("attended = attended * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]")
        own = {**w.split("row", self.rows, "r"), **self.lanes["w"].letters} if ragged else self.lanes["w"].letters
        end = Frame({**queries.letters, **own}, {**({"r": f"(row < {self.row_count})"} if ragged else {}), **width_masks})
        end.accs = {1: Val("attended", frozenset("rw"), "f")}
        w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, end), end, "rw")
        what = f"{job.result.name}: queries over {' '.join(self.rows)}, keys over {job.row}, batch over {' '.join(self.batch) or 'nothing'}"
        return launch("attention_kernel", what, w, self.size, self.blocks * self.batch_count, self.tiles)

    def _place(self) -> dict[Letter, Val]:
        """Which queries this program takes. Where later queries see more keys they come first, those of a few heads together."""
        w = self.writer
        w.line(f"program = {w.program()}")
        outer = self.rows[0] if self.rows else None
        more = {limit.upper == (c > 0) for limit in self.limits for x, c in limit.letters if x == outer}
        together = 1
        if more == {True}:
            together = self._together()
            w.line(f"block = {self.blocks - 1} - {_over('program', together)} % {self.blocks}")
        else:
            w.line(f"block = program % {self.blocks}")
        batch = f"(program // {self.blocks * together})"
        if together > 1:
            batch = w.assign("head", f"{batch} * {together} + program % {together}")
        w.line("first = block * ROWS")
        w.line(f"row = first + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.rows)}]")
        return w.split(batch, self.batch, "")

    def _together(self) -> int:
        """How many batch indices take turns: as many as divide them all and leave their keys and values in the cache."""
        each = self.keys * (self.depth * self.dtype[self.job.k.name].nbytes + self.width * self.dtype[self.job.v.name].nbytes)
        most = max(1, CACHED // max(1, each))
        return max(n for n in range(1, min(most, self.batch_count) + 1) if self.batch_count % n == 0)

    def _inner(self, shape: str) -> Frame:
        """The summed letters along INNER."""
        w = self.writer
        inner = w.assign("inner", f"tl.arange(0, INNER){shape}  # [{' '.join(self.job.score_letters)}]")
        masks = {"d": w.assign("inner_mask", f"{inner} < {self.depth}")} if self.depth < self.size["INNER"] else {}
        return Frame(w.split(inner, self.job.score_letters, "d"), masks)

    def _whole(self, held: Val, axes: str, full: str, masks: Mapping[str, str]) -> str:
        """`held` along all of `axes`, 0 where a mask that it does not have itself says so."""
        if held.axes == frozenset(axes):
            return held.text
        text = f"tl.broadcast_to({held.text}, {full})"
        outside = [f"tl.broadcast_to({m}, {full})" for a, m in masks.items() if a not in held.axes and a in axes]
        return self.writer.assign("block", f"tl.where({' & '.join(outside)}, {text}, 0)" if outside else text)

    def _hoist(self, e: Expr) -> None:
        """Read before the loop whatever of a score does not depend on the key; every step then finds it in the queries' memo."""
        if not any(isinstance(n, Load | Acc) or self.job.row in free_letters(n) for n in walk(e)):
            return
        if self.job.row not in free_letters(e) and loads(e) and not any(isinstance(n, Acc) for n in walk(e)):
            value = self.writer.value(e, self.queries)
            if value.kind != "c":
                self.queries.memo[(e, False)] = Val(self.writer.assign("known", value.text), value.axes, value.kind)
        elif not isinstance(e, Load):
            for child in children(e):
                self._hoist(child)

    # the loops over keys

    def _attend(self) -> None:
        job, w = self.job, self.writer
        parts = self.parts
        across, down = "tl.arange(0, KEYS)[None, :]", "tl.arange(0, KEYS)[:, None]"
        k = stream(w, job.k, job.row, parts, self.scalars, self.lanes["d"].letters, across, "(INNER, KEYS)")
        v = stream(w, job.v, job.row, parts, self.scalars, self.lanes["w"].letters, down, "(KEYS, WIDTH)")
        if k is None or v is None:
            k = v = None
            parts = [w.range_by_letter[job.row]]
        self.streams: tuple[Stream | None, Stream | None] = (k, v)
        seen_from, all_from = self._bound(False, False), self._bound(False, True)
        seen_to, all_to = self._bound(True, True), self._bound(True, False)
        spans = [(p.start - w.range_by_letter[job.row].start, p.end - w.range_by_letter[job.row].start) for p in parts]
        if len(spans) == 1:
            for s in (k, v):
                if s is not None:
                    w.line(f"{s.name} = {s.at[0]}")
            self._loops("0", str(self.keys), seen_from, all_from, all_to, seen_to, self.keys % self.size["KEYS"] > 0)
            return
        w.line(f"for tile in range(0, {len(spans)}):")
        w.indent += 1
        chosen = [("begin", [str(a) for a, _ in spans]), ("end", [str(b) for _, b in spans])]
        for name, texts in [*chosen, *((s.name, list(s.at)) for s in (k, v) if s is not None)]:
            for n, text in enumerate(texts):
                w.line(f"{name} = tl.where(tile == {n}, {text}, {name})" if n else f"{name} = {text}")
        seen_from, all_from = ("" if not x else w.assign("low", f"tl.maximum({x}, begin)") for x in (seen_from, all_from))
        all_to, seen_to = ("" if not x else w.assign("high", f"tl.minimum({x}, end)") for x in (all_to, seen_to))
        ragged = any((b - a) % self.size["KEYS"] for a, b in spans)
        self._loops("begin", "end", seen_from, all_from, all_to, seen_to, ragged)
        w.indent -= 1

    def _loops(self, begin: str, end: str, seen_from: str, all_from: str, all_to: str, seen_to: str, ragged: bool) -> None:
        """Lines for keys `begin` .. `end`: those that only some queries see, those that all see, the rest.

        An empty text is no bound.
        """
        w = self.writer
        every = [c for c in self.score.conditions if c not in {limit.condition for limit in self.limits}]
        stop = end if ragged or seen_from else ""
        if self.keys <= self.size["KEYS"] and (self.limits or ragged):
            self._loop(seen_from or begin, seen_to or end, self.score.conditions, stop)
            return
        if seen_from:
            edge = w.assign("edge", f"{seen_from} + tl.maximum({all_from} - {seen_from} + KEYS - 1, 0) // KEYS * KEYS")
            self._loop(seen_from, f"tl.minimum({edge}, {seen_to or end})", self.score.conditions, stop)
            begin = edge
        if begin == "0" and not all_to:
            rest = str(self.keys // self.size["KEYS"] * self.size["KEYS"])
        else:
            whole = f"{all_to or end} - {begin}" if begin != "0" else all_to
            rest = w.assign("rest", f"tl.maximum({whole}, 0) // KEYS * KEYS" + (f" + {begin}" if begin != "0" else ""))
        self._loop(begin, rest, every, "")
        if ragged or self.limits:
            self._loop(rest, seen_to or end, self.score.conditions, stop)

    def _bound(self, upper: bool, largest: bool) -> str:
        """The first key (or, for `upper`, the one after the last) that some or all of this block's queries see; empty without a limit."""
        w = self.writer
        found = [self._extreme(limit, largest) for limit in self.limits if limit.upper == upper]
        if not found:
            return ""
        text = str(self.keys if upper else 0)
        for other in found:
            text = f"tl.minimum({text}, {other} + 1)" if upper else f"tl.maximum({text}, {other})"
        some = upper == largest
        return w.assign(("to" if upper else "from") + ("_some" if some else "_all"), text)

    def _extreme(self, limit: Limit, largest: bool) -> str:
        """The largest or smallest value of the limit among this block's queries, keys counted from 0."""
        w, terms = self.writer, []
        for letter, c in limit.letters:
            last = largest == (c > 0)
            if letter in self.scalars:
                terms.append(times(self.scalars[letter].text, c))
            elif letter == self.rows[0]:
                number = f"tl.minimum(first + ROWS - 1, {self.row_count - 1})" if last else "first"
                terms.append(times(_over(number, prod(self.extent[x] for x in self.rows[1:])), c))
            elif last:
                terms.append(str(c * (self.extent[letter] - 1)))
            terms.append(times(w.start(letter), c))
        for load, c in limit.data:
            terms.append(times(w.value(load, Frame(self.scalars, {}), True).text, c))
        return " + ".join([*terms, *([f"({limit.const})"] if limit.const else [])] or ["0"]) + f" - {w.start(self.job.row)}"

    def _loop(self, begin: str, end: str, conditions: Sequence[Expr], stop: str) -> None:
        """One loop over blocks of keys; where `stop` is given a block may reach beyond that key."""
        w = self.writer
        w.line(f"for start in range({begin}, {end}, KEYS):")
        w.indent += 1
        self._step(conditions, stop)
        w.indent -= 1

    def _step(self, conditions: Sequence[Expr], stop: str) -> None:
        """One block of keys: scores, the running maximum and sum, and what is attended to."""
        job, w = self.job, self.writer
        key = w.assign(str(job.row), "start + tl.arange(0, KEYS)[None, :]")
        real = [w.assign("key_mask", f"{key} < {stop}")] if stop else []
        frame = Frame({**self.queries.letters, job.row: Val(key, frozenset("t"), "i")}, dict(self.queries.masks), dict(self.queries.memo))
        frame.masks = {**frame.masks, **({"t": real[0]} if real else {})}
        frame.accs = {0: Val("score", frozenset("rt"), "f")}
        k = self._keys(key, real)
        wide = "" if self.dtype[job.q.name] is self.dtype[job.k.name] else ".to(tl.float32)"
        w.line(f"score = tl.dot({self.q}{wide}, {k}{wide}{self._precision(job.q.name, job.k.name)})")
        value = arithmetic(w.value(self.score.body, frame), False)
        if value.axes != frozenset("rt"):
            value = Val(f"({value.text} + tl.zeros((ROWS, KEYS), tl.float32))", frozenset("rt"), "f")
        held = [v for v in (w.value(c, frame) for c in conditions) if v.kind != "c" or not v.number]
        seen = [*real, *("tl.full((1, 1), 0, tl.int1)" if v.kind == "c" else truth(v) for v in held)]
        text = f'tl.where({" & ".join(seen)}, {value.text}, float("-inf"))' if seen else value.text
        if text != "score":
            w.line(f"score = {text}")
        scale = self.score.scale * math.log2(math.e)
        w.line(f"most_now = tl.maximum(most, tl.max(score, axis=1) * {scale!r})")
        w.line('safe = tl.where(most_now == float("-inf"), 0.0, most_now)')
        w.line(f"weight = tl.exp2(score * {scale!r} - safe[:, None])")
        w.line("kept = tl.exp2(most - safe)")
        w.line("total = total * kept + tl.sum(weight, axis=1)")
        v = self._values(stop)
        dtype = self.dtype[job.v.name]
        weight = "weight" if dtype is DType.FP32 else f"weight.to({TL_DTYPE[dtype]})"
        w.line(f"attended = tl.dot({weight}, {v}, attended * kept[:, None]{self._precision(job.v.name)})")
        w.line("most = most_now")

    def _precision(self, *names: str) -> str:
        half = {self.dtype[n] for n in names} in ({DType.BF16}, {DType.FP16})
        return "" if half else ', input_precision="ieee"'

    def _keys(self, key: str, real: Sequence[str]) -> str:
        """A block [INNER, KEYS] of k."""
        lanes = self.lanes["d"]
        return self._read(self.job.k, self.streams[0], key, lanes, real, "dt", "(INNER, KEYS)")

    def _values(self, stop: str) -> str:
        """A block [KEYS, WIDTH] of v."""
        key = self.writer.assign(str(self.job.row), "start + tl.arange(0, KEYS)[:, None]")
        real = [f"({key} < {stop})"] if stop else []
        return self._read(self.job.v, self.streams[1], key, self.lanes["w"], real, "tw", "(KEYS, WIDTH)")

    def _read(self, load: Load, s: Stream | None, key: str, lanes: Frame, real: Sequence[str], axes: str, full: str) -> str:
        w = self.writer
        if s is not None:
            mask = " & ".join([*real, *lanes.masks.values()])
            return w.assign(load.name, f"tl.load({s.block('start', w.wide)}" + (f", mask={mask}, other=0)" if mask else ")"))
        masks = {**lanes.masks, **({"t": real[0]} if real else {})}
        letters = {**self.scalars, **lanes.letters, self.job.row: Val(key, frozenset("t"), "i")}
        return self._whole(w.load(load, Frame(letters, masks)), axes, full, masks)


def _over(text: str, by: int) -> str:
    return text if by == 1 else f"{text} // {by}"
