"""Plan files: what is saved is read back, writing is all or nothing, and a damaged file is refused with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.program import Source
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.graph.planfile import load_plan, save_plan
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from hand_plan import hand_plan
from plain_plan import plain_plan
from strategies import budgets, task_graphs

RECIPE = {"spec": "specs/hand.yaml", "sha256": "00", "settings": {"seq": 5}, "dtype": "fp32", "split": {"f": 4}, "outputs": ["b"]}


def test_round_trip(tmp_path: Path) -> None:
    plan = hand_plan()
    sourced = replace(
        plan.graph.values[2], sources=(Source("a.weight", ((0, 1), (2,))), Source("b.weight", ((0, 1), (2,)), 1.0)), default=1.5
    )
    graph = replace(plan.graph, values=(*plan.graph.values[:2], sourced, *plan.graph.values[3:]), split=((Letter("f"), 4),))
    plan = replace(plan, graph=graph)
    save_plan(tmp_path / "plan.json", plan, RECIPE)
    saved = load_plan(tmp_path / "plan.json")
    assert saved.recipe == RECIPE
    assert memgraph_text(saved.memgraph) == memgraph_text(plan)
    assert saved.memgraph.graph == plan.graph, "the hand-made graph has no jobs"
    assert saved.memgraph.nodes == plan.nodes
    assert saved.memgraph.residencies == plan.residencies
    assert judge(saved.memgraph) is None


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_round_trip_of_any_plan(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    graph = data.draw(task_graphs(most_ops=4, joined=True))
    plan = replace(plain_plan(graph, data.draw(budgets(graph))), alignment=data.draw(st.sampled_from((1, 16, 256))))
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    save_plan(path, plan, {})
    saved = load_plan(path)
    assert memgraph_text(saved.memgraph) == memgraph_text(plan)
    assert saved.memgraph.alignment == plan.alignment
    assert all(task.job is None for task in saved.memgraph.graph.tasks)
    assert judge(saved.memgraph) is None


def test_one_section_a_line_and_the_same_bytes_every_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_plan(tmp_path / name, hand_plan(), RECIPE)
    text = (tmp_path / "a").read_text(encoding="utf-8")
    assert text == (tmp_path / "b").read_text(encoding="utf-8")
    assert text.splitlines()[1] == '"format": "einpage-plan",'
    assert len(text.splitlines()) == len(json.loads(text)) + 2


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(path, hand_plan(), RECIPE)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save_plan(path, hand_plan(), {"not JSON": object()})
    assert path.read_bytes() == before
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        save_plan(tmp_path / "folder", hand_plan(), RECIPE)
    with pytest.raises(UsageError, match="cannot write"):
        save_plan(tmp_path / "none" / "plan.json", hand_plan(), RECIPE)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "plan.json"]


def test_a_wrong_plan_loads_and_is_for_the_judge(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(path, hand_plan(), RECIPE)
    raw = json.loads(path.read_text(encoding="utf-8"))
    raw["residencies"][4][3][0][0] = 256
    path.write_text(json.dumps(raw), encoding="utf-8")
    violation = judge(load_plan(path).memgraph)
    assert violation is not None
    assert violation.reason is Reason.OVERLAP


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated(tmp_path: Path, share: float) -> None:
    path = tmp_path / "plan.json"
    save_plan(path, hand_plan(), RECIPE)
    whole = path.read_bytes().rstrip()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(UsageError, match=r"plan\.json: truncated or not a plan file"):
        load_plan(path)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe", "truncated or not a plan file"),
        (b"[" * 100_000, "truncated or not a plan file"),
        (b"[]", "not a plan file"),
        (b'{"format": "einpage-trace"}', "not a plan file"),
        (b'{"format": "einpage-plan", "version": 99}', "version 99; this einpage reads version 5"),
        (b'{"format": "einpage-plan", "version": 5}', "damaged plan file .graph.: KeyError"),
    ],
)
def test_something_else(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(UsageError, match=told):
        load_plan(tmp_path / "plan.json")


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_plan(tmp_path / "none.json")


DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    lambda raw: raw["tensors"].pop(),
    lambda raw: raw["tensors"][3].pop(),
    lambda raw: raw["tensors"][3].__setitem__(4, "fp31"),
    lambda raw: raw["tensors"][3].__setitem__(3, [2, 65]),
    lambda raw: raw["tensors"][3].__setitem__(3, [2.0, 64]),
    lambda raw: raw["tasks"].pop(),
    lambda raw: raw["tasks"][1].__setitem__(3, -1),
    lambda raw: raw["tasks"][1].__setitem__(2, [[99]]),
    lambda raw: raw["tasks"][1].__setitem__(2, [[3], [-5]]),
    lambda raw: raw["tasks"][1].__setitem__(8, 0),
    lambda raw: raw["ops"].clear(),
    lambda raw: raw["values"][0].__setitem__(6, "much"),
    lambda raw: raw["values"].pop(0),
    lambda raw: raw["graph"].__setitem__("dtype", "int31"),
    lambda raw: raw["graph"].__setitem__("outputs", [["b"]]),
    lambda raw: raw["graph"]["outputs"].clear(),
    lambda raw: raw["graph"]["outputs"].pop(),
    lambda raw: raw["graph"]["outputs"].append(raw["graph"]["outputs"][0]),
    lambda raw: raw["graph"]["outputs"].append(["b2", "a"]),
    lambda raw: raw["tensors"][4].__setitem__(5, "output"),
    lambda raw: raw["nodes"].append(["jump", 1]),
    lambda raw: raw["nodes"].append(["free", "1"]),
    lambda raw: raw["nodes"].append(7),
    lambda raw: raw["residencies"][0].__setitem__(1, "moon"),
    lambda raw: raw["residencies"][0].__setitem__(3, [[0]]),
    lambda raw: raw["edge_sources"].__setitem__(0, 2**40),
    lambda raw: raw["edge_sources"].__setitem__(0, None),
    lambda raw: raw.__setitem__("start", "r0"),
    lambda raw: raw.__setitem__("arenas", {"budget_bytes": 1}),
    lambda raw: raw["arenas"].__setitem__("alignment", 0),
    lambda raw: raw["tasks"][0].__setitem__(9, -1.0),
    lambda raw: raw["ops"][0].__setitem__(5, "1"),
    lambda raw: raw.__setitem__("recipe", []),
]


@pytest.mark.parametrize("harm", DAMAGE, ids=range(len(DAMAGE)))
def test_damage_is_the_users_error_not_ours(tmp_path: Path, harm: Callable[[dict[str, Any]], object]) -> None:
    path = tmp_path / "plan.json"
    save_plan(path, hand_plan(), RECIPE)
    raw = json.loads(path.read_text(encoding="utf-8"))
    harm(raw)
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(UsageError, match=r"plan\.json: damaged plan file") as caught:
        load_plan(path)
    assert caught.value.exit_status == 2
