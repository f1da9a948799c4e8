"""Random jobs for kernels.

`map_jobs` never makes: an index that depends on data, two statements, a comparison of computed numbers (a rounding could turn it), an
argument outside a function's domain, reductions more than three deep. `contract_jobs` never makes: a chain, more than two contractions, a
letter of extent 0. `attention_jobs` never makes: an index that is not a letter, an operand in two roles, a mask that depends on floats;
`pairs_jobs` neither, nor more than two products.
"""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Acc, Axis, Expr, Letter, Load, Reduction, Unary, loads, walk
from einpage.einsum_front.algebra.functions import FUNCTIONS
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, Box, Contraction, ContractJob, MapJob, PairsJob, Part, Range, View
from kernels_build import ex, fill, fn, ld, letters, op, red
from kernels_naive import Case
from naive_functions import POSITIVE

DEPTH = 6
FLOATS = st.sampled_from((DType.FP32, DType.FP32, DType.BF16, DType.FP16))


@st.composite
def tiles(draw: st.DrawFn, name: str, shape: tuple[int, ...], dtype: DType) -> View:
    """A view of a whole value, in one to four tiles."""
    boxes = [Box((0,) * len(shape), shape)]
    for d, extent in enumerate(shape):
        if extent > 1 and len(boxes) < 3 and draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(1, extent - 1))
            boxes = [
                Box((*b.start[:d], lo, *b.start[d + 1 :]), (*b.end[:d], hi, *b.end[d + 1 :]))
                for b in boxes
                for lo, hi in ((0, at), (at, extent))
            ]
    return View(name, dtype, tuple(boxes))


@st.composite
def ranges(draw: st.DrawFn, word: str, most: int = 6) -> tuple[Range, ...]:
    return tuple(Range(x, start, start + draw(st.integers(1, most))) for x in letters(word) for start in (draw(st.integers(0, 2)),))


@st.composite
def places_along(draw: st.DrawFn, letter: str, end: int) -> tuple[Expr, int]:
    """An index over a letter below `end`, and how long the dimension must be: mostly the letter itself, else shifted, apart, reversed."""
    kind = draw(st.sampled_from(["plain", "plain", "plain", "shifted", "apart", "reversed"]))
    if kind == "shifted":
        return op("+", letter, 1), end + 1
    if kind == "apart":
        return op("*", letter, 2), 2 * end - 1
    return (op("-", end - 1, letter), end) if kind == "reversed" else (ex(letter), end)


@st.composite
def map_jobs(draw: st.DrawFn) -> Case:
    word = "abc"
    r = draw(ranges(word))
    end = {q.letter: q.end for q in r}
    dtype = draw(FLOATS)
    reads: list[View] = []
    places: list[Load] = []
    for name in ("x", "y", "w"):
        own = draw(st.permutations(word))[: draw(st.integers(1, 3))]
        indices, shape = zip(*(draw(places_along(c, end[Letter(c)])) for c in own), strict=True)
        reads.append(draw(tiles(name, shape, dtype)))
        places.append(ld(name, *indices))
    bound = draw(st.sets(st.sampled_from(word), max_size=2))
    target = "".join(draw(st.permutations([c for c in word if c not in bound or draw(st.booleans())])))
    free = frozenset(c for c in word if c in target)
    body = draw(expressions(places, free, frozenset(bound), draw(st.integers(2, DEPTH))))
    by = {q.letter: q for q in r}
    box = Box(tuple(by[Letter(c)].start for c in target), tuple(by[Letter(c)].end for c in target))
    job = MapJob(r, tuple(reads), View("r", dtype, (box,)), (Part(tuple(ex(c) for c in target), body),))
    return fill(job, draw(st.integers(0, 99)))


