"""What the text of a kernel promises for tensors that no test could hold: offsets that do not wrap, products in full precision.

Jobs over tensors of up to 2**38 elements (a terabyte) are written, never run: kernel_ranges bounds every integer of their text.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Acc, Expr, Letter, Reduction
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, Contraction, ContractJob, MapJob, Part, Range, View

pytest.importorskip("triton")

from einpage.kernels.launch.kernel import launches_of, triton_kernel
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.target import CAPABILITIES, Choices, Target
from einpage.kernels.writer import kernel_text
from kernel_ranges import overflows
from kernels_build import ex, fn, ld, letters, op, red, view
from kernels_cases import ATTENTIONS, CONTRACTS
from kernels_maps import MAPS
from kernels_naive import assert_right

DTYPES = st.sampled_from((DType.FP32, DType.BF16, DType.FP16))


def assert_no_offset_wraps(job: MapJob | ContractJob | AttentionJob, target: Target) -> None:
    assume(all(box.size <= 1 << 38 for view in (*job.reads, job.result) for box in view.boxes))
    for launch in launches_of(job, target):
        assert overflows(launch) == [], launch.text


def large(draw: st.DrawFn, most: dict[str, int]) -> dict[str, int]:
    """Extents of 2**n, or one or two less, that together reach far beyond 32 bits or fall a little short of it."""
    return {c: max(1, (1 << draw(st.integers(0, n))) - draw(st.integers(0, 2))) for c, n in most.items()}


def ranges(extent: dict[str, int]) -> tuple[Range, ...]:
    return tuple(Range(Letter(c), 0, n) for c, n in extent.items())


@st.composite
def attentions(draw: st.DrawFn) -> AttentionJob:
    extent = large(draw, {"b": 6, "k": 4, "g": 3, "s": 26, "t": 27, "d": 7, "e": 7})
    end = {c: extent[c] for c in extent}
    dtype = draw(DTYPES)

    def factor(name: str, word: str) -> tuple[View, str]:
        order = "".join(draw(st.permutations(word)))
        return view(name, *(end[c] for c in order), dtype=dtype), order

    (q_view, q), (k_view, k), (v_view, v), (o_view, o) = (
        factor("q", "bkgsd"),
        factor("p", "bktd"),
        factor("v", "bkte"),
        factor("o", "bkgse"),
    )
    score: Expr = op("*", Acc(0), 0.125)
    masks = {"none": None, "causal": op("<=", "t", "s"), "window": op("<", op("-", "s", "t"), 4096)}
    mask = masks[draw(st.sampled_from(sorted(masks)))]
    if mask is not None:
        score = fn("where", mask, score, -math.inf)
    reads, keys, values = (q_view, k_view, v_view), ld("p", *k), ld("v", *v)
    return AttentionJob(
        ranges(extent), reads, o_view, ld("q", *q), keys, letters("d"), score, Letter("t"), values, letters(o), Acc(1)
    )  # fmt: skip


def long_attention(score: Expr) -> AttentionJob:
    """2**35 elements of keys, a head beside the other."""
    extent = {"k": 8, "s": 128, "t": 1 << 25, "d": 128, "e": 64}
    shape = {word: view(name, *(extent[c] for c in word)) for name, word in zip("qpvo", ("skd", "tkd", "tke", "ske"), strict=True)}
    q, k, v, o = shape.values()
    loads = [ld(name, *word) for name, word in zip("qpv", shape, strict=False)]
    return AttentionJob(
        ranges(extent), (q, k, v), o, loads[0], loads[1], letters("d"), score, Letter("t"), loads[2], letters("ske"), Acc(1)
    )  # fmt: skip


@st.composite
def products(draw: st.DrawFn) -> ContractJob:
    extent = large(draw, {"b": 4, "s": 24, "u": 6, "f": 24, "m": 26, "n": 6})

    def factor(name: str, word: str) -> tuple[View, str]:
        order = "".join(draw(st.permutations(word)))
        return view(name, *(extent[c] for c in order)), order

    (x_view, x), (y_view, y), (o_view, o) = factor("x", "bsumn"), factor("y", "bfmn"), factor("o", "bsuf")
    pair = Contraction(ld("x", *x), ld("y", *y), letters("mn"))
    return ContractJob(ranges(extent), (x_view, y_view), o_view, (pair,), letters(o), Acc(0), None, True)


@st.composite
def rows(draw: st.DrawFn) -> MapJob:
    extent = large(draw, {"a": 6, "b": 20, "c": 20})
    (x, y), out = (draw(st.permutations("abc")) for _ in range(2)), draw(st.permutations("abc"))
    body: Expr = op("+", ld("x", *x), ld("y", *y))
    form = draw(st.sampled_from(("pointwise", "row", "row in a row")))
    if form != "pointwise":
        row = red(draw(st.sampled_from((Reduction.MEAN, Reduction.MAX, Reduction.SUM))), "c", body)
        body = op("-", body, row if form == "row" else red(Reduction.MIN, "b", row))
    reads = (view("x", *(extent[c] for c in x)), view("y", *(extent[c] for c in y)))
    return MapJob(ranges(extent), reads, view("r", *(extent[c] for c in out)), (Part(tuple(ex(c) for c in out), body),))


targets = st.sampled_from(CAPABILITIES).map(Target)
many = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@given(attentions(), targets)
@example(long_attention(Acc(0)), Target(90))
@example(long_attention(fn("where", op("<=", "t", "s"), Acc(0), -math.inf)), Target(80))
@many
def test_no_offset_of_an_attention_wraps(job: AttentionJob, target: Target) -> None:
    assert_no_offset_wraps(job, target)


@given(products(), targets)
@many
def test_no_offset_of_a_product_wraps(job: ContractJob, target: Target) -> None:
    assert_no_offset_wraps(job, target)


@given(rows(), targets)
@many
def test_no_offset_of_a_map_wraps(job: MapJob, target: Target) -> None:
    assert_no_offset_wraps(job, target)


@pytest.mark.interpreter
@pytest.mark.parametrize("name", ["windowed", "key_tiles", "no_mask", "layer_norm", "joint_softmax", "embedding_tiled"])
def test_wide_kernels_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_text, "MOST_IN_32_BITS", 0)
    case = {**ATTENTIONS, **MAPS}[name]()
    out = case.poisoned()
    triton_kernel(case.job)(case.operands(), out, None)
    assert_right(case, out)


def dots(text: str) -> Iterator[tuple[str, str | None]]:
    """Every `tl.dot` of a kernel, and the precision that it asks for."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.dot":
            (precision,) = [ast.literal_eval(k.value) for k in node.keywords if k.arg == "input_precision"] or [None]
            yield ast.unparse(node), precision


@pytest.mark.parametrize("asked", list(Fp32Products))
@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("name", [*ATTENTIONS, *CONTRACTS])
def test_products_of_fp32_keep_all_their_bits(name: str, capability: int, asked: Fp32Products) -> None:
    """Without a word Triton multiplies fp32 as tf32, which keeps eleven bits; the interpreter does not, so no result here shows it."""
    job = {**ATTENTIONS, **CONTRACTS}[name]().job
    assert isinstance(job, ContractJob | AttentionJob)
    factors = [
        load.name for load in ((job.q, job.k, job.v) if isinstance(job, AttentionJob) else (job.contractions[0].x, job.contractions[0].y))
    ]
    half = all(v.dtype in (DType.BF16, DType.FP16) for v in job.reads if v.name in factors)
    (launch,) = launches_of(job, Target(capability, choices=Choices(asked)))
    found = dots(launch.text)
    assert found
    for text, precision in found:
        assert precision == (None if half else asked.value), text
    assert launch.fp32_products is (None if half else asked), "what is reported is what is written"
