"""The Python API gives what the command line gives; each mistake is a UsageError that says what there is. More in docs/python.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import einpage
from command_line import LLAMA, facts
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.planning.model import Model

SIZES = {"batch": 2, "model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 320}
TOKENS = [[1, 2, 3, 4, 5], [6, 7, 8]]
BUDGET = 80 << 10
TIMED = ("plan_s", "wall_s", "passes_wall_s", "measured_ratio", "measured_compute_s", "measured_h2d_s", "measured_d2h_s", "peak_rss_bytes")


@pytest.fixture(scope="module")
def model() -> Model:
    return einpage.load_spec("llama", set=SIZES, weights="random:1", tokens=TOKENS)


def untimed(figures: dict[str, Any]) -> dict[str, Any]:
    """As JSON gives them, without what differs from run to run, and advice, which only the command line gives."""
    return {key: value for key, value in json.loads(json.dumps(figures)).items() if key not in (*TIMED, "advice")}


def words(*more: str) -> list[str]:
    sizes = [word for name, n in SIZES.items() for word in ("--set", f"{name}={n}")]
    return [*more, "--budget", str(BUDGET), "--machine", "cpu", *sizes, "--weights", "random:1"]


@pytest.mark.parametrize(
    ("options", "more"),
    [
        ({}, []),
        ({"effort": 1, "dtype": "bf16", "split": {"v": 4}}, ["--effort", "1", "--dtype", "bf16", "--split", "v=4"]),
        ({"warm": True, "no_fuse": ["attention"]}, ["--warm", "--no-fuse", "attention"]),
        ({"passes": 3, "outputs": ["all_logits"]}, ["--passes", "3", "--outputs", "all_logits"]),
    ],
)
def test_a_plan_is_that_of_the_command_line(
    options: dict[str, Any], more: list[str], model: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    found = einpage.plan(model, budget=BUDGET, **options)
    said = facts(capsys, *words("plan", "llama"), "--set", "seq=5", "--bounds", "fast", *more)
    assert untimed({**found.facts, "warnings": []}) == untimed(said)
    assert found.report["h2d_bytes"] == found.report.h2d_bytes == said["h2d_bytes"]


def test_a_run_is_that_of_the_command_line(model: Model, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps(TOKENS))
    found = einpage.run(model, budget=BUDGET, machine="cpu", device="cpu", perplexity=True, passes=2)
    more = ["--tokens", str(tmp_path / "t.json"), "--device", "cpu", "--perplexity", "--passes", "2"]
    assert untimed(found.facts) == untimed(facts(capsys, *words("run", LLAMA), *more))
    assert {name: tuple(t.shape) for name, t in found.outputs.items()} == {"logits": (2, 320), "all_logits": (2, 5, 320)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dtype": "fp8"}, "dtype 'fp8': expected fp32 or bf16 or fp16"),
        ({"dtype": "int32"}, "dtype 'int32'"),
        ({"machine": "h10"}, "unknown machine 'h10'; did you mean"),
        ({"budget": "many"}, "many"),
        ({"split": {"q": 2}}, "q"),
        ({"no_fuse": ["softmax"]}, "softmax"),
        ({"warm": True, "passes": 2}, "exclude each other"),
    ],
)
def test_plan_refuses(arguments: dict[str, Any], says: str) -> None:
    model = einpage.load_spec("mlp")
    with pytest.raises(UsageError, match=says):
        einpage.plan(model, **{"budget": "1MiB", **arguments})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dispatch": "eager"}, "dispatch 'eager': expected serial or dynamic or static"),
        ({"device": "gpu"}, "device 'gpu': expected auto or cpu or cuda"),
        ({"dtype": "fp8"}, "dtype 'fp8'"),
    ],
)
def test_run_refuses(arguments: dict[str, Any], says: str) -> None:
    model = einpage.load_spec("mlp", weights="random:0")
    with pytest.raises(UsageError, match=says):
        einpage.run(model, **{"budget": "1MiB", "machine": "cpu", **arguments})


def test_a_model_without_weights_is_not_run() -> None:
    with pytest.raises(UsageError, match="can be planned, not run"):
        einpage.run(einpage.load_spec("mlp"), budget="1MiB", machine="cpu")


def test_text_is_given_once() -> None:
    with pytest.raises(UsageError, match="use one"):
        einpage.load_spec("llama", prompt="a", tokens=[[1]])
    with pytest.raises(UsageError, match="a prompt needs weights"):
        einpage.load_spec("llama", prompt="a")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plam'"):
        einpage.plam  # noqa: B018