@st.composite
def expressions(draw: st.DrawFn, places: list[Load], free: frozenset[str], bound: frozenset[str], depth: int, nest: int = 3) -> Expr:
    """An expression whose free letters are in `free`; `bound` may still be bound by a reduction, of which `nest` lie in each other."""

    def more(inside: frozenset[str] = free, nested: int = nest) -> Expr:
        return draw(expressions(places, inside, bound, depth - 1, nested))

    here = [p for p in places if {n for i in p.indices for n in _names(i)} <= free]
    if depth == 0:
        atoms = (
            [st.sampled_from([0.5, -1.25, 2, 3])]
            + ([st.sampled_from(here)] * 4 if here else [])
            + ([st.sampled_from(sorted(free))] if free else [])
        )
        return ex(draw(st.one_of(atoms)))
    kinds = ["+", "-", "*", "/", "/", "minus", "fn", "where", "minmax", "axis", "square", "reduce", "reduce", "leaf"]
    kind = draw(st.sampled_from(kinds))
    if kind in ("+", "-", "*"):
        return op(kind, more(), more())
    if kind == "/":
        divisor = op("+", fn("abs", more()), 0.5)
        return op("/", more(), draw(st.sampled_from((divisor, Unary("-", divisor), op("/", divisor, 2)))))
    if kind == "minus":
        return Unary("-", more())
    if kind == "fn":
        name = draw(st.sampled_from([f.name for f in FUNCTIONS.values() if f.arity == 1]))
        inner = fn("tanh", more()) if name in ("exp", "sin", "cos") else op("+", fn("abs", more()), 0.5) if name in POSITIVE else more()
        return fn(name, inner)
    if kind == "where" and len(free) > 1:
        a, b = draw(st.permutations(sorted(free)))[:2]
        test = op(
            draw(st.sampled_from(["<", "<=", "==", "!=", ">", ">="])),
            a,
            op(draw(st.sampled_from(["+", "-", "%", "//"])), b, draw(st.integers(1, 3))),
        )
        return fn("where", test, more(), more())
    if kind == "minmax":
        return fn(draw(st.sampled_from(["min", "max"])), more(), more())
    if kind == "axis" and free:
        return op("*", op(draw(st.sampled_from(["%", "//", "**"])), draw(st.sampled_from(sorted(free))), 2), 0.25)
    if kind == "square":
        return op("**", more(), 2)
    if kind == "reduce" and bound and nest:
        rows = "".join(sorted(draw(st.sets(st.sampled_from(sorted(bound)), min_size=1))))
        reduction = draw(st.sampled_from(list(Reduction)))
        if reduction is Reduction.SOFTMAX and not set(rows) <= free:
            reduction = Reduction.MEAN
        return red(reduction, rows, more(free | set(rows), nest - 1))
    return draw(expressions(places, free, bound, 0, nest))


def _names(e: Expr) -> set[str]:
    return {str(n.letter) for n in walk(e) if isinstance(n, Axis)}


@st.composite
def contract_jobs(draw: st.DrawFn) -> Case:
    """Letters b c (batch), s u (rows), f g (columns), m n (inner), each group of any size, in any order everywhere."""
    groups = {role: draw(st.integers(0, 2)) for role in ("bc", "su", "fg", "mn")}
    batch, rows, columns, inner = (word[:count] for word, count in groups.items())
    r = draw(ranges("bcsufgmn", 5))
    by = {q.letter: q for q in r}
    dtype = draw(FLOATS)

    def factor(name: str, word: str) -> tuple[View, Load]:
        own = draw(st.permutations(word))
        return draw(tiles(name, tuple(by[Letter(c)].end for c in own), dtype)), ld(name, *own)

    (x_view, x), (y_view, y) = factor("x", batch + rows + inner), factor("y", batch + columns + inner)
    target = "".join(draw(st.permutations(batch + rows + columns)))
    c_view, c = factor("c", draw(st.sampled_from([target, target[:1], ""])))
    contractions = [Contraction(x, y, letters(inner))]
    forms = (
        *(Acc(0), op("+", c, Acc(0)), op("*", fn("silu", Acc(0)), c), fn("tanh", op("+", Acc(0), c))),
        *(Unary("-", Acc(0)), op("-", c, Acc(0)), op("-", Acc(0), c), op("/", Acc(0), op("+", fn("abs", c), 0.5))),
    )
    epilogue: Expr = draw(st.sampled_from(forms))
    reads = [x_view, y_view, c_view]
    if draw(st.booleans()):
        z_view, z = factor("z", draw(st.sampled_from([batch + columns + inner, columns + inner, inner])))
        reads.append(z_view)
        contractions.append(Contraction(x, z, letters(inner)))
        epilogue = op("+", epilogue, op("*", Acc(1), 0.5))
    used = tuple(q for q in r if q.letter in batch + rows + columns + inner)
    box = Box(tuple(by[Letter(k)].start for k in target), tuple(by[Letter(k)].end for k in target))
    return fill(
        ContractJob(used, tuple(reads), View("out", dtype, (box,)), tuple(contractions), letters(target), epilogue, None, True),
        draw(st.integers(0, 99)),
    )


