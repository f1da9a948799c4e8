"""The smallest budget that the error prints is the least of all splits: against every number of pieces of every letter, one by one."""

from __future__ import annotations

from itertools import pairwise, product
from time import process_time
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.choose import best_first, lower_bound
from einpage.einsum_front.choose.best_first import smallest_first
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.opgraph import OpGraph
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from einpage.exec.planning import task_graph
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.problem.footprint import largest_footprint
from spec_strategies import random_spec, specs
from specs_small import SPECS, small_program

MOST_SPLITS = 400


def every_split(opgraph: OpGraph) -> list[dict[Letter, int]]:
    most = most_pieces(map(tiling_of, opgraph.ops), opgraph.program.extents)
    return [dict(zip(most, pieces, strict=True)) for pieces in product(*(range(1, n + 1) for n in most.values()))]


def smallest_printed(program: Program, dtype: DType, outputs: list[str]) -> int:
    with pytest.raises(DoesNotFit) as refused:
        build_graph(program, PlanRequest(0, dtype, outputs))
    found = refused.value.misfit.smallest_budget
    assert found is not None
    return found


def check(program: Program, dtype: DType, outputs: list[str]) -> bool:
    """Whether the spec has few enough splits to try them all; they are tried."""
    opgraph = fuse(program, outputs)
    splits = every_split(opgraph)
    if len(splits) > MOST_SPLITS:
        return False
    working_sets = WorkingSets(opgraph, dtype)
    stated = [found.choice.largest_bytes for found in smallest_first(working_sets, most_measured=1 << 40)]
    assert stated == sorted(working_sets.measure(pieces).largest_bytes for pieces in splits)
    least = min(largest_footprint(split(opgraph, pieces, dtype))[1] for pieces in splits)
    assert smallest_printed(program, dtype, outputs) == least
    if least:
        assert largest_footprint(build_graph(program, PlanRequest(least, dtype, outputs)).graph)[1] == least
    return True


def test_a_search_goes_on_where_it_was_left() -> None:
    """Asked again, from the beginning and while another takes from it: the same splits as ever, and none is measured twice. With other
    fixed letters it is another search."""
    opgraph = fuse(small_program("matmul_chain"), ())
    working_sets = WorkingSets(opgraph, DType.FP32)
    letter, most = max(working_sets.most.items(), key=lambda pair: pair[1])
    searched = {n: list(smallest_first(WorkingSets(opgraph, DType.FP32), {letter: n} if n else None)) for n in (0, 1, most)}
    first, left = iter(smallest_first(working_sets)), searched[0]
    assert [next(first), *smallest_first(working_sets)] == [left[0], *left]
    measured = working_sets.measured
    assert list(first) == left[1:] and list(smallest_first(working_sets)) == left and working_sets.measured == measured
    assert len(left) > 3 and all(list(smallest_first(working_sets, {letter: n})) == searched[n] for n in (1, most))
    assert searched[1] != searched[most]


RAGGED: dict[str, tuple[str, dict[str, int], list[str]]] = {
    "matmul_chain": ("matmul_chain", {"rows": 10, "width": 200, "depth": 2}, ["x"]),
    "narrow matmul_chain": ("matmul_chain", {"rows": 130, "width": 60, "depth": 1}, ["x"]),
    "mlp": ("mlp", {"batch": 3, "inner": 130, "hidden": 200, "outer": 260}, ["y"]),
    "attention": ("attention", {"batch": 1, "seq": 130, "model": 130, "heads": 2}, ["y"]),
    "gpt2": ("gpt2", {"batch": 1, "seq": 6, "layers": 1, "vocab": 130, "model": 96, "heads": 3, "ffn": 130}, ["all_logits"]),
    "llama": ("llama", {"batch": 1, "seq": 5, "layers": 1, "vocab": 130, "model": 96, "heads": 3, "kv_heads": 1, "ffn": 130}, ["logits"]),
}


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
@pytest.mark.parametrize("name", RAGGED)
def test_no_split_needs_less_than_what_is_printed(name: str, dtype: DType) -> None:
    spec, sizes, outputs = RAGGED[name]
    assert check(small_program(spec, sizes), dtype, outputs)


