"""The Python API's own checks of its arguments: each mistake is a UsageError that says what there is. What it does is in docs/python.md."""

from __future__ import annotations

from typing import Any

import pytest

import einpage
from einpage.einsum_front.base.errors import UsageError


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