SCORES = (
    Acc(0),
    op("*", Acc(0), 0.3),
    op("/", op("*", 2.0, Acc(0)), 3.0),
    op("*", fn("tanh", op("/", Acc(0), 2.0)), 2.0),
    op("+", op("*", Acc(0), 0.5), op("*", op("-", "t", "s"), 0.1)),
    op("-", op("/", Acc(0), 2.0), op("*", op("**", 2.0, op("-", 0, "g")), fn("abs", op("-", "s", "t")))),
    op("*", op("+", Acc(0), ld("bias", "k", "s", "t")), 0.7),
    op("+", Acc(0), op("*", ld("bias", "k", "s", "t"), ld("slope", "g"))),
    op("-", 0.0, Acc(0)),
    Unary("-", op("*", Acc(0), 0.3)),
    op("/", Acc(0), -2.0),
    op("-", ld("bias", "k", "s", "t"), op("*", Acc(0), 0.5)),
)
MASKS = (
    op("<=", "t", "s"),
    op("<", "t", op("+", "s", 3)),
    op(">", op("+", "t", 4), "s"),
    op(">=", "t", "s"),
    op("<", op("-", "s", "t"), 9),
    op("<", "t", ld("lengths", "b")),
    op(">=", "t", op("-", ld("lengths", "b"), 20)),
    op("<", "t", 7),
    op("==", op("//", "s", 4), op("//", "t", 4)),
    op("or", op("==", op("%", "t", 2), 0), op("==", "t", "s")),
    op("!=", "t", "s"),
    op("<=", op("+", "t", "g"), "s"),
    op("<", op("*", 2, "t"), "s"),
    op("<", op("-", "s", "t"), op("+", op("*", 3, "k"), 2)),
    Unary("not", op("and", op(">", "t", "s"), op("==", "k", 1))),
)