@pytest.mark.parametrize("many", [24, 69, 130])
def test_an_operand_that_is_read_at_two_places_needs_the_tiles_of_both(many: int) -> None:
    """Where both places lie in one tile, a task needs half of what the next one does."""
    sizes = f"{{few: 5, deep: 6, many: {many}}}\naxes: {{i: few, j: few, k: deep, p: many, q: many}}"
    program = elaborate(
        read_document(
            f"einpage: 1\nname: twice\nsizes: {sizes}\ninputs: {{x: {{axes: i q k p}}}}\n"
            "body: ['y[p,i,j] = x[i,q,k,p] * x[j,p,k,q]']\noutputs: {y: {axes: p i j}}\n",
            "twice.yaml",
        )
    )
    smallest = smallest_printed(program, DType.FP32, ["y"])
    plan_program(program, load_machine("cpu"), PlanRequest(smallest, outputs=("y",)))


def test_a_search_that_is_given_up_says_what_is_proven() -> None:
    """Of a spec whose lower bounds are low: the smallest budget lies between the bound that is stated and what was found, which works."""
    sizes = {"layers": 1, "vocab": 70, "model": 96, "heads": 3, "kv_heads": 3, "ffn": 200, "seq": 191}
    program = elaborate(load_document(SPECS / "llama.yaml"), sizes)
    with patch.object(best_first, "MOST_MEASURED", 600), pytest.raises(DoesNotFit) as refused:
        build_graph(program, PlanRequest(0, outputs=("logits",)))
    misfit = refused.value.misfit
    assert misfit.smallest_budget is not None and misfit.at_least is not None
    assert 0 < misfit.at_least < misfit.smallest_budget
    assert f"smallest budget found to work: {misfit.smallest_budget} bytes (none under {misfit.at_least} bytes does)" in str(refused.value)
    build_graph(program, PlanRequest(misfit.smallest_budget, outputs=("logits",)))


def check_made(text: str, grain: int) -> bool:
    program = elaborate(read_document(text, "made.yaml"))
    with patch.object(tiling, "GRAIN", grain), patch.object(template, "GRAIN", grain), patch.object(lower_bound, "GRAIN", grain):
        return check(program, DType.FP32, [o.name for o in program.outputs])


IN_PLACE_AFTER_ANOTHER_READER, NEEDED_IN_PART = 223, 302
"""Seeds: an addition may be written in place of a value once another output has read it; tiles of a value are of no use to any output."""


@pytest.mark.parametrize("seed", [IN_PLACE_AFTER_ANOTHER_READER, NEEDED_IN_PART])
def test_the_order_of_tasks_and_tiles_of_no_use_are_counted(seed: int) -> None:
    assert check_made(random_spec(seed, most_statements=4), (1, 2, 4, 64)[seed % 4])


