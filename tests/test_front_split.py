"""Fused and split graphs compute what the eager reference computes, for any split; working sets are counted as the planner counts them."""

from __future__ import annotations

import itertools
from math import prod
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.choose.coarsest_first import candidates, coarse_to_fine
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.graph.job import AttentionJob
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import GRAIN, Cuts, cuts, merged, most_pieces, tiling_of
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.problem.footprint import largest_footprint
from real_bytes import direct
from specs_small import SMALL, SPECS, small_data, small_program, tensors

TOLERANCE = 1e-5
WHOLE, IN_PARTS = FuseOptions(), FuseOptions(attention=False)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected.double()).abs().max() / expected.abs().max())


def everything(name: str) -> list[str]:
    return [o.name for o in small_program(name).outputs]


@st.composite
def splits(draw: st.DrawFn, name: str, options: FuseOptions = WHOLE) -> dict[Letter, int]:
    """Any split the rules allow, several letters at once. Never one that is refused."""
    program = small_program(name)
    most = most_pieces(map(tiling_of, fuse(program, everything(name), options).ops), program.extents)
    return {letter: n for letter, top in most.items() if (n := draw(st.integers(1, min(top, 4)))) > 1}


@pytest.mark.parametrize(("name", "options"), [*((name, WHOLE) for name in SMALL), ("attention", IN_PARTS)])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_any_split_computes_the_reference(name: str, options: FuseOptions, data: st.DataObject) -> None:
    program, pieces = small_program(name), data.draw(splits(name, options))
    values = small_data(program)
    graph = split(fuse(program, everything(name), options), pieces, DType.FP32)
    got = direct(graph, values)
    expected = evaluate(
        program, tensors([i.name for i in program.inputs], values), tensors([w.name for w in program.weights], values), torch.float64
    )
    for output, tensor in expected.items():
        assert relative(got[output], tensor) <= TOLERANCE, f"{name} {output} under {pieces}"


@pytest.mark.parametrize("name", SMALL)
def test_each_fusion_can_be_left_out(name: str) -> None:
    program = small_program(name)
    values = small_data(program, seed=1)
    expected = direct(split(fuse(program, everything(name)), {}, DType.FP32), values)
    for options in (FuseOptions(attention=False), FuseOptions(maps=False), FuseOptions(epilogues=False), FuseOptions(False, False, False)):
        got = direct(split(fuse(program, everything(name), options), {}, DType.FP32), values)
        for output, tensor in expected.items():
            assert relative(got[output], tensor) <= TOLERANCE, f"{name} {output} with {options}"


@pytest.mark.parametrize("pieces", [{}, {"s": 3}, {"s": 3, "k": 3}])
def test_a_causal_mask_leaves_empty_blocks_out(pieces: dict[Letter, int]) -> None:
    graph = split(fuse(small_program("llama", {"seq": 640})), pieces, DType.FP32)
    for task in graph.tasks:
        if isinstance(task.job, AttentionJob):
            ranges = {r.letter: r for r in task.job.ranges}
            s, t = ranges[Letter("s")], ranges[Letter("t")]
            assert t.end <= -(-s.end // GRAIN) * GRAIN, f"{task.name} reads keys up to {t.end} for queries up to {s.end}"


def test_fusion_of_a_llama_layer() -> None:
    opgraph = fuse(small_program("llama"))
    layer = [op for op in opgraph.ops if op.loop == (1,)]
    kinds = [type(op).__name__ for op in layer]
    assert kinds == [
        "MapOp",
        "ContractOp",
        "ContractOp",
        "ContractOp",
        "MapOp",
        "MapOp",
        "AttentionOp",
        "ContractOp",
        "MapOp",
        "ContractOp",
        "ContractOp",
    ]
    assert opgraph.unfused == ()
    twin = layer[9]
    assert len(twin.contractions) == 2 and twin.fused[:2] == ("gate", "up")


def test_no_tensor_holds_the_scores() -> None:
    seq = 257
    graph = split(fuse(small_program("llama", {"seq": seq})), {}, DType.FP32)
    for value in graph.values:
        assert value.shape.count(seq) < 2, f"{value.name} {value.shape} is as large as the scores"


def test_without_attention_fusion_the_scores_are_there() -> None:
    seq = 257
    opgraph = fuse(small_program("llama", {"seq": seq}), None, IN_PARTS)
    graph = split(opgraph, {}, DType.FP32)
    assert any(value.shape.count(seq) == 2 for value in graph.values)
    assert opgraph.unfused == ("o: attention is left in parts, as asked; its scores are a tensor",)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16])
