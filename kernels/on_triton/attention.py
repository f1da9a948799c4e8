"""Triton source of an AttentionJob: flash attention, one pass over the keys with a running maximum and sum.

In: a job. Out: its one launch. A program takes ROWS queries (letters of q alone, all of one batch index) and steps through the keys that
the mask can leave for them, in up to three loops: keys at the edges of the mask or at the end, and between them those that every query
sees, with no mask at all. Scores count in powers of two, their scale folded in. Rows whose scores are all -inf give 0.
Published as FlashAttention-2 (Dao, 2023). Its plain-torch twin is on_torch/attention.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, children, free_letters, loads, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.on_triton.contract import letters_of
from einpage.kernels.on_triton.key_bounds import SeenKeys, key_bounds, masked_score
from einpage.kernels.on_triton.key_loop import KeyAddresses, RowDescriptor, batch_of, key_addresses, parts_of_row, rows_by_engine
from einpage.kernels.tiles.attention_tiles import AttentionShape, attention_products
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import Tiles, cover
from einpage.kernels.writer.launch import Descriptor, Launch
from einpage.kernels.writer.values import Val, arithmetic, truth
from einpage.kernels.writer.writer import TL_DTYPE, Scope, Writer

CACHED = 16 << 20
"""Bytes of keys and values that one round of programs reads: they stay in a large GPU's cache."""


def attention_launches(job: AttentionJob, target: Target) -> list[Launch]:
    """The kernel of `job` on `target`. Raises Unsupported where it cannot be written, as for a reduction within a score."""
    return [_AttentionGenerator(job, target).launch()]


def attention_shape(job: AttentionJob) -> AttentionShape:
    """What the choice of a tile for `job` depends on."""
    return _AttentionGenerator(job, Target()).shape()


