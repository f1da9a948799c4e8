"""`einpage chat`: turns on one cache, in which only what is new is read; positions run out loudly; mistakes are one line."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

import einpage
from checkpoint_metadata import saved
from einpage.checkpoints.text.chat_template import load_template
from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.exec.cli import main
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import Hooks
from einpage.exec.run import generation
from einpage.exec.run.sampling import Sampling
from smollm2 import smollm2_path

WEIGHTS = str(smollm2_path())
TURNS = ("What is the capital of France?", "And of Italy?")
LETTERS = ["\u0120", "\u010a", *map(chr, range(33, 127))]
"""What ByteLevel makes of blank, newline and the rest of ASCII: whatever is generated of these is read as the same tokens again."""
TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}a:{% endif %}"


@pytest.fixture
def small(tmp_path: Path) -> str:
    """A LLaMA with random weights over the letters, and a template."""
    saved(
        tmp_path,
        "llama",
        vocab_size=len(LETTERS),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    backend = Backend(models.BPE({letter: i for i, letter in enumerate(LETTERS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}), encoding="utf-8")
    return str(tmp_path)


def chat(weights: str, budget: str) -> tuple[str, ...]:
    return ("chat", "--weights", weights, "--budget", budget, "--machine", "cpu", "--device", "cpu", "--greedy")


def turns(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def check_dialogue(weights: str, budget: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What is answered is what whole texts give, and only what is new is read."""
    read: list[int] = []
    run = generation.ReadyPhase.run

    def counted(phase: generation.ReadyPhase, arrays: Mapping[str, NDArray[np.generic]], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        read.append(int(arrays["lengths"][0]))
        return run(phase, arrays, hooks)

    turns(monkeypatch, TURNS)
    with patch.object(generation.ReadyPhase, "run", counted):
        assert main([*chat(weights, budget), "--max-new", "12", "--positions", "256", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tokenizer, template = load_tokenizer(weights), load_template(weights)
    messages: list[dict[str, str]] = []
    with einpage.open(weights, budget=budget, machine="cpu", device="cpu") as model:
        for line, turn in zip(TURNS, said, strict=True):
            messages.append({"role": "user", "content": line})
            ids = tokenizer.encode_rendered(template.render(messages))
            whole = list(model.tokens(ids, max_new=12, sampling=Sampling()))
            assert turn["tokens"] == whole[: len(turn["tokens"])] and turn["finish"] in ("end", "length")
            messages.append({"role": "assistant", "content": turn["text"]})
    text = tokenizer.encode_rendered(template.render(messages, opens_answer=False))
    assert sum(read) <= len(text) + 4, "no token of the first turn is read again"
    return [turn["text"] for turn in said]


def test_a_dialogue_is_what_whole_texts_give_and_reads_only_what_is_new(
    small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_dialogue(small, "256KiB", monkeypatch, capsys)


@pytest.mark.slow
def test_the_real_model_knows_what_was_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = check_dialogue(WEIGHTS, "256MiB", monkeypatch, capsys)
    assert "Paris" in first and "Rome" in second


@pytest.mark.slow
def test_positions_run_out_loudly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    turns(monkeypatch, ["Count to a hundred. " * 10, "And on."])
    assert main([*chat(WEIGHTS, "256MiB"), "--max-new", "200", "--positions", "128"]) == 2
    said = capsys.readouterr().err
    assert "positions have run out" in said
    assert "positions run out at 128: begin anew, or say --positions" in said.splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--positions", "20"), "--positions 20 is not between 128 and"),
        (("--greedy", "--temperature", "1"), "exclude each other"),
        (("--set", "seq=3"), "--set seq: chat sets it"),
        (("--stop", ""), "--stop is empty"),
        (("--weights", "random:1"), "fit any spec: name one"),
        (("--max-new", "0"), "--max-new 0 is not between 1 and"),
    ],
)
def test_mistakes_are_one_line(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    turns(monkeypatch, ["Hi"])
    assert main([*chat(WEIGHTS, "256MiB"), *words]) == 2
    said = capsys.readouterr()
    assert message in said.err.splitlines()[-1] and not said.out


def test_a_turn_that_is_interrupted_ends_with_what_was_said(
    small: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    passes = 0
    run = generation.ReadyPhase.run

    def interrupted(phase: generation.ReadyPhase, arrays: Mapping[str, Any], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        nonlocal passes
        passes += 1
        if passes == 3:
            raise KeyboardInterrupt
        return run(phase, arrays, hooks)

    turns(monkeypatch, TURNS)
    with patch.object(generation.ReadyPhase, "run", interrupted):
        assert main([*chat(small, "256KiB"), "--max-new", "12", "--positions", "256", "--json"]) == 130
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["finish"] == "interrupted" and len(told["tokens"]) == 2 and told["text"] == load_tokenizer(small).decode(told["tokens"])
