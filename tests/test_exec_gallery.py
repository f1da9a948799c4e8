"""Every decoder that ships generates what transformers does: ragged prompts, several buckets, windows shorter than the text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from checkpoint_metadata import SPECS, saved
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.planning import text_lengths
from einpage.exec.planning.model import Model, open_model, refuse_positions
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.exec.run.choose import RunOptions
from einpage.exec.run.generation import Generation, plan_generation
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.sampling import Sampling
from einpage.memplan.machine.profile import load_machine
from test_front_gallery import MODELS

PROMPTS = ((5, 17, 3, 40, 2, 9), (1, 88))
NEW = 7
CLOSE = 1e-3
"""Two logits that are no further apart may change places."""


@pytest.mark.parametrize("name", MODELS)
def test_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    network = saved(tmp_path, MODELS[name].model_type or name, **MODELS[name].config)

    def model_at(sizes: Mapping[str, int]) -> Model:
        return open_model(SPECS / f"{name}.yaml", sizes, str(tmp_path))

    with patch.object(text_lengths, "LEAST_POSITIONS", 3):
        options = RunOptions(PlanRequest(1 << 20), poison=True)
        plans = plan_generation(model_at, load_machine("cpu"), options, TextLengths.of(PROMPTS, NEW))
    found = list(zip(*Generation(plans, options, LoadedModel(options)).tokens(PROMPTS, NEW, Sampling()), strict=True))
    assert len(plans.plan_set.phases) >= 3
    for prompt, ids in zip(PROMPTS, found, strict=True):
        with torch.no_grad():
            logits = network(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        for row, token in zip(logits, ids, strict=True):
            assert row[token] > row.max() - CLOSE, f"{ids} after {prompt}, expected {logits.argmax(1).tolist()}"


@pytest.mark.parametrize("name", MODELS)
def test_a_text_is_no_longer_than_the_checkpoint_says(name: str, tmp_path: Path) -> None:
    """Be there a table of positions or not: `generate` says how many tokens would be right, before anything is planned or measured."""
    positions = {"n_positions": 20} if name == "gpt2" else {"max_position_embeddings": 20}
    saved(tmp_path, MODELS[name].model_type or name, **{**MODELS[name].config, **positions})

    def model_at(sizes: Mapping[str, int]) -> Model:
        return open_model(SPECS / f"{name}.yaml", sizes, str(tmp_path))

    refuse_positions(model_at, 1, 14, 7)
    with pytest.raises(UsageError, match=rf"^14 tokens .* --max-new 8 are more than the 20 positions that {name} has; say --max-new 7, or"):
        refuse_positions(model_at, 1, 14, 8)
    with pytest.raises(
        UsageError, match=r"^22 tokens of the prompt are more than the 20 positions that .*; shorten the text to 20 tokens \("
    ):
        refuse_positions(model_at, 1, 22, 1)
