"""`einpage chat`: turns on one cache, in which only what is new is read; positions run out loudly; mistakes are one line."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import einpage
from einpage.checkpoints.text.chat_template import load_template
from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.exec.cli import main
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import Hooks
from einpage.exec.run import generation
from einpage.exec.run.sampling import Sampling
from smollm2 import smollm2_path

WEIGHTS = str(smollm2_path())
WORDS = ("chat", "--weights", WEIGHTS, "--budget", "256MiB", "--machine", "cpu", "--device", "cpu", "--greedy")
TURNS = ("What is the capital of France?", "And of Italy?")


def turns(monkeypatch: pytest.MonkeyPatch, lines: Sequence[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def test_a_dialogue_is_what_whole_texts_give_and_reads_only_what_is_new(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    read: list[int] = []
    run = generation.ReadyPhase.run

    def counted(phase: generation.ReadyPhase, arrays: Mapping[str, NDArray[np.generic]], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        read.append(int(arrays["lengths"][0]))
        return run(phase, arrays, hooks)

    turns(monkeypatch, TURNS)
    with patch.object(generation.ReadyPhase, "run", counted):
        assert main([*WORDS, "--max-new", "12", "--positions", "256", "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    tokenizer, template = load_tokenizer(WEIGHTS), load_template(WEIGHTS)
    messages: list[dict[str, str]] = []
    with einpage.open(WEIGHTS, budget="256MiB", machine="cpu", device="cpu") as model:
        for line, turn in zip(TURNS, said, strict=True):
            messages.append({"role": "user", "content": line})
            ids = tokenizer.encode_rendered(template.render(messages))
            whole = list(model.tokens(ids, max_new=12, sampling=Sampling()))
            assert turn["tokens"] == whole[: len(turn["tokens"])] and turn["finish"] in ("end", "length")
            messages.append({"role": "assistant", "content": turn["text"]})
    assert "Paris" in said[0]["text"] and "Rome" in said[1]["text"]
    text = tokenizer.encode_rendered(template.render(messages, opens_answer=False))
    assert sum(read) <= len(text) + 4, "no token of the first turn is read again"


@pytest.mark.slow
def test_positions_run_out_loudly(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    turns(monkeypatch, ["Count to a hundred. " * 10, "And on."])
    assert main([*WORDS, "--max-new", "200", "--positions", "128"]) == 2
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
    assert main([*WORDS, *words]) == 2
    said = capsys.readouterr()
    assert message in said.err.splitlines()[-1] and not said.out


def test_a_turn_that_is_interrupted_ends_with_what_was_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
        assert main([*WORDS, "--max-new", "12", "--positions", "256", "--json"]) == 130
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["finish"] == "interrupted" and len(told["tokens"]) == 2 and told["text"].startswith("The")
