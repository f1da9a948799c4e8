"""What a run promises beside its outputs, each as a property: figures of texts, of time and of memory, where a size comes from, what a word
of the command line changes."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from dataclasses import fields, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile.split import split
from einpage.exec.command import run as run_words
from einpage.exec.device.arena import bytes_before_outputs
from einpage.exec.load.inputs import TokenLists
from einpage.exec.planning import judged_plan
from einpage.exec.planning.judged_plan import RejectedPlan, plan_graph, plan_program
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run import prepared
from einpage.exec.run.choose import DeviceKind, RunOptions
from einpage.exec.run.outputs import TOP, text_figures, wanted_outputs
from einpage.exec.run.prepared import refuse_above_host, run_model
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.kernel_times import AtRows, MapTimes, ProductTimes
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import HOST, Queue
from einpage.memplan.plan import plan
from kernel_time_figures import nothing_usual
from plain_plan import plain_plan
from real_bytes import differences, direct, run_on_bytes
from strategies import a_machine, data, random_graph

VOCAB = 11
SPEC = f"""einpage: 1
name: language
sizes: {{batch: 1, seq: 4, vocab: {VOCAB}, width: 8}}
axes: {{b: batch, s: seq, v: vocab, i: width}}
inputs:
  tokens: {{axes: b s, dtype: int32}}
weights:
  embed: {{axes: v i, from: embed.weight}}
body:
  - logits[b,s,v] = embed[tokens[b,s], i] * embed[v,i]
outputs:
  logits: {{axes: b s v}}
"""
texts = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=7), min_size=1, max_size=4)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "language.yaml"
    path.write_text(SPEC, encoding="utf-8")
    return path


def model_of(spec: Path, lists: list[list[int]]) -> Model:
    return open_model(spec, tokens=TokenLists(tuple(map(tuple, lists)), "a test"))


@given(texts.filter(lambda lists: min(map(len, lists)) > 1), st.integers(0, 2**16), st.sampled_from((torch.float32, torch.bfloat16)))
@settings(max_examples=40, deadline=None)
def test_texts_of_any_lengths_have_the_perplexity_of_all_their_tokens(
    spec: Path, lists: list[list[int]], seed: int, dtype: torch.dtype
) -> None:
    """Over all tokens that something stands before, each counting once, in fp64; the next token is that behind a text's own last one."""
    longest = max(map(len, lists))
    logits = (4 * torch.randn(len(lists), longest, VOCAB, generator=torch.Generator().manual_seed(seed))).to(dtype)
    found = text_figures({"logits": logits}, model_of(spec, lists), perplexity=True)
    exact = logits.double().numpy()
    losses = [
        float(np.log(np.exp(exact[b, i]).sum()) - exact[b, i, row[i + 1]]) for b, row in enumerate(lists) for i in range(len(row) - 1)
    ]
    assert found.perplexity is not None and found.top is not None
    assert math.isclose(found.perplexity.mean_nll, sum(losses) / len(losses), rel_tol=1e-12)
    assert math.isclose(found.perplexity.perplexity, math.exp(sum(losses) / len(losses)), rel_tol=1e-11)
    assert found.perplexity.tokens == sum(map(len, lists))
    for b, row in enumerate(lists):
        behind = exact[b, len(row) - 1]
        assert [token for token, _, _ in found.top[b]] == sorted(range(VOCAB), key=lambda v: (-behind[v], v))[:TOP]


@given(texts)
@settings(max_examples=25, deadline=None)
def test_a_perplexity_is_refused_where_a_text_has_no_second_token(spec: Path, lists: list[list[int]]) -> None:
    model = model_of(spec, lists)
    options = RunOptions(PlanRequest(1 << 20), perplexity=True)
    if min(map(len, lists)) > 1:
        assert wanted_outputs(model, options) == ("logits",)
    else:
        with pytest.raises(UsageError, match="at least two tokens"):
            wanted_outputs(model, options)


@pytest.mark.parametrize("passes", [None, 3])
def test_figures_of_a_run_agree_with_each_other(spec: Path, passes: int | None) -> None:
    model = open_model(spec, weights="random:1", tokens=TokenLists(((1, 2, 3), (4, 5, 6)), "a test"))
    machine = replace(a_machine(), kernel_times=replace(nothing_usual(), start_s=1.0))
    result = run_model(model, machine, RunOptions(PlanRequest(1 << 16, passes=passes)))
    found, measured = result.facts, result.report.passes
    walls = [m.wall_s for m in measured]
    assert len(walls) == (passes or 1)
    assert found["wall_s"] == pytest.approx(sum(walls) / len(walls))
    assert found["predicted_s"] == found["makespan_s"] >= 1.0  # type: ignore[operator]
    assert found["measured_ratio"] == pytest.approx(found["wall_s"] / found["predicted_s"])  # type: ignore[operator]
    for queue in (Queue.H2D, Queue.D2H):
        assert found[f"measured_{queue.name}_bytes"] == found[f"{queue.name}_bytes"]
    assert all(0 <= busy <= m.wall_s for m in measured for busy in m.busy_s.values())


