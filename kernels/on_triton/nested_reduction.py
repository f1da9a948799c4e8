"""A reduction that depends on letters of an enclosing one, within it: a loop over its letters, for all lanes of a block at once.

In: the reduction and the scope it is read in. Out: its value in that scope. Slower than a reduction of whole rows, and never wrong.

    y[s] = min[n](sum[m](x[s,m,n])):    lanes [s, n];  for m: total += x[s, m, n];  then the minimum over n
"""

from __future__ import annotations

from math import prod

from einpage.einsum_front.algebra.expr import Reduce, Reduction
from einpage.kernels.instructions.value_kind import ValueKind
from einpage.kernels.writer.values import Val, arithmetic
from einpage.kernels.writer.writer import SHAPE, Scope, Writer

NEUTRAL = {Reduction.SUM: "0.0", Reduction.MEAN: "0.0", Reduction.MAX: 'float("-inf")', Reduction.MIN: 'float("inf")'}
NAME = {Reduction.SUM: "total", Reduction.MEAN: "total", Reduction.MAX: "largest", Reduction.MIN: "least"}
JOIN = {Reduction.SUM: "{} + {}", Reduction.MEAN: "{} + {}", Reduction.MAX: "tl.maximum({}, {})", Reduction.MIN: "tl.minimum({}, {})"}


def inline(w: Writer, r: Reduce, scope: Scope) -> Val:
    """`r` for every lane of `scope`."""
    axes = frozenset(scope.masks)
    if r.op is Reduction.SOFTMAX:
        most = _loop(w, r, Reduction.MAX, scope)
        most = w.assign("row_max", f'tl.where({most} == float("-inf"), 0.0, {most})')
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
