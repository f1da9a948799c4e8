"""Weights of which a step reads a part, and gradients that nothing computes: the same losses in every budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import einpage
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.exec.load.fill import read_weights
from einpage.exec.planning.train_step import open_step

PART = """\
einpage: 1
name: part
sizes: {batch: 2, inner: 70, outer: 100, seen: 65}
axes: {b: batch, i: inner, o: outer, s: seen}
inputs: {x: {axes: b i}}
weights: {w: {axes: o i, from: w}}
body: ["y[b,s] = x[b,i] * w[s + 0,i]"]
outputs: {y: {axes: b s}}
train: {body: ["loss = LOSS"], loss: loss, optimiser: adamw}
"""


@pytest.mark.parametrize("loss", ["sum[b,s](y[b,s] ** 2)", "sum[i](w[3,i] * x[0,i])", "sum[o,i](w[o,i] * 2)", "sum[i](w[99,i]) ** 2"])
def test_a_weight_that_is_read_in_part(loss: str, tmp_path: Path) -> None:
    """As a table of positions is, of which a step reads the first rows; and a gradient that is an input, or one number everywhere."""
    spec = tmp_path / "part.yaml"
    spec.write_text(PART.replace("LOSS", loss))
    x = np.random.default_rng(0).normal(size=(2, 70)).astype(np.float32)
    given: dict[str, Any] = {"machine": "cpu", "device": "cpu", "inputs": {"x": x}}
    small, large = (einpage.train(spec, "random:1", steps=2, budget=budget, **given) for budget in ("40KiB", "4MiB"))
    step = open_step(spec, {}, "random:1")
    assert step.model.resolved is not None
    began = read_weights(step.model.resolved, step.program)["w"].double()
    found = evaluate(step.program, {"x": torch.from_numpy(x)}, {"w": began}, torch.float64)
    assert small.losses[0] == pytest.approx(float(found["loss"]), rel=1e-5)
    for run in (small, large):
        assert not torch.equal(run.states["w"].double(), began) and torch.allclose(run.states["w"], small.states["w"], atol=1e-6)
