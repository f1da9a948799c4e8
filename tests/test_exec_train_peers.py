"""Losses of training beside transformers with torch's AdamW, on small models and on SmolLM2, whole and with LoRA."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import einpage
from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.exec.planning.train_step import open_step
from smollm2 import smollm2_path
from specs_small import SPECS
from trained_by_torch import losses_of_torch

SIZES = {"vocab": 90, "model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48}
SEQUENCES = [[1, 5, 9, 2, 7, 7, 3, 8], [4, 4, 61], [80, 2, 9, 13, 22], [6, 5, 4, 3, 2, 1, 0], [17, 89]]
SPEC_BY_NAME = {"whole": SPECS / "llama.yaml", "lora": SPECS / "lora" / "llama.yaml"}


@pytest.mark.parametrize("name", SPEC_BY_NAME)
def test_losses_are_those_of_transformers(name: str) -> None:
    """A ragged batch of two, a rate that falls in a line: in fp64 there."""
    spec, decay = SPEC_BY_NAME[name], 0.1
    step = open_step(spec, {**SIZES, "seq": 8, "batch": 2}, "random:3")
    theirs = losses_of_torch(step, SEQUENCES, 2, 6, lambda n: 1e-2 * (1 - (n - 1) / 6), decay, torch.float64)
    given = {"tokens": SEQUENCES, "budget": "64KiB", "lr": 1e-2, "schedule": "linear", "weight_decay": decay, "batch": 2}
    ours = einpage.train(spec, "random:3", set=SIZES, machine="cpu", device="cpu", steps=6, **given)
    assert theirs[-1] < theirs[0] and (name == "lora") == (len(ours.states) == 8 * 3 + 1)
    assert max(abs(a - b) for a, b in zip(ours.losses, theirs, strict=True)) <= 5e-5


def real_sequences(count: int, tokens: int) -> list[list[int]]:
    """Of this repository's own prose."""
    root = SPECS.parent
    ids = load_tokenizer(str(smollm2_path())).encode((root / "README.md").read_text() + (root / "CONTRIBUTING.md").read_text())
    return [ids[i * tokens : (i + 1) * tokens] for i in range(count)]


FIRST_LAYERS = 6
LEFT_OUT = ["blk.[6-9].*", "blk.[12]?.*"]
"""Of SmolLM2's 30 layers, as globs."""


def test_smollm2_two_steps(tmp_path: Path) -> None:
    """Real weights, those of the first layers, 16 tokens, in a part of the memory."""
    text, ignored = SPEC_BY_NAME["whole"].read_text(), 'ignore: ["*.rotary_emb.inv_freq"'
    assert text.count(ignored) == 1
    spec = tmp_path / "first_layers.yaml"
    spec.write_text(text.replace(ignored, f"{ignored}, {json.dumps(LEFT_OUT)[1:-1]}"))
    check_smollm2(spec, 2, real_sequences(2, 16), "40%", layers=FIRST_LAYERS)


def test_smollm2_two_steps_of_lora() -> None:
    """All layers."""
    check_smollm2(SPEC_BY_NAME["lora"], 2, real_sequences(2, 16), "40%")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SPEC_BY_NAME)
def test_smollm2_fifty_steps(name: str) -> None:
    check_smollm2(SPEC_BY_NAME[name], 50, real_sequences(20, 63), "40%")


def check_smollm2(spec: Path, steps: int, sequences: list[list[int]], budget: str, **sizes: int) -> None:
    weights = str(smollm2_path())
    step = open_step(spec, {"seq": len(sequences[0]), **sizes}, weights)
    theirs = losses_of_torch(step, sequences, 1, steps, lambda n: 1e-4, 0.01, torch.float32)
    given = {"tokens": sequences, "budget": budget, "lr": 1e-4, "weight_decay": 0.01, "weights_as": "run"}
    ours = einpage.train(spec, weights, set=sizes, machine="cpu", device="cpu", steps=steps, **given)
    assert max(abs(a - b) for a, b in zip(ours.losses, theirs, strict=True)) <= 1e-3
    assert theirs[1] != theirs[0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_smollm2_killed_and_resumed(tmp_path: Path) -> None:
    """SIGKILL after step 27 of 50, a checkpoint every 10: the same bits at the end."""
    tokens, out = tmp_path / "tokens.json", {name: tmp_path / name for name in ("whole", "killed")}
    tokens.write_text(json.dumps(real_sequences(20, 63)))
    line = [sys.executable, "-m", "einpage.exec.cli", "train", "llama", "--weights", str(smollm2_path()), "--tokens", str(tokens)]
    line += ["--budget", "40%", "--steps", "50", "--lr", "1e-4", "--checkpoint-every", "10", "--machine", "cpu", "--json", "--out"]
    subprocess.run([*line, str(out["whole"])], check=True, capture_output=True)
    with subprocess.Popen([*line, str(out["killed"])], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as run:
        assert run.stderr is not None
        next(said for said in run.stderr if said.startswith("step 27/"))
        run.kill()
        run.stderr.read()
    subprocess.run([*line, str(out["killed"]), "--resume"], check=True, capture_output=True)
    for file in ("checkpoint.safetensors", "model.safetensors"):
        assert (out["whole"] / file).read_bytes() == (out["killed"] / file).read_bytes()