def test_a_choice_states_the_planners_largest_working_set(name: str, dtype: DType) -> None:
    opgraph = fuse(small_program(name), everything(name))
    path = list(coarse_to_fine(WorkingSets(opgraph, dtype), {}))
    assert len(path) >= 2
    for choice in path[:: max(1, len(path) // 6)] + path[-1:]:
        task, nbytes = largest_footprint(split(opgraph, choice.by_letter, dtype))
        assert choice.largest_bytes <= nbytes <= 1.02 * choice.largest_bytes, f"{name} {choice.pieces}: planner {nbytes}, at task {task}"


def test_a_smaller_budget_gives_a_finer_split_that_fits() -> None:
    program = small_program("llama")
    opgraph = fuse(program)
    (whole,) = candidates(WorkingSets(opgraph, DType.FP32), 1 << 40)
    assert whole.pieces == ()
    with pytest.raises(DoesNotFit) as refused:
        build_graph(program, PlanRequest(256))
    smallest = refused.value.misfit.smallest_budget
    assert smallest is not None and smallest < whole.largest_bytes // 2
    for budget in (whole.largest_bytes, whole.largest_bytes // 2, smallest):
        assert largest_footprint(build_graph(program, PlanRequest(budget)).graph)[1] <= budget
    with pytest.raises(DoesNotFit, match=f"smallest budget that works: {smallest} bytes"):
        build_graph(program, PlanRequest(smallest - 1))


def test_templates_are_made_once_however_many_splits_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def made_again(*_: object) -> None:
        raise AssertionError("the templates of a model with thousands of layers take seconds")

    monkeypatch.setattr("einpage.einsum_front.tile.split.templates_of", made_again)
    assert build_graph(small_program("llama"), PlanRequest(130_000, DType.FP32)).graph.split


def test_a_fixed_split_stays() -> None:
    working_sets = WorkingSets(fuse(small_program("llama")), DType.FP32)
    for budget in (1 << 40, 200_000):
        assert all(dict(c.pieces)[Letter("v")] == 2 for c in candidates(working_sets, budget, {Letter("v"): 2}))


@pytest.mark.parametrize(
    ("pieces", "says"),
    [({"j": 2}, "'j'"), ({"v": 10_000}, "1 to 3 pieces"), ({"e": 2}, "'e'"), ({"v": 0}, "1 to 3"), ({"m": 2}, "too short")],
)
def test_an_impossible_split_is_refused(pieces: dict[Letter, int], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        split(fuse(small_program("llama")), pieces, DType.FP32)


def test_an_unknown_output_is_refused() -> None:
    with pytest.raises(UsageError, match="declared: logits, all_logits"):
        fuse(small_program("llama"), ["logit"])


def sizes(points: Cuts) -> list[int]:
    return [b - a for a, b in itertools.pairwise(points)]


@given(st.integers(1, 5000), st.integers(1, 80))
def test_there_are_as_many_pieces_as_asked_and_none_is_short(extent: int, pieces: int) -> None:
    points = cuts(extent, pieces)
    found = sizes(points)
    assert points[0] == 0 and points[-1] == extent and len(found) == min(pieces, extent)
    assert found == sorted(found, reverse=True), "a sample of tiles takes the first for the longest"
    assert found[-1] >= min(GRAIN, extent // len(found))
    finer = sizes(cuts(extent, pieces + 1))
    assert finer[0] <= found[0]
    assert found[0] <= found[-1] + 1 or found[0] % 8 == 0


SIDES = """einpage: 1
name: sides
sizes: {{S: {s}, H: {h}, D: {d}, M: {m}, E: {e}}}
axes: {{s: S, h: H, d: D, m: M, e: E}}
inputs:
  x: {{axes: s m e}}
weights:
  w: {{axes: h d m e, from: w}}
body:
  - y[s,h,d] = x[s,m,e] * w[h,d,m,e]
outputs:
  y: {{axes: s h d}}
"""


@settings(max_examples=40, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys("shdme", st.one_of(st.integers(1, 9), st.sampled_from((13, 48, 63, 64, 65, 130))))), st.data())
def test_no_side_of_a_product_is_cut_under_the_grain(extents: dict[str, int], data: st.DataObject) -> None:
    """Rows, columns and summed letters: each side has GRAIN elements or is whole, into however many pieces its letters are cut."""
    program = elaborate(read_document(SIDES.format(**extents), "sides.yaml"))
    opgraph = fuse(program)
    most = most_pieces(map(tiling_of, opgraph.ops), program.extents)
    pieces = {letter: n for letter, top in most.items() if (n := data.draw(st.sampled_from((top, max(1, top - 1), 1)))) > 1}
    for task in split(opgraph, pieces, DType.FP32).tasks:
        assert task.job is not None
        have = {r.letter: r.extent for r in task.job.ranges}
        for side in ("s", "hd", "me"):
            whole = prod(extents[x] for x in side)
            assert prod(have[Letter(x)] for x in side) >= min(GRAIN, whole), f"{side} in {pieces}"


@pytest.mark.parametrize(
    ("extent", "pieces", "first", "last"),
    [(1536, 5, 320, 256), (50257, 8, 6336, 5905), (50257, 785, 65, 64), (1000, 15, 67, 66), (150, 2, 80, 70), (5, 9, 1, 1)],
)
def test_sizes_of_pieces(extent: int, pieces: int, first: int, last: int) -> None:
    found = sizes(cuts(extent, pieces))
    assert (len(found), found[0], found[-1]) == (min(pieces, extent), first, last)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 40))
def test_pieces_taken_together_are_as_short_as_can_be(widths: list[int], least: int) -> None:
    """Against every way of leaving points out."""
    points = (0, *itertools.accumulate(widths))
    least = min(least, points[-1])
    kept = [(0, *some, points[-1]) for n in range(len(widths)) for some in itertools.combinations(points[1:-1], n)]
    allowed = [max(sizes(some)) for some in kept if min(sizes(some)) >= least]
    found = merged(points, least)
    assert set(found) <= set(points) and found[0] == 0 and found[-1] == points[-1]
    assert min(sizes(found)) >= least and max(sizes(found)) == min(allowed)


def test_only_needed_tiles_are_computed() -> None:
    """The last position alone is asked for: with lengths given as data every row may be needed, with `all_logits` pruned away."""
    graph = split(fuse(small_program("llama"), ["logits"]), {}, DType.FP32)
    assert not any(v.base == "all_logits" for v in graph.values)
    assert {v.name for v in graph.values if v.kind is Kind.OUTPUT} == {dict(graph.outputs)["logits"]}


def test_verify_sees_a_broken_graph() -> None:
    from dataclasses import replace

    graph = split(fuse(small_program("mlp")), {}, DType.FP32)
    graph.verify()

    def broken(**changes: object) -> TaskGraph:
        return replace(graph, tasks=(replace(graph.tasks[0], **changes), *graph.tasks[1:]))

    last = graph.tasks[-1].result
    for wrong, says in (
        (broken(operands=((last,), *graph.tasks[0].operands[1:])), "before it is written"),
        (broken(result=graph.tasks[0].operands[0][0]), "writes"),
        (broken(result=last), "."),
        (broken(gathers=True), "gathers"),
        (replace(graph, tasks=graph.tasks[:-1]), "nothing writes"),
    ):
        with pytest.raises(AssertionError, match=says):
            wrong.verify()


@pytest.mark.parametrize("pieces", [{}, {Letter("s"): 2}, {Letter("s"): 2, Letter("b"): 2}])
def test_padding_in_a_mask_leaves_the_work_as_it_is(tmp_path: Path, pieces: dict[Letter, int]) -> None:
    """What depends on data is computed; two more operations a pair, the padding's own, are counted in the ops and in their tasks."""
    causal = (SPECS / "attention.yaml").read_text(encoding="utf-8")
    padded = causal.replace("x: {axes: b s m}", "x: {axes: b s m}\n  lengths: {axes: b, dtype: int32}")
    padded = padded.replace("where(t <= s,", "where(t < lengths[b] and t <= s,")
    assert padded.count("lengths") == 2
    work = []
    for text in (causal, padded):
        (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
        graph = split(fuse(elaborate(load_document(tmp_path / "a.yaml"), SMALL["attention"])), pieces, DType.FP32)
        op = next(op for op in graph.ops if op.kind == "attention")
        assert op.flops == sum(task.flops for task in graph.tasks if task.op == op.id) > 0
        work.append(op.flops)
    size = SMALL["attention"]
    pairs = size["batch"] * size["heads"] * size["seq"] * (size["seq"] + 1) // 2
    assert work[1] - work[0] == 2 * pairs
