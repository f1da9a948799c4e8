"""Products of every form, signs first: what a spec's chain of `*`, `/` and minus computes is what numpy makes of the same tree.

Trees are drawn, written as text and evaluated here, with no help of the front-end: factors and divisors, summed or not, negated before,
inside and outside brackets, quotients of quotients, squares, numbers. Data is never near 0 and of either sign, so any of them may divide.
Never makes: a sum within a factor; a letter of extent 1 alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from real_bytes import direct

EXTENT = {"i": 3, "j": 4, "k": 5, "l": 2}
LETTERS = "".join(EXTENT)
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Tree:
    """Text that may stand as an operand of `*` and `/` on either side, and its value over all of LETTERS."""

    text: str
    value: Callable[[dict[str, Array]], Array]
    letters: frozenset[str]


def load(letters: str) -> Tree:
    """A weight over these letters, by a name that says them."""
    shape = [EXTENT[x] if x in letters else 1 for x in LETTERS]
    order = sorted(range(len(letters)), key=lambda d: LETTERS.index(letters[d]))
    return Tree(f"w_{letters}[{','.join(letters)}]", lambda data: data[f"w_{letters}"].transpose(order).reshape(shape), frozenset(letters))


def minus(x: Tree) -> Tree:
    return Tree(f"-{x.text}", lambda data: -x.value(data), x.letters)


def bracketed(x: Tree) -> Tree:
    return Tree(f"({x.text})", x.value, x.letters)


def square(x: Tree) -> Tree:
    return Tree(f"({x.text}) ** 2", lambda data: x.value(data) ** 2, x.letters)


def number(n: float) -> Tree:
    return Tree(f"{n}", lambda data: np.full((1,) * len(LETTERS), n), frozenset())


def times(x: Tree, y: Tree) -> Tree:
    return Tree(f"{x.text} * {y.text}", lambda data: x.value(data) * y.value(data), x.letters | y.letters)


def over(x: Tree, y: Tree) -> Tree:
    return Tree(f"{x.text} / {y.text}", lambda data: x.value(data) / y.value(data), x.letters | y.letters)


words = st.lists(st.sampled_from(LETTERS), min_size=1, max_size=3, unique=True).map("".join)
leaves = st.one_of(words.map(load), words.map(load), words.map(load), st.sampled_from((2, 0.5)).map(number))


@st.composite
def chains(draw: st.DrawFn, depth: int = 2) -> Tree:
    """One to four factors, each perhaps a chain in brackets."""
    found: Tree | None = None
    for _ in range(draw(st.integers(1 if depth < 2 else 2, 4))):
        factor = draw(leaves) if not depth or draw(st.integers(0, 3)) else bracketed(draw(chains(depth=depth - 1)))
        form = draw(st.sampled_from(("", "", "-", "(-", "square")))
        if form == "square":
            factor = square(factor)
        elif form:
            factor = minus(factor) if form == "-" else bracketed(minus(factor))
        found = factor if found is None else draw(st.sampled_from((times, times, over)))(found, factor)
    assert found is not None
    return minus(bracketed(found)) if draw(st.integers(0, 4)) == 0 else found


def spec(chain: Tree, kept: str, summed: str, written: bool) -> tuple[str, list[str]]:
    """A spec with the one statement `y[kept] = chain`, and the letters of each weight."""
    used = sorted(set(re.findall(r"w_\w+", chain.text)))
    sizes = ", ".join(f"n{x}: {n}" for x, n in EXTENT.items())
    axes = ", ".join(f"{x}: n{x}" for x in EXTENT)
    weights = "".join(f"  {w}: {{axes: {' '.join(w[2:])}, from: {w}}}\n" for w in used)
    body = f"sum[{','.join(summed)}]({chain.text})" if written and summed else chain.text
    at = f"y[{','.join(kept)}]" if kept else "y"
    out = " ".join(kept) or '""'
    head = f"einpage: 1\nname: product\nsizes: {{{sizes}}}\naxes: {{{axes}}}\n" + (f"weights:\n{weights}" if used else "")
    return f"{head}body:\n  - '{at} = {body}'\noutputs:\n  y: {{axes: {out}}}\n", used


def computed(text: str, data: dict[str, Array], pieces: int, epilogues: bool) -> Array:
    """What the task graph of the spec gives, its letters cut into so many pieces where they can be."""
    program = elaborate(read_document(text, "product.yaml"))
    opgraph = fuse(program, None, FuseOptions(epilogues=epilogues))
    with patch.object(tiling, "GRAIN", 1), patch.object(template, "GRAIN", 1):
        most = most_pieces(map(tiling_of, opgraph.ops), program.extents)
        graph = split(opgraph, {x: min(pieces, n) for x, n in most.items() if n > 1 < pieces}, DType.FP32)
    return direct(graph, data)["y"].double().numpy()


def check(chain: Tree, kept: str, written: bool, pieces: int, epilogues: bool = True) -> None:
    summed = "".join(x for x in LETTERS if x in chain.letters and x not in kept)
    text, used = spec(chain, kept, summed, written)
    rng = np.random.default_rng(len(text))
    data = {w: rng.uniform(0.5, 2, [EXTENT[x] for x in w[2:]]) * rng.choice((-1, 1), [EXTENT[x] for x in w[2:]]) for w in used}
    value = np.broadcast_to(chain.value(data), [n if x in kept or x in summed else 1 for x, n in EXTENT.items()])
    dims = tuple(d for d, x in enumerate(LETTERS) if x not in kept)
    order = [sorted(kept, key=LETTERS.index).index(x) for x in kept]
    want, size = value.sum(dims).transpose(order), np.abs(value).sum(dims).max()
    got = computed(text, {w: array.astype(np.float32) for w, array in data.items()}, pieces, epilogues)
    assert got.shape == want.shape
    error = float(np.abs(got - want).max())
    assert error <= 1e-5 * size, f"off by {error} of {size}, in {pieces} pieces:\n{text}"


A, W, C = load("ik"), load("jk"), load("j")


@given(chains(), st.lists(st.sampled_from(LETTERS), max_size=3, unique=True).map("".join), st.integers(1, 3), st.booleans())
@example(times(minus(A), W), "ij", 1, True)
@example(times(minus(A), minus(W)), "ij", 1, True)
@example(over(times(A, minus(C)), bracketed(minus(W))), "ij", 1, True)
@example(over(A, bracketed(over(W, C))), "ij", 2, True)
@example(over(times(A, W), minus(C)), "ij", 2, False)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_written_sum_of_any_chain(chain: Tree, kept: str, pieces: int, epilogues: bool) -> None:
    kept = "".join(x for x in kept if x in chain.letters)
    check(chain, kept, True, pieces, epilogues)


@st.composite
def matrix_products(draw: st.DrawFn) -> tuple[Tree, str]:
    """Two factors that share summed letters, and others over kept ones, negated, divided by and in any order; and the kept letters."""
    shared = draw(st.sampled_from(("k", "l", "kl")))
    left, right = ("".join(draw(st.permutations(x + shared))) for x in "ij")
    rest = draw(st.lists(st.sampled_from(("i", "j", "ij", "")), max_size=2))
    factors = [(load(left), True), (load(right), True), *((load(word) if word else number(2), False) for word in rest)]
    found: Tree | None = None
    for factor, _ in draw(st.permutations(factors)):
        signed = draw(st.sampled_from((lambda x: x, minus, lambda x: bracketed(minus(x)), square)))(factor)
        found = signed if found is None else draw(st.sampled_from((times, over)))(found, signed)
    assert found is not None
    return found, draw(st.sampled_from(("ij", "ji")))


@given(matrix_products(), st.integers(1, 3), st.booleans())
@example((times(minus(A), W), "ij"), 1, True)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_sum_that_nobody_wrote(product: tuple[Tree, str], pieces: int, epilogues: bool) -> None:
    check(*product, False, pieces, epilogues)


PAIRS = ["".join(p) for p in permutations("ijkl", 2)]
READS = {
    "one element": lambda u, v: f"2 * p[{u},{v}] + c[{v}]",
    "two elements": lambda u, v: f"p[{u},{v}] - 3 * p[{v},{u}]",
    "an element and a row": lambda u, v: f"p[{u},{v}] + p[{u},0] * c[{v}]",
    "the same twice": lambda u, v: f"p[{u},{v}] * tanh(p[{u},{v}])",
    "a diagonal": lambda u, v: f"p[{u},{u}] - c[{v}]",
    "summed again": lambda u, v: f"sum[{u}](p[{u},{v}] * c[{u}]) + 0 * c[{u}]",
}


@pytest.mark.parametrize("form", READS)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_product_is_read_by_any_letters(form: str, pair: str) -> None:
    """By those that it sums, too: p[i,j] = x[i,k] * w[j,k], all four letters of one extent."""
    u, v = pair
    text = f"""einpage: 1
name: letters
sizes: {{n: 4}}
axes: {{i: n, j: n, k: n, l: n}}
weights:
  x: {{axes: i k, from: x}}
  w: {{axes: j k, from: w}}
  c: {{axes: i, from: c}}
body:
  - p[i,j] = x[i,k] * w[j,k]
  - y[{u},{v}] = {READS[form](u, v)}
outputs:
  y: {{axes: {u} {v}}}
"""
    rng = np.random.default_rng(1)
    data = {"x": rng.uniform(-1, 1, (4, 4)), "w": rng.uniform(-1, 1, (4, 4)), "c": rng.uniform(-1, 1, 4)}
    p, c = data["x"] @ data["w"].T, data["c"]
    want = {
        "one element": 2 * p + c,
        "two elements": p - 3 * p.T,
        "an element and a row": p + p[:, :1] * c,
        "the same twice": p * np.tanh(p),
        "a diagonal": np.diag(p)[:, None] - c,
        "summed again": np.broadcast_to(c @ p, (4, 4)),
    }[form]
    for pieces in (1, 2):
        got = computed(text, {name: array.astype(np.float32) for name, array in data.items()}, pieces, epilogues=True)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