@st.composite
def attention_jobs(draw: st.DrawFn) -> Case:
    """Letters b k (batch), g (a group's queries), s (queries), t (keys), d z (summed), e (of v alone), in any order everywhere."""
    summed = draw(st.sampled_from(["d", "dz"]))
    own = draw(st.sampled_from(["e", "ez", "d"]))
    summed, own = ("d", "e") if set(own) & set(summed) and own != "d" else (summed, own)
    extent = {
        x: draw(st.integers(1, most)) for x, most in (("b", 2), ("k", 2), ("g", 3), ("s", 20), ("t", 45), ("d", 5), ("z", 3), ("e", 4))
    }
    start = {x: draw(st.integers(0, 5)) if x in "st" else 0 for x in extent}
    dtype = draw(FLOATS)
    end = {x: start[x] + n for x, n in extent.items()}

    def factor(name: str, word: str) -> tuple[View, Load]:
        order = draw(st.permutations(word))
        return draw(tiles(name, tuple(end[c] for c in order), dtype)), ld(name, *order)

    batch = "bk" if draw(st.booleans()) else "k"
    (q_view, q), (k_view, k), (v_view, v) = factor("q", "bkgs" + summed), factor("p", batch + "t" + summed), factor("v", "bkt" + own)
    target = "".join(draw(st.permutations("bkgs" + own)))
    gate_view, gate = factor("gate", draw(st.sampled_from([target, target[:2]])))
    score = draw(st.sampled_from(SCORES))
    masks = draw(st.lists(st.sampled_from(MASKS), max_size=3))
    if masks:
        condition = masks[0]
        for mask in masks[1:]:
            condition = op("and", condition, mask)
        score = fn("where", condition, score, -math.inf)
    epilogue = draw(st.sampled_from([Acc(1), Acc(1), op("*", Acc(1), fn("sigmoid", gate)), op("+", gate, op("*", Acc(1), 2.0))]))
    used = {*target, *summed, "t"}
    reads = [q_view, k_view, v_view]
    reads += [View("bias", dtype, (Box((0, 0, 0), (end["k"], end["s"], end["t"])),)), View("slope", dtype, (Box((0,), (end["g"],)),))]
    reads += [View("lengths", DType.INT32, (Box((0,), (end["b"],)),)), gate_view]
    named = {load.name for e in (score, epilogue) for load in loads(e)} | {"q", "p", "v"}
    job = AttentionJob(
        tuple(Range(Letter(x), start[x], end[x]) for x in sorted(used)),
        tuple(view for view in reads if view.name in named),
        View("o", dtype, (Box(tuple(start[c] for c in target), tuple(end[c] for c in target)),)),
        q, k, letters(summed), score, Letter("t"), v, letters(target), epilogue,
    )  # fmt: skip
    lengths = np.array([draw(st.integers(0, 50)) for _ in range(end["b"])])
    return fill(job, draw(st.integers(0, 99)), lengths=lengths)


