"""Einstein's summation convention made explicit: in a product, a letter that is not kept and is in two or more factors is summed.

In: a resolved expression and the letters its target keeps. Out: the same with a `Reduce(SUM, …)` around every product that
sums. A product is a chain of `*` and `/`; an expression in brackets is a factor, with sums of its own. A letter that is neither
kept nor summed would vanish silently: that is an error.

    y[i] = a[i,j] * b[j,k] * c[k]           sum over j, k of the chain
    y[i] = silu(a[i,j] * b[j]) * c[i]       the product inside silu sums over j
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Reduce, Reduction, Unary, walk
from einpage.einsum_front.base.errors import Span, listing
from einpage.einsum_front.spec.source import SourceFile

_Unbound: TypeAlias = dict[Letter, Span]
"""Letters neither kept nor summed yet, each with the place of its first appearance, in that order."""


def with_sums(e: Expr, kept: Collection[Letter], source: SourceFile) -> Expr:
    """`e` with its sums written out; `kept` are the target's letters. Raises SpecError for a silent reduction."""
    found, unbound = _sums(e, frozenset(kept))
    for letter, span in unbound.items():
        cure = f"write `sum[{letter}](…)` or another reduction, multiply by a factor that has `{letter}`, or put `{letter}` on the target"
        message = f"`{letter}` is not on the target, and only one factor of its product contains it: it would vanish silently"
        raise source.error(span, message, exists=f"the target has {listing(kept)}", cure=cure)
    return found


def factors(e: Expr) -> tuple[tuple[str, Expr], ...]:
    """The chain `a * b / c` as (("*", a), ("*", b), ("/", c)); an expression that is no chain is its own only factor."""
    first, spine = _chain_nodes(e)
    return (("*", first), *((node.op, node.y) for node in spine))


def _chain_nodes(e: Expr) -> tuple[Expr, tuple[Binary, ...]]:
    """The first factor of the chain `e`, and the nodes that apply the others, in order."""
    spine: list[Binary] = []
    while isinstance(e, Binary) and e.op in ("*", "/") and not (spine and e.is_factor):
        spine.append(e)
        e = e.x
    return e, tuple(reversed(spine))


def _sums(e: Expr, kept: frozenset[Letter]) -> tuple[Expr, _Unbound]:
    match e:
        case Binary("*" | "/"):
            return _product(e, kept)
        case Binary():
            x, unbound_x = _sums(e.x, kept)
            y, unbound_y = _sums(e.y, kept)
            same = x is e.x and y is e.y
            return e if same else replace(e, x=x, y=y), unbound_x | {k: v for k, v in unbound_y.items() if k not in unbound_x}
        case Unary():
            x, unbound = _sums(e.x, kept)
            return e if x is e.x else replace(e, x=x), unbound
        case Call():
            found = [_sums(a, kept) for a in e.args]
            merged: _Unbound = {}
            for _, unbound in found:
                merged = merged | {k: v for k, v in unbound.items() if k not in merged}
            return replace(e, args=tuple(a for a, _ in found)), merged
        case Reduce():
            body, unbound = _sums(e.body, kept | frozenset(e.letters))
            if e.op is Reduction.SOFTMAX:
                unbound = unbound | {letter: e.span for letter in e.letters if letter not in kept}
            return e if body is e.body else replace(e, body=body), unbound
        case Axis() | Load():
            return e, _letters(e, kept)
        case _:
            return e, {}


def _letters(e: Expr, kept: frozenset[Letter]) -> _Unbound:
    """Letters in index positions: a product there is arithmetic on positions and sums nothing."""
    found: _Unbound = {}
    for node in walk(e):
        if isinstance(node, Axis) and node.letter not in kept:
            found.setdefault(node.letter, node.span)
    return found


def _product(e: Binary, kept: frozenset[Letter]) -> tuple[Expr, _Unbound]:
    chain = factors(e)
    factors_with_sums = [_sums(factor, kept) for _, factor in chain]
    span_by_letter: _Unbound = {}
    count: dict[Letter, int] = {}
    for _, unbound in factors_with_sums:
        for letter, span in unbound.items():
            span_by_letter.setdefault(letter, span)
            count[letter] = count.get(letter, 0) + 1
    summed = tuple(letter for letter in span_by_letter if count[letter] >= 2)
    product = _chain(e, [factor for factor, _ in factors_with_sums])
    unbound = {k: v for k, v in span_by_letter.items() if count[k] == 1}
    return (Reduce(Reduction.SUM, summed, product, e.span) if summed else product), unbound


def _chain(e: Expr, replaced: list[Expr]) -> Expr:
    """The chain `e` with its factors replaced by `replaced`, spans kept."""
    built = replaced[0]
    for node, factor in zip(_chain_nodes(e)[1], replaced[1:], strict=True):
        built = replace(node, x=built, y=factor, is_factor=False)
    return built
