"""What can be refused without this machine's profile is refused before it is measured, which takes seconds."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file

from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.exec.cli import main
from einpage.exec.command import run as run_words
from einpage.exec.planning import judged_plan
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.problem.pace import Pace
from smollm2 import smollm2_path

LINE = """\
einpage: 1
name: line
sizes: {batch: 1, seq: 1, past: 0, room: 0, reach: past + room + seq, vocab: 200}
axes: {b: batch, s: seq, t: reach, v: vocab, m: 4}
inputs:
  tokens: {axes: b s, dtype: int32, range: 0 .. vocab - 1}
  lengths: {axes: b, dtype: int32, default: seq, range: 1 .. seq}
  at: {axes: b, dtype: int32, default: past, range: past .. past + room}
weights: {embed: {axes: v m, from: embed}}
state: {k: {axes: b t m, along: t}}
body:
  - k[b,at[b]+s,m] = embed[tokens[b,s],m]
  - all[b,m] = sum[t](k[b,t,m])
  - logits[b,v] = all[b,m] * embed[v,m]
outputs: {logits: {axes: b v}}
"""


class Measured(Exception):
    """The machine was asked for."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A spec, and a checkpoint of 200 ids with SmolLM2's tokenizer, which has more."""
    (tmp_path / "line.yaml").write_text(LINE, encoding="utf-8")
    save_file({"embed": torch.randn(200, 4, generator=torch.Generator().manual_seed(1))}, tmp_path / "model.safetensors")
    load_tokenizer(str(smollm2_path())).backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "far.json").write_text(json.dumps([1, 200]), encoding="utf-8")
    (tmp_path / "near.json").write_text(json.dumps([1, 2]), encoding="utf-8")
    return tmp_path


def refused(folder: Path, words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The status and the message of a command that may not measure."""
    command, *options = words.replace("HERE", str(folder)).split()
    line = [command, str(folder / "line.yaml"), "--weights", str(folder / "model.safetensors"), "--device", "cpu", *options]
    with patch.object(run_words, "measured_machine", side_effect=Measured):
        status = main(line)
    said = capsys.readouterr()
    assert not said.out and len(said.err.splitlines()) == 1, said.err
    return status, said.err


REFUSALS = {
    "run --budget 1MiB --prompt there": (2, "the prompt: token 0 is 11527, outside 0 .. 199, what `tokens` may be; the tokenizer is not"),
    "generate --budget 1MiB --prompt there": (
        2,
        "the prompt: token 0 is 11527, outside 0 .. 199, what `tokens` may be; the tokenizer is not",
    ),
    "run --budget 1MiB --tokens HERE/far.json": (2, "input tokens[0, 1] is 200, outside its range; give whole numbers from 0 to 199"),
    "run --budget 1MiB --tokens HERE/none.json": (2, "cannot be read"),
    "run --budget 1MiB --input at=HERE/none.json": (2, "cannot be read"),
    "run --budget 1MiB": (2, "not given: tokens[1, 1]"),
    "run --budget 1MiB --tokens HERE/near.json --weights HERE/other.safetensors": (2, "does not exist"),
    "run --budget 1 --tokens HERE/near.json": (3, "smallest budget that works"),
    "run --budget 1 --passes 2 --tokens HERE/near.json": (3, "smallest budget that works"),
    "run --budget 1MiB --tokens HERE/near.json --outputs other": (2, "other"),
    "run --budget 1MiB --tokens HERE/near.json --h2d fast": (2, "--h2d"),
    "generate --budget 1MiB --prompt there --d2h fast": (2, "--d2h"),
    "generate --budget 1MiB --prompt there --max-new 0": (2, "--max-new 0"),
    "generate --budget 1MiB --prompt there --stop \udcff": (2, "--stop: not UTF-8: byte 0xff after 0 characters"),
    "generate --budget 1MiB --prompt @HERE/none.txt": (2, "cannot be read"),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_it_is_refused_before_the_machine_is_measured(folder: Path, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, message = REFUSALS[words]
    found, said = refused(folder, words, capsys)
    assert (found, message in said) == (status, True), said


@pytest.mark.parametrize("spec", ["mlp", "bert", "t5"])
def test_a_spec_that_is_not_sized_for_generation_is_refused_in_its_own_words(
    folder: Path, spec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not in those of a --set that nobody gave."""
    assert main(["generate", spec, "--weights", str(folder / "model.safetensors"), "--budget", "1MiB", "--prompt", "there"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"einpage: {spec} does not generate: it lacks the sizes `") and len(said.splitlines()) == 1


@pytest.mark.parametrize("words", ["run --budget 1MiB --tokens HERE/near.json", "run --budget 1MiB --passes 2 --tokens HERE/near.json"])
def test_it_is_measured_where_nothing_is_wrong(folder: Path, words: str) -> None:
    command, *options = words.replace("HERE", str(folder)).split()
    with patch.object(run_words, "measured_machine", side_effect=Measured) as asked:
        assert main([command, str(folder / "line.yaml"), "--weights", str(folder / "model.safetensors"), "--device", "cpu", *options]) == 1
    asked.assert_called_once()


def test_generation_says_that_a_token_has_no_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model with more rows than its tokenizer has tokens: the last row is the best, always."""
    rows, text = 50_000, LINE.replace("vocab: 200}", "vocab: 50000}")
    (folder / "line.yaml").write_text(text, encoding="utf-8")
    embed = torch.ones(rows, 4)
    embed[-1] = 2
    save_file({"embed": embed}, folder / "model.safetensors")
    line = ["generate", str(folder / "line.yaml"), "--weights", str(folder / "model.safetensors"), "--device", "cpu", "--machine", "cpu"]
    options = ["--budget", "4MiB", "--prompt", "there", "--greedy", "--max-new", "3", "--plan-seconds", "0"]
    assert main([*line, *options]) == 0
    assert "warning: 3 tokens have no text, id 49999 first: the tokenizer does not know them" in capsys.readouterr().err
    assert main([*line, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == ["3 tokens have no text, id 49999 first: the tokenizer does not know them"]


def test_the_time_of_measuring_is_not_that_of_planning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the report nor for the search, which would be over before it began."""
    now_s = [0.0]
    monkeypatch.setattr(judged_plan, "perf_counter", lambda: now_s[0])

    def measured() -> Machine:
        now_s[0] += 1000.0
        return load_machine("cpu")

    program = open_model(folder / "line.yaml").program
    pace = Pace(most_steps=3, until_s=5.0, began_s=0.0)
    planned = judged_plan.plan_program(program, measured, PlanRequest(1 << 20), pace=pace)
    assert planned.report.plan_s < 1.0
    assert (pace.until_s, pace.began_s) == (1005.0, 1000.0)


@pytest.mark.parametrize("command", ["run", "chat", "plan"])
def test_a_command_that_replays_no_plan_says_which_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("--plan", "p.json"), ("--plan=p.json",), ("--plan",)):
        with pytest.raises(SystemExit, match="2"):
            main((command, "llama", *words))
        (line,) = (row for row in capsys.readouterr().err.splitlines() if "error" in row)
        assert "replayed by `generate --plan FILE`" in line