class _AttentionGenerator:
    """Writes the kernel of one attention job."""

    def __init__(self, job: AttentionJob, target: Target) -> None:
        self.job = job
        self.writer = Writer(job.reads, job.result, job.ranges)
        self.extent = {r.letter: r.extent for r in job.ranges}
        self.dtype = {v.name: v.dtype for v in job.reads}
        self.score = masked_score(job.score)
        self._roles()
        self.row_count, self.batch_count = prod(self.extent[x] for x in self.rows), prod(self.extent[x] for x in self.batch)
        self.depth, self.width = prod(self.extent[x] for x in job.score_letters), prod(self.extent[x] for x in self.own)
        self.parts = parts_of_row(self.writer, job.row, (job.k, job.v))
        self.keys = self.extent[job.row]
        self.fp32_products = attention_products(self.shape(), target.capability, target.fp32_products)
        self.by_engine: dict[Load, Descriptor] | None = None
        for tiles in target.attentions(self.shape()):
            self.tiles, self.size = tiles, self._sizes(tiles)
            self.by_engine = self._by_engine() if tiles.descriptors else None
            if self.by_engine is not None or not tiles.descriptors:
                break
        self.blocks = -(-self.row_count // self.size["ROWS"])

    def shape(self) -> AttentionShape:
        """What the choice of a tile depends on."""
        dtypes = {self.dtype[load.name] for load in (self.job.q, self.job.k, self.job.v)}
        dtype = dtypes.pop() if len(dtypes) == 1 else DType.FP32
        return AttentionShape(dtype, max(self.depth, self.width), self.batch_count, self.row_count, self.keys, len(self.parts))

    def _sizes(self, tiles: Tiles) -> dict[str, int]:
        """How much of each axis a block has."""
        return {
            "ROWS": cover(self.row_count, tiles.rows, 16),
            "KEYS": cover(self.keys, tiles.columns, 16),
            "INNER": cover(self.depth, 1 << 30, 16),
            "WIDTH": cover(self.width, 1 << 30, 16),
        }

    def _by_engine(self) -> dict[Load, Descriptor] | None:
        """Keys and values as the copy engine reads them; None where it cannot. Warps are specialised over one loop, in which nothing else
        is read, and after queries that the engine has brought: the compiler fails with anything more."""
        job, size = self.job, self.size
        asked: list[tuple[Load, Sequence[Letter], Sequence[Letter], tuple[int, int]]] = [
            (job.k, [job.row], job.score_letters, (size["KEYS"], size["INNER"])),
            (job.v, [job.row], self.own, (size["KEYS"], size["WIDTH"])),
        ]
        if self.tiles.specialised:
            asked.append((job.q, self.rows, job.score_letters, (size["ROWS"], size["INNER"])))
        found: dict[Load, Descriptor] = {}
        for load, rows, lanes, block in asked:
            d = rows_by_engine(self.writer, load, rows, self.batch, lanes, block)
            if d is None:
                return None
            found[load] = d
        return None if self.tiles.specialised and any(loads(e) for e in (self.score.body, *self.score.conditions)) else found

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
        self.bounds = key_bounds(self.score.conditions, job.row, rows, self.batch, lambda load: not self.dtype[load.name].is_float)
        compared = {x for bound in self.bounds for x, _ in bound.letters}
        self.rows = sorted(rows, key=lambda x: (x not in compared, rows.index(x)))

    def launch(self) -> Launch:
        job, w = self.job, self.writer
        w.names |= {"program", "block", "first", "row", "most", "total", "attended", "score", "weight", "kept", "most_now"}
        w.names |= {"safe", "start", "tile", "begin", "end", *self.size}
        w.expect([*self.score.conditions, self.score.body, job.epilogue])
        batch = self._program()
        ragged = self.row_count % self.size["ROWS"] > 0
        inside = w.assign("row_inside", f"tl.minimum(row, {self.row_count - 1})") if ragged else "row"
        queries = Scope({**batch, **w.split(inside, self.rows, "r")}, {})
        self.queries, self.scalars = queries, batch
        self.seen = SeenKeys(w, job.row, self.bounds, self.rows, batch)
        self.q = self._loaded_queries()
        width = w.assign("width", f"{w.lanes('WIDTH', '[None, :]')}  # [{' '.join(self.own)}]")
        width_masks = {"w": w.assign("width_mask", f"{width} < {self.width}")} if self.width < self.size["WIDTH"] else {}
        self.lanes = {"d": self._inner("[:, None]"), "w": Scope(w.split(width, self.own, "w"), width_masks)}
        self._hoist(self.score.body)
        for condition in self.score.conditions:
            self._hoist(condition)
        w.line('most = tl.full((ROWS,), float("-inf"), tl.float32)')
        w.line("total = tl.zeros((ROWS,), tl.float32)")
        w.line("attended = tl.zeros((ROWS, WIDTH), tl.float32)")
        self._attend()
        w.line("attended = attended * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]")
        own = {**w.split("row", self.rows, "r"), **self.lanes["w"].letters} if ragged else self.lanes["w"].letters
        scope = Scope({**queries.letters, **own}, {**({"r": f"(row < {self.row_count})"} if ragged else {}), **width_masks})
        scope.accs = {1: Val("attended", frozenset("rw"), ValueKind.FLOAT)}
        w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, scope), scope, "rw")
        what = f"{job.result.name}: queries over {' '.join(self.rows)}, keys over {job.row}, batch over {' '.join(self.batch) or 'nothing'}"
        return w.launch("attention_kernel", what, self.size, self.blocks * self.batch_count, self.tiles)

    def _program(self) -> dict[Letter, Val]:
        """Which queries this program takes. Where later queries see more keys they come first, those of a few heads together."""
        w = self.writer
        w.line(f"program = {w.program()}")
        outer = self.rows[0] if self.rows else None
        more = {bound.is_last == (c > 0) for bound in self.bounds for x, c in bound.letters if x == outer}
        heads = 1
        if more == {True}:
            heads = self._heads_in_cache()
            w.line(f"block = {self.blocks - 1} - {_over('program', heads)} % {self.blocks}")
        else:
            w.line(f"block = program % {self.blocks}")
        batch = f"(program // {self.blocks * heads})"
        if heads > 1:
            batch = w.assign("head", f"{batch} * {heads} + program % {heads}")
        w.line("first = block * ROWS")
        w.line(f"row = first + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.rows)}]")
        return w.split(batch, self.batch, "")

    def _heads_in_cache(self) -> int:
        """How many batch indices alternate: as many as divide them all and leave their keys and values in the cache."""
        each = self.keys * (self.depth * self.dtype[self.job.k.name].nbytes + self.width * self.dtype[self.job.v.name].nbytes)
        most = max(1, CACHED // max(1, each))
        return max(n for n in range(1, min(most, self.batch_count) + 1) if self.batch_count % n == 0)

    def _inner(self, shape: str) -> Scope:
        """The summed letters along INNER."""
        w = self.writer
        inner = w.assign("inner", f"{w.lanes('INNER', shape)}  # [{' '.join(self.job.score_letters)}]")
        masks = {"d": w.assign("inner_mask", f"{inner} < {self.depth}")} if self.depth < self.size["INNER"] else {}
        return Scope(w.split(inner, self.job.score_letters, "d"), masks)

    def _full(self, loaded: Val, axes: str, full: str, masks: Mapping[str, str]) -> str:
        """`loaded` along all of `axes`, 0 where a mask that it does not have itself says so."""
        if loaded.axes == frozenset(axes):
            return loaded.text
        text = f"tl.broadcast_to({loaded.text}, {full})"
        outside = [f"tl.broadcast_to({m}, {full})" for a, m in masks.items() if a not in loaded.axes and a in axes]
        return self.writer.assign("block", f"tl.where({' & '.join(outside)}, {text}, 0)" if outside else text)

    def _hoist(self, e: Expr) -> None:
        """Read before the loop whatever of a score does not depend on the key; every step then finds it in the queries' memo."""
        if not any(isinstance(n, Load | Acc) or self.job.row in free_letters(n) for n in walk(e)):
            return
        if self.job.row not in free_letters(e) and loads(e) and not any(isinstance(n, Acc) for n in walk(e)):
            value = self.writer.value(e, self.queries)
            if not value.is_number:
                self.queries.memo[(e, False)] = Val(self.writer.assign("known", value.text), value.axes, value.kind)
        elif not isinstance(e, Load):
            for child in children(e):
                self._hoist(child)

    def _attend(self) -> None:
        """The loops over keys, in each tile of keys."""
        job, w = self.job, self.writer
        parts = self.parts
        k, v = (self._described(job.k), self._described(job.v)) if self.tiles.descriptors else self._pointed_to()
        if k is None or v is None:
            k = v = None
            parts = [w.range_by_letter[job.row]]
        self.addresses: tuple[_Keys, _Keys] = (k, v)
        pointers = [a for a in (k, v) if isinstance(a, KeyAddresses)]
        some_from, all_from = self.seen.bound(False, False), self.seen.bound(False, True)
        some_to, all_to = self.seen.bound(True, True), self.seen.bound(True, False)
        spans = [(p.start - w.range_by_letter[job.row].start, p.end - w.range_by_letter[job.row].start) for p in parts]
        if len(spans) == 1:
            for a in pointers:
                w.line(f"{a.name} = {a.pointers[0]}")
            self._loops("0", str(self.keys), some_from, all_from, all_to, some_to, self.keys % self.size["KEYS"] > 0)
            return
        with w.loop("tile", f"range(0, {len(spans)})"):
            chosen = [("begin", tuple(str(a) for a, _ in spans)), ("end", tuple(str(b) for _, b in spans))]
            for name, texts in [*chosen, *((a.name, a.pointers) for a in pointers)]:
                for n, text in enumerate(texts):
                    w.line(f"{name} = tl.where(tile == {n}, {text}, {name})" if n else f"{name} = {text}")
            some_from, all_from = ("" if not x else w.assign("low", f"tl.maximum({x}, begin)") for x in (some_from, all_from))
            all_to, some_to = ("" if not x else w.assign("high", f"tl.minimum({x}, end)") for x in (all_to, some_to))
            ragged = any((b - a) % self.size["KEYS"] for a, b in spans)
            self._loops("begin", "end", some_from, all_from, all_to, some_to, ragged)

    def _loaded_queries(self) -> str:
        """A block [ROWS, INNER] of q."""
        w, job = self.writer, self.job
        if self.tiles.specialised:
            narrow = ".to(tl.int32)" if w.wide else ""
            return w.assign(job.q.name, self._described(job.q).block(f"first{narrow}", "(ROWS, INNER)"))
        q = self._inner("[None, :]")
        loaded = w.load(job.q, Scope({**self.queries.letters, **q.letters}, {**self.queries.masks, **q.masks}))
        return self._full(loaded, "rd", "(ROWS, INNER)", q.masks)

    def _described(self, load: Load) -> RowDescriptor:
        """Keys, values or queries that the copy engine reads."""
        assert self.by_engine is not None, "a tile was chosen that the copy engine cannot read"
        narrow = ".to(tl.int32)" if self.writer.wide else ""
        batch = tuple(f"{self.scalars[x].text}{narrow}" for x in batch_of(self.writer, load, self.batch))
        return RowDescriptor(self.writer.descriptor(self.by_engine[load], load.name), batch)

    def _pointed_to(self) -> tuple[_Keys, _Keys]:
        """The pointers of keys and values, made before the loops."""
        job, w = self.job, self.writer
        across, down = w.lanes("KEYS", "[None, :]"), w.lanes("KEYS", "[:, None]")
        return (
            key_addresses(w, job.k, job.row, self.parts, self.scalars, self.lanes["d"].letters, across, "(INNER, KEYS)"),
            key_addresses(w, job.v, job.row, self.parts, self.scalars, self.lanes["w"].letters, down, "(KEYS, WIDTH)"),
        )

    def _loops(self, start: str, end: str, some_from: str, all_from: str, all_to: str, some_to: str, ragged: bool) -> None:
        """Lines for keys `start` .. `end`: those that only some queries see, those that all see, the rest.

        An empty text is no bound.
        """
        w = self.writer
        unbounded = [c for c in self.score.conditions if c not in {bound.condition for bound in self.bounds}]
        last = end if ragged or some_from else ""
        if self.tiles.specialised or (self.keys <= self.size["KEYS"] and (self.bounds or ragged)):
            self._loop(some_from or start, some_to or end, self.score.conditions, last)
            return
        if some_from:
            edge = w.assign("edge", f"{some_from} + tl.maximum({all_from} - {some_from} + KEYS - 1, 0) // KEYS * KEYS")
            self._loop(some_from, f"tl.minimum({edge}, {some_to or end})", self.score.conditions, last)
            start = edge
        if start == "0" and not all_to:
            rest = str(self.keys // self.size["KEYS"] * self.size["KEYS"])
        else:
            whole = f"{all_to or end} - {start}" if start != "0" else all_to
            rest = w.assign("rest", f"tl.maximum({whole}, 0) // KEYS * KEYS" + (f" + {start}" if start != "0" else ""))
        self._loop(start, rest, unbounded, "")
        if ragged or self.bounds:
            self._loop(rest, some_to or end, self.score.conditions, last)

    def _loop(self, start: str, end: str, conditions: Sequence[Expr], last: str) -> None:
        """One loop over blocks of keys; where `last` is given a block may reach beyond that key."""
        steps = f"tl.range({start}, {end}, KEYS, warp_specialize=True)" if self.tiles.specialised else f"range({start}, {end}, KEYS)"
        with self.writer.loop("start", steps):
            self._step(conditions, last)

    def _step(self, conditions: Sequence[Expr], last: str) -> None:
        """One block of keys: scores, the running maximum and sum, and what is attended to."""
        job, w = self.job, self.writer
        key = w.assign(str(job.row), f"start + {w.lanes('KEYS', '[None, :]')}")
        masks = [w.assign("key_mask", f"{key} < {last}")] if last else []
        scope = Scope(
            {**self.queries.letters, job.row: Val(key, frozenset("t"), ValueKind.INT)}, dict(self.queries.masks), dict(self.queries.memo)
        )
        scope.masks = {**scope.masks, **({"t": masks[0]} if masks else {})}
        scope.accs = {0: Val("score", frozenset("rt"), ValueKind.FLOAT)}
        k = self._keys(key, masks)
        dtypes = [self.dtype[load.name] for load in (job.q, job.k)]
        wide = "" if dtypes[0] is dtypes[1] else ".to(tl.float32)"
        w.line(f"score = {w.dot(self.q + wide, k + wide, '', dtypes, self.fp32_products)}")
        value = arithmetic(w.value(self.score.body, scope), False)
        if value.axes != frozenset("rt"):
            value = Val(f"({value.text} + tl.zeros((ROWS, KEYS), tl.float32))", frozenset("rt"), ValueKind.FLOAT)
        varying = [v for v in (w.value(c, scope) for c in conditions) if not v.is_number or not v.number]
        seen = [*masks, *("tl.full((1, 1), 0, tl.int1)" if v.is_number else truth(v) for v in varying)]
        text = f'tl.where({" & ".join(seen)}, {value.text}, float("-inf"))' if seen else value.text
        if text != "score":
            w.line(f"score = {text}")
        scale = self.score.scale * math.log2(math.e)
        w.line(f"most_now = tl.maximum(most, tl.max(score, axis=1) * {scale!r})")
        w.line('safe = tl.where(most_now == float("-inf"), 0.0, most_now)')
        w.line(f"weight = tl.exp2(score * {scale!r} - safe[:, None])")
        w.line("kept = tl.exp2(most - safe)")
        w.line("total = total * kept + tl.sum(weight, axis=1)")
        v = self._values(last)
        dtype = self.dtype[job.v.name]
        weight = "weight" if dtype is DType.FP32 else f"weight.to({TL_DTYPE[dtype]})"
        w.line(f"attended = {w.dot(weight, v, 'attended * kept[:, None]', [dtype], self.fp32_products)}")
        w.line("most = most_now")

    def _keys(self, key: str, masks: Sequence[str]) -> str:
        """A block [INNER, KEYS] of k."""
        return self._read(self.job.k, self.addresses[0], key, self.lanes["d"], masks, "dt", "(INNER, KEYS)")

    def _values(self, last: str) -> str:
        """A block [KEYS, WIDTH] of v."""
        key = self.writer.assign(str(self.job.row), f"start + {self.writer.lanes('KEYS', '[:, None]')}")
        masks = [f"({key} < {last})"] if last else []
        return self._read(self.job.v, self.addresses[1], key, self.lanes["w"], masks, "tw", "(KEYS, WIDTH)")

    def _read(self, load: Load, a: _Keys, key: str, lanes: Scope, key_masks: Sequence[str], axes: str, full: str) -> str:
        w = self.writer
        if isinstance(a, RowDescriptor):
            start = "tl.full((), start, tl.int32)" if w.wide else "start"
            name = w.assign(load.name, a.block(start, "(KEYS, INNER)" if axes == "dt" else full))
            return f"{name}.T" if axes == "dt" else name
        if a is not None:
            mask = " & ".join([*key_masks, *lanes.masks.values()])
            return w.assign(load.name, f"tl.load({a.block('start', w.wide)}" + (f", mask={mask}, other=0)" if mask else ")"))
        masks = {**lanes.masks, **({"t": key_masks[0]} if key_masks else {})}
        letters = {**self.scalars, **lanes.letters, self.job.row: Val(key, frozenset("t"), ValueKind.INT)}
        return self._full(w.load(load, Scope(letters, masks)), axes, full, masks)


_Keys = KeyAddresses | RowDescriptor | None
"""How keys, or values, are read; None: every address anew."""


def _over(text: str, by: int) -> str:
    return text if by == 1 else f"{text} // {by}"