@st.composite
def pairs_jobs(draw: st.DrawFn) -> Case:
    """Letters as in `attention_jobs`, c summed in a second product: sums over t, over s and g, or over one of these."""
    over = draw(st.sampled_from(["t", "t", "sg", "gs", "s"]))
    extent = {
        x: draw(st.integers(1, most))
        for x, most in (("b", 2), ("k", 2), ("g", 3), ("s", 20), ("t", 45), ("d", 5), ("z", 3), ("c", 4), ("e", 4))
    }
    start = {x: draw(st.integers(0, 5)) if x in "st" else 0 for x in extent}
    dtype = draw(FLOATS)
    end = {x: start[x] + n for x, n in extent.items()}

    def factor(name: str, word: str) -> tuple[View, Load]:
        order = draw(st.permutations(word))
        return draw(tiles(name, tuple(end[x] for x in order), dtype)), ld(name, *order)

    summed = draw(st.sampled_from(["d", "dz"]))
    batch = "bk" if draw(st.booleans()) else "k"
    (q_view, q), (k_view, k), (g_view, g), (v_view, v) = (
        *(factor("q", "bkgs" + summed), factor("p", batch + "t" + summed)),
        *(factor("grad", "bkgsc"), factor("v", "bktc")),
    )
    score = draw(st.sampled_from(SCORES))
    masks = draw(st.lists(st.sampled_from(MASKS), max_size=2))
    mask: Expr | None = None
    for one in masks:
        mask = one if mask is None else op("and", mask, one)
    hidden = score if mask is None else fn("where", mask, score, -math.inf)
    products = [Contraction(q, k, letters(summed))]
    is_logarithm = draw(st.booleans())
    weight: Expr = hidden if is_logarithm else fn("exp", op("-", hidden, op("+", fn("abs", ld("logs", *"bkgs")), 3.0)))
    if not is_logarithm and draw(st.booleans()):
        products.append(Contraction(g, v, letters("c")))
        weight = op("*", weight, op("-", Acc(1), ld("rows", *"bkgs")))
    kept = "".join(x for x in "bkgst" if x not in over)
    own = "" if is_logarithm or draw(st.integers(0, 3)) == 0 else draw(st.sampled_from(["e", "d", "dz"]))
    summed_in_products = {x for c in products for x in c.letters}
    own = "" if is_logarithm else "e" if set(own) & summed_in_products else own
    f_view, f = factor("f", draw(st.sampled_from(["bk", "k"])) + over + own) if own else (None, None)
    target = "".join(draw(st.permutations(kept + own)))
    scale = draw(st.sampled_from([Acc(len(products)), op("/", Acc(len(products)), 3.0)]))
    reads = [q_view, k_view, g_view, v_view, *([f_view] if f_view else [])]
    reads += [View("bias", dtype, (Box((0, 0, 0), (end["k"], end["s"], end["t"])),)), View("slope", dtype, (Box((0,), (end["g"],)),))]
    reads += [View("lengths", DType.INT32, (Box((0,), (end["b"],)),))]
    rows = tuple(end[x] for x in "bkgs")
    reads += [View(name, DType.FP32, (Box((0,) * 4, rows),)) for name in ("logs", "rows")]
    named = {load.name for load in loads(weight)} | {load.name for c in products for load in (c.x, c.y)} | ({"f"} if own else set())
    used = {*kept, *over, *own, *summed_in_products}
    box = Box(tuple(start[x] for x in target), tuple(end[x] for x in target))
    job = PairsJob(
        tuple(Range(Letter(x), start[x], end[x]) for x in sorted(used)),
        tuple(view for view in reads if view.name in named),
        View("o", dtype if own else DType.FP32, (box,)),
        tuple(products), Acc(0) if mask is None else fn("where", mask, Acc(0), -math.inf), weight, f, letters(over),
        Letter("t" if over == "t" else "s"), is_logarithm, letters(target), scale,
    )  # fmt: skip
    lengths = np.array([draw(st.integers(0, 50)) for _ in range(end["b"])])
    return fill(job, draw(st.integers(0, 99)), lengths=lengths)


@st.composite
def added_rows_jobs(draw: st.DrawFn) -> Case:
    """Rows over b s are added to rows v, of letters m e, where an index says; some indices are of other tiles."""
    extent = {x: draw(st.integers(1, most)) for x, most in (("b", 3), ("s", 9), ("v", 12), ("m", 4), ("e", 3))}
    start = {x: draw(st.integers(0, 3)) if x in "vm" else 0 for x in extent}
    end, dtype = {x: start[x] + n for x, n in extent.items()}, draw(FLOATS)
    own = draw(st.sampled_from(["m", "me"]))
    over = draw(st.sampled_from(["b", "s", "bs"]))
    target, order = "".join(draw(st.permutations("v" + own))), draw(st.permutations(over + own))
    of_index = draw(st.permutations(over))
    ids = ld("ids", *of_index)
    weight = fn("where", draw(st.sampled_from([op("==", ids, "v"), op("==", "v", ids)])), 1, 0)
    rows = draw(tiles("rows", tuple(end[x] for x in order), dtype))
    index = draw(tiles("ids", tuple(end[x] for x in of_index), DType.INT32))
    box = Box(tuple(start[x] for x in target), tuple(end[x] for x in target))
    job = PairsJob(
        tuple(Range(Letter(x), start[x], end[x]) for x in sorted({*target, *over})), (index, rows), View("o", dtype, (box,)),
        (), Acc(0), weight, ld("rows", *order), letters(over), Letter(over[0]), False, letters(target),
        draw(st.sampled_from([Acc(0), op("*", Acc(0), 0.5)])),
    )  # fmt: skip
    numbers = [draw(st.integers(0, end["v"] + 2)) for _ in range(int(np.prod([end[x] for x in of_index])))]
    return fill(job, draw(st.integers(0, 99)), ids=np.array(numbers).reshape([end[x] for x in of_index]))
