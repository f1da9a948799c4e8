"""`einpage verify --spec` and `--graph`: the graph in a plan file is that of the model, in every tensor and task."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import LLAMA, MLP, SMALL_LLAMA, facts, ran

SQUEEZE, VGG = (str(Path(__file__).parent / "data" / f"{name}.json.gz") for name in ("squeezenet", "vgg19"))
Plan = dict[str, Any]


def saved(capsys: pytest.CaptureFixture[str], path: Path, *words: str) -> str:
    ran(capsys, "plan", *words, "--out", str(path))
    return str(path)


@pytest.fixture
def llama_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Path:
    words = (LLAMA, *SMALL_LLAMA, "--budget", "600KiB", "--dtype", "bf16", "--outputs", "all_logits", "--no-fuse", "attention")
    return Path(saved(capsys, tmp_path / "plan.json", *words))


def test_the_graph_of_a_plan_is_that_of_its_spec(capsys: pytest.CaptureFixture[str], llama_plan: Path) -> None:
    found = facts(capsys, "verify", str(llama_plan), "--spec", LLAMA)
    assert (found["verified"], found["reason"], found["compared_with"]) == (True, None, LLAMA)
    assert f"its graph is that of {LLAMA}" in ran(capsys, "verify", str(llama_plan), "--spec", LLAMA)[0]
    assert "its graph as the file says it" in ran(capsys, "verify", str(llama_plan))[0]


@pytest.mark.parametrize("more", [("--passes", "4"), ("--warm",), ("--free-order",), ("--plan-steps", "2000")])
def test_however_it_was_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path, more: tuple[str, ...]) -> None:
    plan = saved(capsys, tmp_path / "plan.json", LLAMA, *SMALL_LLAMA, "--budget", "700KiB", *more)
    assert facts(capsys, "verify", plan, "--spec", LLAMA)["verified"] is True


def test_the_graph_of_a_trace_is_compared_with_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = saved(capsys, tmp_path / "plan.json", "--graph", SQUEEZE, "--budget", "6939187", "--h2d", "12GB/s")
    assert facts(capsys, "verify", plan, "--graph", SQUEEZE)["verified"] is True
    out, err = ran(capsys, "verify", plan, "--graph", VGG, status=2)
    assert out == "" and "rejected: OTHER_GRAPH: the graph's name is 'squeezenet', and should be 'vgg19'" in err


def change_flops(plan: Plan) -> None:
    plan["tasks"][3][5] += 1


def change_ops(plan: Plan) -> None:
    plan["ops"][0][2] += 1


def change_name(plan: Plan) -> None:
    plan["graph"]["name"] = "other"


def change_settings(plan: Plan) -> None:
    plan["recipe"]["settings"]["layers"] = "1"


def change_split(plan: Plan) -> None:
    plan["recipe"]["split"] = {"v": 2}


def change_task_name(plan: Plan) -> None:
    plan["tasks"][3][0] = "\n" * 2


CHANGES = [
    (change_task_name, r"^tasks 3: .*: name is '(\\n)+', and should be .*$"),
    (change_flops, "tasks 3: .*: flops is"),
    (change_ops, "ops 0: .*: flops is"),
    (change_name, "the graph's name is 'other'"),
    (change_settings, "the graph has .*, and should have"),
    (change_split, r"the graph's split is .*, and should be \(\('v', 2\),\)"),
]


@pytest.mark.parametrize(("change", "said"), CHANGES, ids=lambda x: getattr(x, "__name__", ""))
def test_a_plan_of_another_graph_is_rejected(
    capsys: pytest.CaptureFixture[str], llama_plan: Path, change: Callable[[Plan], None], said: str
) -> None:
    plan = json.loads(llama_plan.read_text())
    change(plan)
    llama_plan.write_text(json.dumps(plan))
    assert facts(capsys, "verify", str(llama_plan))["verified"] is True, "the judge alone cannot tell"
    out, _ = ran(capsys, "verify", str(llama_plan), "--spec", LLAMA, "--json", status=2)
    found = json.loads(out)
    assert (found["verified"], found["reason"]) == (False, "OTHER_GRAPH")
    assert re.search(said, found["message"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--spec", LLAMA, "--graph", VGG), "exclude each other"),
        (("--weights", "random:0"), "add --spec"),
        (("--graph", VGG), "was made of a spec, llama.yaml: compare it with that"),
        (("--spec", MLP), "was made of llama.yaml, and is no plan of"),
        (("--spec", "gpt2"), "was made of llama.yaml, and is no plan of"),
        (("--spec", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    capsys: pytest.CaptureFixture[str], llama_plan: Path, words: tuple[str, ...], said: str
) -> None:
    out, err = ran(capsys, "verify", str(llama_plan), *words, status=2)
    assert out == "" and said in err


@pytest.mark.parametrize("key", ["dtype", "outputs", "split", "settings", "no_fuse"])
def test_a_recipe_that_lacks_something_is_refused(capsys: pytest.CaptureFixture[str], llama_plan: Path, key: str) -> None:
    plan = json.loads(llama_plan.read_text())
    del plan["recipe"][key]
    llama_plan.write_text(json.dumps(plan))
    _, err = ran(capsys, "verify", str(llama_plan), "--spec", LLAMA, status=2)
    assert f"its recipe has no '{key}'" in err


NAMED = """einpage: 1
name: named
sizes: {rows: 2, width: 6}
scalars: {scale: 3}
axes: {r: rows, i: width, o: width}
inputs:
  x: {axes: r i}
  n: {axes: r, default: 0.5}
weights:
  w: {axes: o i, from: [w.weight, v.weight]}
  c: {axes: o, from: c.bias}
body:
  - y[r,o] = scale * x[r,i] * w[o,i] + n[r] * c[o]
outputs:
  y: {axes: r o}
"""
EDITS = {
    "a default": ("default: 0.5", "default: 0.25"),
    "no default": (", default: 0.5", ""),
    "a source's name": ("w.weight,", "u.weight,"),
    "the order of sources": ("[w.weight, v.weight]", "[v.weight, w.weight]"),
    "a source more": ("from: c.bias", "from: [c.bias, d.bias]"),
    "the order of a source's axes": ("v.weight]", "{name: v.weight, axes: i o}]"),
    "an input's dtype": ("n: {axes: r, default: 0.5}", "n: {axes: r, dtype: int32, default: 0}"),
    "a value's name": ("- y[r,o] =", "- t[r,o] = x[r,i] * w[o,i]\n  - y[r,o] = t[r,o] +"),
    "a size": ("rows: 2", "rows: 3"),
    "what is computed": ("scale * x[r,i]", "scale * tanh(x[r,i])"),
}
"""What a spec may say otherwise and reaches the graph."""


@pytest.mark.parametrize("edit", EDITS)
def test_whatever_a_spec_says_otherwise_is_another_graph(capsys: pytest.CaptureFixture[str], tmp_path: Path, edit: str) -> None:
    old, new = EDITS[edit]
    spec, other = tmp_path / "named.yaml", tmp_path / "other.yaml"
    changed = NAMED.replace(old, new)
    assert NAMED.count(old) == 1 and changed != NAMED
    spec.write_text(NAMED, encoding="utf-8")
    other.write_text(changed, encoding="utf-8")
    plan = saved(capsys, tmp_path / "plan.json", str(spec), "--budget", "1MiB")
    assert facts(capsys, "verify", plan, "--spec", str(spec))["verified"] is True
    out, _ = ran(capsys, "verify", plan, "--spec", str(other), "--json", status=2)
    assert json.loads(out)["reason"] == "OTHER_GRAPH"
