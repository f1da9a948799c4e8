"""Triton source of a PairsJob: blocks of rows, each against blocks of what is summed, weights never leaving registers.

In: a job. Out: its one launch. A program takes ROWS of the letters that are not summed, all of one batch index, and steps through the
numbers of the row letter that the mask can leave for them (KEYS at a time, as an attention does), for each value of the other summed
letters. A logarithm keeps a running maximum. Published as FlashAttention-2's backward pass (Dao, 2023), by queries or by keys.
Its plain-torch twin is on_torch/pairs.py.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import (
    Acc,
    Axis,
    Binary,
    Expr,
    Letter,
    Load,
    Reduce,
    Reduction,
    children,
    free_letters,
    loads,
    substitute,
    walk,
)
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Contraction, MapJob, PairsJob, Part
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.on_triton.contract import letters_of
from einpage.kernels.on_triton.key_bounds import SeenKeys, key_bounds, masked_score
from einpage.kernels.tiles.attention_tiles import pairs_tiles
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import cover
from einpage.kernels.writer.launch import Launch
from einpage.kernels.writer.values import NONE, Val, arithmetic
from einpage.kernels.writer.writer import TL_DTYPE, Scope, Writer


def pairs_launches(job: PairsJob, target: Target) -> list[Launch]:
    """The kernel of `job` on `target`. Raises Unsupported where it cannot be written."""
    return [_PairsGenerator(job, target).launch()]


def added_rows(job: PairsJob) -> MapJob:
    """A job without products as a reduction over rows, which are compared, not looked up: no order of additions is left open."""
    assert job.factor is not None, "a job of pairs without products adds rows"
    total = Reduce(Reduction.SUM, job.letters, Binary("*", job.weight, job.factor))
    epilogue = substitute(job.epilogue, lambda node: total if node == Acc(0) else None)
    return MapJob(job.ranges, job.reads, job.result, (Part(tuple(map(Axis, job.target)), epilogue),))


class _PairsGenerator:
    """Writes the kernel of one job of pairs."""

    def __init__(self, job: PairsJob, target: Target) -> None:
        self.job = job
        self.writer = w = Writer(job.reads, job.result, job.ranges)
        self.extent = {r.letter: r.extent for r in job.ranges}
        self.dtype = {v.name: v.dtype for v in job.reads}
        self.outer = [x for x in job.letters if x != job.row]
        """Summed letters that a loop goes through one value at a time."""
        self.sides = [(c.y, c.x) if job.row in letters_of(c.x) else (c.x, c.y) for c in job.products]
        """Of each product, what rows have, and what the row letter goes through."""
        self._roles()
        self.row_count, self.batch_count = self._extent(self.rows), self._extent(self.batch)
        self.keys, self.width = self.extent[job.row], self._extent(self.own)
        multiplied = [load for pair in self.sides for load in pair] + ([job.factor] if job.factor else [])
        dtypes = {self.dtype[load.name] for load in multiplied}
        dtype = dtypes.pop() if len(dtypes) == 1 else DType.FP32
        depths = [self._extent(c.letters) for c in job.products]
        self.fp32_products = Fp32Products.IEEE
        self.tiles = target.attention or pairs_tiles(dtype, len(depths), max(*depths, self.width), self.row_count)
        self.size = {"ROWS": cover(self.row_count, self.tiles.rows, 16), "KEYS": cover(self.keys, self.tiles.columns, 16)}
        self.size |= {f"INNER_{n}": cover(depth, 1 << 30, 16) for n, depth in enumerate(depths)}
        self.depths = depths
        if job.factor is not None:
            self.size["WIDTH"] = cover(self.width, 1 << 30, 16)
        self.blocks = -(-self.row_count // self.size["ROWS"])
        self.scalars: dict[Letter, Val] = {}
        self.loaded: dict[int, str] = {}
        self.queries = Scope({}, {})
        w.names |= {"program", "block", "first", "row", "most", "total", "most_now", "safe", "weight", "start", "other", *self.size}

    def _extent(self, letters: Sequence[Letter]) -> int:
        return prod(self.extent[x] for x in letters)

    def _roles(self) -> None:
        """Target letters as batch, rows and those of the factor alone; the letter that the mask compares with the row letter outermost."""
        job = self.job
        of_factor = set() if job.factor is None else letters_of(job.factor)
        summed = {x for c in job.products for x in c.letters}
        through = set().union(*(letters_of(load) for _, load in self.sides)) - summed
        of_pairs = through.union(*(letters_of(load) for load, _ in self.sides)) - summed
        self.batch = [x for x in job.target if x in of_pairs and x in through | of_factor]
        rows = [x for x in job.target if x in of_pairs and x not in self.batch]
        self.own = [x for x in job.target if x not in of_pairs]
        conditions = masked_score(job.score).conditions
        self.bounds = key_bounds(conditions, job.row, rows, self.batch, lambda load: not self.dtype[load.name].is_float)
        compared = {x for bound in self.bounds for x, _ in bound.letters}
        self.rows = sorted(rows, key=lambda x: (x not in compared, rows.index(x)))

    def launch(self) -> Launch:
        job, w = self.job, self.writer
        w.expect([job.weight, job.epilogue])
        w.line(f"program = {w.program()}")
        w.line(f"block = program % {self.blocks}")
        self.scalars = w.split(f"(program // {self.blocks})", self.batch, "")
        w.line("first = block * ROWS")
        w.line(f"row = first + tl.arange(0, ROWS)[:, None]  # [{' '.join(self.rows)}]")
        ragged = self.row_count % self.size["ROWS"] > 0
        inside = w.assign("row_inside", f"tl.minimum(row, {self.row_count - 1})") if ragged else "row"
        self.queries = Scope({**self.scalars, **w.split(inside, self.rows, "r")}, {})
        self._load_rows(self.outer)
        self._hoist(job.weight)
        if job.factor is None:
            w.line("total = tl.zeros((ROWS,), tl.float32)")
        else:
            w.line("total = tl.zeros((ROWS, WIDTH), tl.float32)")
        if job.is_logarithm:
            w.line('most = tl.full((ROWS,), float("-inf"), tl.float32)')
        self._loops()
        n = len(job.products)
        own = w.split("row", self.rows, "r") if ragged else {}
        masks = {"r": f"(row < {self.row_count})"} if ragged else {}
        if job.factor is None:
            text = "total"
            if job.is_logarithm:
                text = 'tl.where(total == 0.0, float("inf"), tl.log(tl.where(total == 0.0, 1.0, total)) + most)'
            scope = Scope({**self.queries.letters, **own}, masks)
            scope.accs = {n: Val(w.assign("sums", f"({text})[:, None]"), frozenset("r"), ValueKind.FLOAT)}
            w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, scope), scope, "r")
        else:
            lanes = self._width()
            scope = Scope({**self.queries.letters, **own, **lanes.letters}, {**masks, **lanes.masks})
            scope.accs = {n: Val("total", frozenset("rw"), ValueKind.FLOAT)}
            w.store(tuple(Axis(x) for x in job.target), w.value(job.epilogue, scope), scope, "rw")
        what = f"{job.result.name}: rows over {' '.join(self.rows) or 'nothing'}, sums over {' '.join(job.letters)}"
        return w.launch("pairs_kernel", what, self.size, self.blocks * self.batch_count, self.tiles)

    def _width(self) -> Scope:
        """The factor's own letters along WIDTH."""
        w = self.writer
        width = w.assign("width", f"{w.lanes('WIDTH', '[None, :]')}  # [{' '.join(self.own)}]")
        masks = {"w": w.assign("width_mask", f"{width} < {self.width}")} if self.width < self.size["WIDTH"] else {}
        return Scope(w.split(width, self.own, "w"), masks)

    def _inner(self, n: int, shape: str) -> Scope:
        """The summed letters of product `n`."""
        w, letters = self.writer, self.job.products[n].letters
        inner = w.assign("inner", f"{w.lanes(f'INNER_{n}', shape)}  # [{' '.join(letters)}]")
        masks = {"d": w.assign("inner_mask", f"{inner} < {self.depths[n]}")} if self.depths[n] < self.size[f"INNER_{n}"] else {}
        return Scope(w.split(inner, letters, "d"), masks)

    def _load_rows(self, changing: Collection[Letter]) -> None:
        """Blocks [ROWS, INNER] of what rows have, but for what depends on letters that change later."""
        for n, (load, _) in enumerate(self.sides):
            if n in self.loaded or letters_of(load) & set(changing):
                continue
            lanes = self._inner(n, "[None, :]")
            letters = {**self.queries.letters, **self.scalars, **lanes.letters}
            self.loaded[n] = self._block(load, Scope(letters, lanes.masks), "rd", f"(ROWS, INNER_{n})")

    def _block(self, load: Load, scope: Scope, axes: str, full: str) -> str:
        """`load` along all of `axes`, 0 where masks say so."""
        w = self.writer
        loaded = w.load(load, scope)
        if loaded.axes == frozenset(axes):
            return loaded.text
        text = f"tl.broadcast_to({loaded.text}, {full})"
        outside = [f"tl.broadcast_to({m}, {full})" for a, m in scope.masks.items() if a not in loaded.axes and a in axes]
        return w.assign("block", f"tl.where({' & '.join(outside)}, {text}, 0)" if outside else text)

    def _hoist(self, e: Expr) -> None:
        """Read before the loops whatever of a weight does not depend on what is summed."""
        moving = {*self.job.letters}
        if not any(isinstance(n, Load | Acc) or free_letters(n) & moving for n in walk(e)):
            return
        if not free_letters(e) & moving and loads(e) and not any(isinstance(n, Acc) for n in walk(e)):
            value = self.writer.value(e, self.queries)
            if not value.is_number:
                self.queries.memo[(e, False)] = Val(self.writer.assign("known", value.text), value.axes, value.kind)
        elif not isinstance(e, Load):
            for child in children(e):
                self._hoist(child)

    def _loops(self) -> None:
        """Over the outer letters, then over blocks of the row letter."""
        w = self.writer
        seen = SeenKeys(w, self.job.row, self.bounds, self.rows, self.scalars)
        start, end = seen.bound(False, False) or "0", seen.bound(True, True) or str(self.keys)
        if self.bounds:
            start = w.assign("from_key", f"tl.maximum({start}, 0) // KEYS * KEYS")
        if not self._extent(self.outer) > 1:
            self.scalars = {**self.scalars, **{x: Val("0", NONE, ValueKind.INT) for x in self.outer}}
            self._over_keys(start, end)
            return
        with w.loop("other", f"range(0, {self._extent(self.outer)})"):
            at = w.assign("at", "tl.full((), other, tl.int64)" if w.wide else "other")
            self.scalars = {**self.scalars, **w.split(at, self.outer, "")}
            self._over_keys(start, end)

    def _over_keys(self, start: str, end: str) -> None:
        w = self.writer
        self._load_rows(())
        with w.loop("start", f"range({start}, {end}, KEYS)"):
            self._step()

    def _step(self) -> None:
        """One block of pairs: its products, weights, and what they add."""
        job, w = self.job, self.writer
        key = w.assign(str(job.row), f"start + {w.lanes('KEYS', '[None, :]')}")
        mask = w.assign("key_mask", f"{key} < {self.keys}") if self.keys % self.size["KEYS"] else ""
        letters = {**self.queries.letters, **self.scalars, job.row: Val(key, frozenset("t"), ValueKind.INT)}
        scope = Scope(letters, {"t": mask} if mask else {}, dict(self.queries.memo))
        accs = {}
        for n, c in enumerate(job.products):
            name = w.assign("product", self._product(n, c, key, mask))
            accs[n] = Val(name, frozenset("rt"), ValueKind.FLOAT)
        scope.accs = accs
        value = arithmetic(w.value(job.weight, scope), False)
        text = value.text if value.axes == frozenset("rt") else f"({value.text} + tl.zeros((ROWS, KEYS), tl.float32))"
        if mask:
            nothing = 'float("-inf")' if job.is_logarithm else "0.0"
            text = f"tl.where({mask}, {text}, {nothing})"
        w.line(f"weight = {text}")
        if job.factor is not None:
            dtype = self.dtype[job.factor.name]
            weight = "weight" if dtype is DType.FP32 else f"weight.to({TL_DTYPE[dtype]})"
            w.line(f"total = {w.dot(weight, self._factor(job.factor, key), 'total', [dtype], self.fp32_products)}")
        elif job.is_logarithm:
            w.line("most_now = tl.maximum(most, tl.max(weight, axis=1))")
            w.line('safe = tl.where(most_now == float("-inf"), 0.0, most_now)')
            w.line("total = total * tl.exp(most - safe) + tl.sum(tl.exp(weight - safe[:, None]), axis=1)")
            w.line("most = most_now")
        else:
            w.line("total += tl.sum(weight, axis=1)")

    def _product(self, n: int, c: Contraction, key: str, mask: str) -> str:
        """A block [ROWS, KEYS] of product `n`."""
        w, load = self.writer, self.sides[n][1]
        lanes = self._inner(n, "[:, None]")
        letters = {**self.scalars, **lanes.letters, self.job.row: Val(key, frozenset("t"), ValueKind.INT)}
        masks = {**lanes.masks, **({"t": mask} if mask else {})}
        through = self._block(load, Scope(letters, masks), "dt", f"(INNER_{n}, KEYS)")
        dtypes = [self.dtype[side.name] for side in self.sides[n]]
        wide = "" if dtypes[0] is dtypes[1] else ".to(tl.float32)"
        return w.dot(self.loaded[n] + wide, through + wide, "", dtypes, self.fp32_products)

    def _factor(self, factor: Load, key: str) -> str:
        """A block [KEYS, WIDTH] of the factor."""
        w = self.writer
        down = w.assign(str(self.job.row), f"start + {w.lanes('KEYS', '[:, None]')}")
        lanes = self._width()
        letters = {**self.scalars, **lanes.letters, self.job.row: Val(down, frozenset("t"), ValueKind.INT)}
        masks = {**lanes.masks, "t": f"({down} < {self.keys})"}
        return self._block(factor, Scope(letters, masks), "tw", "(KEYS, WIDTH)")