@given(specs(most_statements=3), st.sampled_from([1, 2, 4, 64]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_of_any_spec(text: str, grain: int) -> None:
    check_made(text, grain)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_hundreds_of_specs() -> None:
    assert sum(check_made(random_spec(seed, most_statements=4), (1, 2, 4, 64)[seed % 4]) for seed in range(400)) > 300


LARGER: dict[str, tuple[str, DType, dict[str, int], str, int]] = {
    "gpt2": ("gpt2", DType.BF16, {"layers": 1, "vocab": 1000, "model": 192, "heads": 3, "seq": 100}, "all_logits", 87552),
    "matmul_chain": ("matmul_chain", DType.FP32, {"depth": 2, "width": 1000, "rows": 200}, "x", 72192),
}


@pytest.mark.parametrize("name", LARGER)
def test_what_coarsest_first_misses(name: str) -> None:
    """Specs of which the coarse-to-fine descent ends above the smallest budget; it plans there, and not a byte below."""
    spec, dtype, sizes, output, least = LARGER[name]
    program = elaborate(load_document(SPECS / f"{spec}.yaml"), sizes)
    assert smallest_printed(program, dtype, [output]) == least
    planned = plan_program(program, load_machine("cpu"), PlanRequest(least, dtype, (output,)))
    assert planned.report.verified is True and planned.report.peak_bytes == least


TWELVE = """
einpage: 1
name: twelve
sizes: {n: 1}
axes: {a: n, b: n + 3, c: n + 5, d: n + 7, e: n + 9, f: n + 11, g: n + 13}
inputs: {x: {axes: a b}}
weights:
  w0: {axes: b c, from: w0}
  w1: {axes: c d, from: w1}
  w2: {axes: d e, from: w2}
  w3: {axes: e f, from: w3}
  w4: {axes: f g, from: w4}
  w5: {axes: g b, from: w5}
body:
  - y0[a,c] = x[a,b] * w0[b,c]
  - y1[a,c] = softmax[c](y0[a,c]) * y0[a,c]
  - y2[a,d] = y1[a,c] * w1[c,d]
  - y3[a,e] = y2[a,d] * w2[d,e]
  - y4[a,e] = y3[a,e] * rsqrt(mean[e](y3[a,e]**2) + 1)
  - y5[a,f] = y4[a,e] * w3[e,f]
  - y6[a,g] = y5[a,f] * w4[f,g]
  - y7[a,g] = softmax[g](y6[a,g])
  - y8[a,b] = y7[a,g] * w5[g,b]
  - y9[a,b] = y8[a,b] + x[a,b]
  - y10[a,c] = y9[a,b] * w0[b,c]
  - y11[a,d] = y10[a,c] * w1[c,d]
outputs: {y11: {axes: a d}}
"""


@pytest.mark.parametrize(
    ("spec", "sizes", "budget"),
    [
        ("llama", {}, 1 << 20),
        ("llama", {"seq": 1_000_000}, 1 << 20),
        ("gpt2", {"seq": 1024, "batch": 1000}, 4096),
        *(("twelve", {"n": n}, 256) for n in (100, 1000, 20_000, 1_000_000)),
    ],
)
def test_a_refusal_comes_soon_and_makes_no_graph(spec: str, sizes: dict[str, int], budget: int) -> None:
    """The figures of a refusal are those of the patterns of a split: no task is made, whatever the model's size."""
    program = elaborate(read_document(TWELVE, "twelve.yaml") if spec == "twelve" else load_document(SPECS / f"{spec}.yaml"), sizes)
    began = process_time()
    with patch.object(task_graph, "split", side_effect=AssertionError("a graph was made")), pytest.raises(DoesNotFit) as refused:
        build_graph(program, PlanRequest(budget))
    assert process_time() - began < (2 if spec == "llama" else 5)
    misfit = refused.value.misfit
    assert misfit.at_least is not None and budget < misfit.at_least <= misfit.wanted
    assert misfit.smallest_budget in (misfit.wanted, None)


def test_where_there_are_too_many_tasks_to_count_only_what_is_proven_is_said() -> None:
    program = elaborate(load_document(SPECS / "llama.yaml"), {"layers": 1, "seq": 700})
    with patch.object(task_graph, "MOST_COUNTED", 3), pytest.raises(DoesNotFit) as refused:
        build_graph(program, PlanRequest(4096))
    misfit = refused.value.misfit
    assert misfit.smallest_budget is None and misfit.at_least is not None and 4096 < misfit.at_least <= misfit.wanted
    assert str(refused.value).endswith(f"no budget under {misfit.at_least} bytes works")


@given(st.integers(1, 5000), st.integers(1, 300))
def test_longest_and_shortest_are_those_of_the_cuts(extent: int, most: int) -> None:
    most = min(most, extent)
    longest, shortest = tiling.longest_and_shortest(extent, most)
    for pieces in range(1, most + 1):
        points = tiling.cuts(extent, pieces)
        lengths = [b - a for a, b in pairwise(points)]
        assert len(lengths) == pieces and points[0] == 0 and points[-1] == extent
        assert (longest[pieces - 1], shortest[pieces - 1]) == (max(lengths), min(lengths)) == (lengths[0], lengths[-1])
