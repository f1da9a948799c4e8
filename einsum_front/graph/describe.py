"""What an op computes, for a person: `gelu(sum[i](x * w1) + b1)`, `silu(gate) * up; takes in gate, up`, `rows of embed`; and statements.

In: an op over slots (so that equal layers get equal text) and the bases of the values fused into it. Out: a line of text in the spec's own
names; a temporary of ours is never named in it. A definition's statements are text as a spec has them, but for the names of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einpage.einsum_front.algebra.expr import Acc, Binary, Call, Expr, Letter, Load, Name, Num, Reduce, Reduction, substitute, text
from einpage.einsum_front.algebra.rewrite import axes_only
from einpage.einsum_front.graph.opgraph import AttentionOp, ContractOp, FusedOp, GatherOp, MapOp, OverflowOp, PairsOp, is_bare_contraction
from einpage.einsum_front.graph.program import Definition

LONGEST = 88
"""A formula longer than this many characters ends in `…`."""


def display_name(base: str) -> str:
    """The name of a value for a person: a temporary is a part of the value from whose statement it was hoisted."""
    name, tilde, _ = base.partition("~")
    return f"part of {name}" if tilde else name


def describe(op: FusedOp, fused: Sequence[str]) -> str:
    """What `op` computes where a line can hold it, and the values of the user that exist only inside it."""
    names = list(dict.fromkeys(base for base in fused if "~" not in base))
    formula = _formula(op, fused)
    if len(formula) > LONGEST:
        formula = formula[: LONGEST - 1] + "…"
    return "; ".join(part for part in (formula, f"takes in {', '.join(names)}" if names else "") if part)


def statements(definition: Definition) -> Iterator[str]:
    """A line for each part: `d_q.1[b,s,0,e] = d_r.1[b, s, 0, e] * cos(s * 0.3)`."""
    for part in definition.parts:
        target = f"{definition.name}[{','.join(map(text, part.target))}]" if part.target else definition.name
        yield f"{target} = {text(part.expr)}"


def _formula(op: FusedOp, fused: Sequence[str]) -> str:
    match op:
        case MapOp():
            first = op.parts[0].expr
            copies = len(op.parts) == 1 and isinstance(first, Load)
            return f"copy of {text(_readable(first, []))}" if copies else ""
        case ContractOp():
            bases = ("~",) if is_bare_contraction(op) else fused[: len(op.contractions)]
            return text(_readable(op.epilogue, [_sum(base, c.letters, c.x, c.y) for base, c in zip(bases, op.contractions, strict=True)]))
        case AttentionOp():
            score = _readable(op.score, [_sum("~", op.score_letters, op.q, op.k)])
            weights = Reduce(Reduction.SOFTMAX, (op.row,), score)
            product = Binary("*", weights, _readable(op.v, []))
            return text(_readable(op.epilogue, [Name(""), product]))
        case PairsOp():
            sums = [_sum("~", c.letters, c.x, c.y) for c in op.products]
            weight = _readable(op.weight, sums)
            term = weight if op.factor is None else Binary("*", weight, _readable(op.factor, []))
            total: Expr = Reduce(Reduction.SUM, op.letters, Call("exp", (term,)) if op.is_logarithm else term)
            return text(_readable(op.epilogue, [*sums, Call("log", (total,)) if op.is_logarithm else total]))
        case GatherOp():
            return f"rows of {display_name(op.load.name)}"
        case OverflowOp():
            before = "" if op.before is None else f"or {display_name(op.before.name)}, "
            return f"whether {display_name(op.checked.name)} is not finite, {before}by the flags of its tiles"


def _sum(base: str, letters: tuple[Letter, ...], x: Load, y: Load) -> Expr:
    """A contraction by the user's name for it, else as the sum it is."""
    return Reduce(Reduction.SUM, letters, Binary("*", _readable(x, []), _readable(y, []))) if "~" in base else Name(base)


def _readable(e: Expr, sums: Sequence[Expr]) -> Expr:
    """`e` with accumulators as `sums`, loads by letters without their letters, and numbers to four digits."""

    def step(node: Expr) -> Expr | None:
        match node:
            case Acc(index):
                return sums[index]
            case Load(name, indices):
                if axes_only(node) is not None or "~" in name:
                    return Name(display_name(name))
                return Load(name, tuple(_readable(i, sums) for i in indices))
            case Num(float() as value):
                return Num(float(f"{value:.4g}"))
        return None

    return substitute(e, step)
