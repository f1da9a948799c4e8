"""The real model's logits inside small budgets: transformers' figures for other prompts, and mutants of the spec that 1e-5 rejects.

data/smollm2_reference.json holds transformers' figures (LlamaForCausalLM, fp32, the same dequantised weights).
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from smollm2_run import FRANCE, LLAMA, MIB, distance, open_smollm2, planned, reference, run_outputs

TOLERANCE = 1e-5
PUBLISHED: dict[str, Any] = {
    prompt["text"]: prompt for prompt in json.loads((LLAMA.parents[1] / "tests" / "data" / "smollm2_reference.json").read_text())["prompts"]
}


@pytest.mark.parametrize(("budget", "text"), [*((64 * MIB, text) for text in PUBLISHED), (24 * MIB, "The capital of France is")])
def test_the_best_next_tokens(budget: int, text: str) -> None:
    model = open_smollm2([PUBLISHED[text]["ids"]])
    (logits,) = run_outputs(model, planned(model, budget))["logits"]
    expected = PUBLISHED[text]["top8"]
    top = torch.topk(logits, len(expected))
    assert top.indices.tolist() == [token for token, _ in expected]
    assert top.values.tolist() == pytest.approx([value for _, value in expected], abs=0.02)
    assert float(logits.logsumexp(0)) == pytest.approx(PUBLISHED[text]["logsumexp"], abs=0.02)


@cache
def expected_logits() -> torch.Tensor:
    return reference(open_smollm2([FRANCE]), "logits")


def deviation(spec: Path) -> float:
    """Of the logits of a run under 64 MiB of a spec like llama.yaml from what llama.yaml means in fp64."""
    model = open_smollm2([FRANCE], spec)
    return distance(run_outputs(model, planned(model, 64 * MIB))["logits"], expected_logits())


def test_the_spec_is_the_model() -> None:
    assert deviation(LLAMA) <= TOLERANCE


OTHER_THETA = "  unused: [rope_parameters.rope_theta, rope_theta, llama.rope.freq_base]\n"


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("  theta: [rope_parameters.rope_theta, rope_theta, llama.rope.freq_base]\n", OTHER_THETA),
        ("(where(t <= at[b]+s, ", "(where(t < at[b]+s, "),
        ("(where(t <= at[b]+s, ", "(where(t <= at[b]+s+1, "),
        ("mean[m](x[b,s,m]**2) + eps) * norm1[m]", "mean[m](x[b,s,m]**2) + 1.1*eps) * norm1[m]"),
        ('{name: "blk.{l}.attn_q.weight", axes: (k g e z) m}', '{name: "blk.{l}.attn_q.weight", axes: (g k e z) m}'),
        ('{name: "blk.{l}.attn_q.weight", axes: (k g e z) m}', '"blk.{l}.attn_q.weight"'),
    ],
    ids=["theta of its own", "mask to the left", "mask to the right", "eps", "heads swapped", "halves swapped"],
)
def test_a_mutant_is_not_the_model(line: str, instead: str, tmp_path: Path) -> None:
    text = LLAMA.read_text(encoding="utf-8")
    assert text.count(line) == 1, f"specs/llama.yaml no longer holds {line!r} once"
    mutant = tmp_path / "llama.yaml"
    mutant.write_text(text.replace(line, instead).replace("theta: 10000.0}", "theta: 10000.0, unused: 1.0}"), encoding="utf-8")
    found = deviation(mutant)
    assert found > 3 * TOLERANCE, f"{found:.2e}"