@pytest.mark.parametrize("passes", [None, 3])
def test_bounds_are_made_of_the_best_rates(spec: Path, passes: int | None) -> None:
    """Whatever kernels usually take: a run at these rates would beat any other bound."""
    slow = replace(nothing_usual(), products=ProductTimes(1.0, (AtRows(1, 1e3),)), maps=MapTimes(1.0, 0.0, 0.0, 0.0, 0.0))
    best, usual = (
        plan_program(model_of(spec, [[1, 2, 3]]).program, machine, PlanRequest(1 << 16, passes=passes)).report
        for machine in (a_machine(), replace(a_machine(), kernel_times=slow))
    )
    assert usual.makespan_s > 1.0 > best.makespan_s
    assert (usual.bound_s, usual.bound_order_s) == (best.bound_s, best.bound_order_s)


@pytest.mark.parametrize("given_by", list(product((False, True), repeat=3)), ids=lambda x: "-".join(map(str, map(int, x))))
def test_where_a_size_comes_from(tmp_path: Path, given_by: tuple[bool, bool, bool]) -> None:
    """From --set, else from the text, else from the checkpoint, else from the spec."""
    by_set, by_text, by_checkpoint = given_by
    (tmp_path / "s.yaml").write_text(SPEC + "config: {seq: [n_ctx]}\n", encoding="utf-8")
    save_file({"embed.weight": np.zeros((VOCAB, 8), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"n_ctx": 6} if by_checkpoint else {}), encoding="utf-8")
    tokens = TokenLists(((1, 2, 3),), "a test") if by_text else None
    model = open_model(tmp_path / "s.yaml", {"seq": 5} if by_set else {}, str(tmp_path / "model.safetensors"), tokens)
    assert model.program.sizes["seq"] == (5 if by_set else 3 if by_text else 6 if by_checkpoint else 4)


WORDS = {"h2d": "7GB/s", "d2h": "3GB/s", "device_bytes": "5GiB"}


@pytest.mark.parametrize("machine", ["h100", None])
@pytest.mark.parametrize("word", WORDS)
def test_a_word_changes_its_own_figure_alone(word: str, machine: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_words, "measured_machine", lambda *args, **more: a_machine())
    nothing = Namespace(machine=machine, threads=None, host_budget=None, **dict.fromkeys(WORDS))

    def of(given: Namespace) -> Machine:
        found = run_words.machine_of(given, DeviceKind.CPU)
        return found if isinstance(found, Machine) else found()

    before, after = of(nothing), of(Namespace(**{**vars(nothing), word: WORDS[word]}))
    figures = lambda m: {"h2d": m.link(Queue.H2D).bytes_per_s, "d2h": m.link(Queue.D2H).bytes_per_s, "device_bytes": m.device_bytes}  # noqa: E731
    assert figures(after) == {**figures(before), word: {"h2d": 7e9, "d2h": 3e9, "device_bytes": 5 << 30}[word]}
    others = [f.name for f in fields(Machine) if f.name not in ("links", "device_bytes")]
    assert [getattr(after, name) for name in others] == [getattr(before, name) for name in others]


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 200))
def test_a_run_is_refused_where_its_two_arenas_together_do_not_fit(host: int, budget: int, available: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared, "available_bytes", lambda: available)
        if host + budget <= available:
            refuse_above_host(host, budget)
        else:
            with pytest.raises(DoesNotFit):
                refuse_above_host(host, budget)


@pytest.mark.parametrize("seed", range(8))
def test_a_plan_that_the_judge_rejects_is_never_returned(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a planner makes: here one that leaves out an output."""
    graph = random_graph(seed)
    right = plain_plan(graph)
    wrong = replace(right, end=tuple(r for r in right.end if right.residencies[r].place != HOST or r in right.start))
    assert wrong.end != right.end
    for made in (right, wrong):
        monkeypatch.setattr(judged_plan, "plan", lambda *args, made=made: made)
        if made is right:
            assert plan_graph(graph, a_machine(), right.budget_bytes).report.verified
        else:
            with pytest.raises(RejectedPlan):
                plan_graph(graph, a_machine(), right.budget_bytes)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_dropped_before_outputs_are_read_is_none_of_them(seed: int) -> None:
    """All weights and inputs, which lie first, and no byte of an output."""
    memgraph = plain_plan(random_graph(seed))
    dropped = bytes_before_outputs(memgraph)
    on_host = [r for r in memgraph.residencies if r.place == HOST]
    given_bytes = [r for r in on_host if r.id in memgraph.start]
    results = [r for r in on_host if r.id in memgraph.end and r.id not in memgraph.start]
    assert results and all(dropped.end <= r.extents[0].offset for r in results)
    assert all(r.extents[0].end <= dropped.end for r in given_bytes)


TWICE = """einpage: 1
name: twice
sizes: {n: 70}
axes: {i: n}
inputs:
  x: {axes: i}
body:
  - y[i] = tanh(x[i])
  - z[i] = tanh(x[i])
outputs:
  y: {axes: i}
  z: {axes: i}
"""


def test_the_same_work_for_two_results_is_done_for_both() -> None:
    """Nodes that share views and kernels share calls only where they write the same bytes."""
    program = elaborate(read_document(TWICE, "twice.yaml"))
    graph = split(fuse(program, ["y", "z"]), {}, DType.FP32)
    values = data(graph, 1)
    memgraph = plan(graph, a_machine(), 1 << 20)
    assert differences(run_on_bytes(memgraph, values), direct(graph, values)) == []
