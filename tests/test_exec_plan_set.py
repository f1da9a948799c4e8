"""Plan sets on the command line: planned, saved, verified and replayed by `generate --plan`, with the tokens of a set made on the spot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.cli import main
from einpage.exec.device.device import left_there
from einpage.exec.planning import text_lengths
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.plan_set import PlannedSet, plan_texts, replayed
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.exec.run.choose import RunOptions
from einpage.exec.run.generation import Generation
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.sampling import Sampling
from einpage.memplan.graph.memgraph import PlanSet
from einpage.memplan.graph.planfile import load_plan_set, save_plan_set
from einpage.memplan.judge.plan_set import judge_set
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.residency.loading import loading
from smollm2 import smollm2_path
from specs_small import SPECS
from test_fuzz_files import planned_set, small_language
from tiny_specs import GENERATING

SIZES = {"vocab": 160, "model": 48, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128}
CPU = load_machine("cpu")
LENGTHS = TextLengths(1, 8, 1, 20)
REQUEST = PlanRequest(100 << 10)
ON_CPU = ("--machine", "cpu", "--device", "cpu")
OPTIONS = RunOptions(REQUEST, poison=True)


def model_at(sizes: Mapping[str, int]) -> Model:
    return open_model(SPECS / "llama.yaml", {**SIZES, **sizes}, "random:3")


def planned(lengths: TextLengths = LENGTHS) -> PlannedSet:
    with patch.object(text_lengths, "LEAST_POSITIONS", 8):
        return plan_texts(model_at, CPU, REQUEST, lengths)


@cache
def saved(lengths: TextLengths = LENGTHS) -> PlanSet:
    """A set as it is read from a file."""
    with TemporaryDirectory() as folder:
        save_plan_set(Path(folder, "set.json"), planned(lengths).plan_set, {})
        return load_plan_set(Path(folder, "set.json")).plans


def tokens(plans: PlannedSet, prompt: list[int], max_new: int) -> list[int]:
    return [ids[0] for ids in Generation(plans, OPTIONS, LoadedModel(OPTIONS)).tokens([prompt], max_new, Sampling())]


@pytest.mark.parametrize("length", [1, 5, 8])
def test_a_saved_set_replays_the_tokens_of_plans_made_for_the_prompt(length: int) -> None:
    """One set serves prompts of any length up to its own."""
    prompt = list(range(3, 3 + length))
    again = replayed(saved(), LENGTHS, model_at, CPU, REQUEST)
    assert tokens(again, prompt, 20) == tokens(planned(TextLengths(1, length, length, 20)), prompt, 20)


def test_phases_are_made_when_they_are_reached() -> None:
    opened: list[int] = []

    def noted(sizes: Mapping[str, int]) -> Model:
        opened.append(sizes["past"])
        return model_at(sizes)

    again = replayed(saved(), LENGTHS, noted, CPU, REQUEST)
    assert opened == [0, 0], "the prompts' and the first bucket's"
    tokens(again, [3], 20)
    assert opened[2:] == [phase.past for phase in saved().phases[2:] if phase.past < 20] and len(opened) > 3


def test_weights_stay_where_they_are_over_the_buckets() -> None:
    phases = saved().phases
    for before, phase in pairwise(phases):
        there = left_there(before.memgraph, phase.memgraph)
        memgraph = phase.memgraph
        resident = [r for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place == DEVICE]
        assert {r.id for r in resident if memgraph.graph.tensors[r.tensor].kind.value == "weight"} == there != frozenset()
    prompts, token = phases[0].memgraph, phases[1].memgraph
    assert left_there(loading(prompts), prompts) == {r for r in prompts.start if prompts.residencies[r].place == DEVICE}
    assert left_there(loading(prompts), token) == left_there(prompts, token), "what a first prompt loads stays as well"


def test_another_offset_is_not_there() -> None:
    """Of the same weight in a plan that has its residents in another order."""
    one, other = (plan_texts(model_at, CPU, PlanRequest(budget), LENGTHS).plan_set.phases[1].memgraph for budget in (100 << 10, 110 << 10))
    assert one.resident and other.resident
    offsets = [
        {m.graph.tensors[r.tensor].name: r.extents for r in map(m.residencies.__getitem__, m.start) if r.place == DEVICE}
        for m in (one, other)
    ]
    same = {name for name, extents in offsets[1].items() if offsets[0].get(name) == extents}
    assert {other.graph.tensors[other.residencies[r].tensor].name for r in left_there(one, other)} == same != set(offsets[1])


@pytest.mark.parametrize(
    ("prompts", "max_new", "message"),
    [
        ([[1], [2]], 2, "2 prompts, and the plans are for 1"),
        ([[1] * 9], 2, "a prompt of 9 tokens, and the plans are for 1 to 8"),
        ([[1] * 8], 21, "29 tokens, and the plans are for 28"),
    ],
)
def test_what_was_not_planned_for_is_refused(prompts: list[list[int]], max_new: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        next(Generation(planned(), OPTIONS, LoadedModel(OPTIONS)).tokens(prompts, max_new, Sampling()))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((9, 12), r"^prompts of 9 to 12 tokens, and the plans are for 4 to 8; plan for these$"),
        ((9, 9), r"^prompts of 9 tokens, and the plans are for 4 to 8; plan for these$"),
        ((9,), r"^1 prompt, and the plans are for 2; plan for these$"),
    ],
)
def test_lengths_are_said_as_they_are(lengths: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TextLengths(2, 8, 4, 20).refuse_others([[1] * n for n in lengths], 2)


def test_plans_for_one_token_serve_no_more() -> None:
    for texts in (TextLengths(1, 5, 1, 1), TextLengths(2, 5, 3, 1)):
        texts.refuse_others([[4, 4, 4]] * texts.batch, 1)
        with pytest.raises(UsageError, match=r"^--max-new 3, and the plans are for 1 token after a prompt; plan for more$"):
            texts.refuse_others([[4, 4, 4]] * texts.batch, 3)


def test_a_short_prompt_may_go_on_for_longer() -> None:
    plans = planned()
    assert len(tokens(plans, [4], 27)) == 27
    with pytest.raises(UsageError, match="29 tokens, and the plans are for 28"):
        tokens(plans, [4], 28)


@pytest.mark.parametrize("changed", [{"ffn": 96}, {"layers": 3}, {"vocab": 161}], ids=str)
def test_a_set_of_another_spec_is_refused(changed: Mapping[str, int]) -> None:
    def other(sizes: Mapping[str, int]) -> Model:
        return open_model(SPECS / "llama.yaml", {**SIZES, **changed, **sizes}, "random:3")

    with pytest.raises(UsageError, match=r"^--plan: .* another spec, or of other weights: .* \(phase 0\); make it with"):
        replayed(saved(), LENGTHS, other, CPU, REQUEST)


@pytest.mark.parametrize(
    "lengths",
    [
        LENGTHS,
        TextLengths(2, 8, 5, 9),
        TextLengths(2, 8, 8, 9, chunk=4),
        TextLengths(1, 8, 6, 9, chunk=4, lookup=2),
        TextLengths(2, 8, 6, 1),
    ],
    ids=["one prompt", "unequal prompts", "chunks", "chunks and lookup", "one token"],
)
def test_a_recipe_that_is_not_the_plans_own_is_refused(lengths: TextLengths) -> None:
    """Any number of the recipe is one more or one less, or one of the plans is and the judge does not mind."""
    plans = saved(lengths)
    replayed(plans, lengths, model_at, CPU, REQUEST)
    for by in (-1, 1):
        for name in ("longest", "shortest", "max_new", "chunk", "lookup"):
            texts = replace(lengths, **{name: getattr(lengths, name) + by})
            is_possible = 1 <= texts.shortest <= texts.longest and texts.max_new and min(texts.chunk, texts.lookup) >= 0
            if is_possible and (texts.batch == 1 or not texts.lookup):
                refused_recipe(plans, texts, REQUEST)
        for name in ("longest", "shortest", "positions", "spread"):
            damaged = replace(plans, **{name: getattr(plans, name) + by})
            if damaged.spread >= 0 and judge_set(damaged) is None:
                refused_recipe(damaged, lengths, REQUEST)
        refused_recipe(plans, lengths, PlanRequest(REQUEST.budget_bytes + by))
    with pytest.raises(UsageError):
        replayed(plans, replace(lengths, batch=lengths.batch + 1), model_at, CPU, REQUEST)


def refused_recipe(plans: PlanSet, texts: TextLengths, request: PlanRequest) -> None:
    with pytest.raises(UsageError, match="its recipe speaks of other texts, or another budget"):
        replayed(plans, texts, model_at, CPU, request)


def folder(tmp_path: Path) -> Path:
    """A spec that generates, its weights, its tokenizer and a saved set."""
    for name, content in {**small_language(), "spec.yaml": GENERATING, "set.json": planned_set()}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    assert main(words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_the_command_replays_what_it_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = folder(tmp_path)
    spec, weights, saved = (str(where / name) for name in ("spec.yaml", "m", "set.json"))
    asked = ("--weights", weights, "--prompt", "hell", "--max-new", "6", *ON_CPU, "--greedy", "--json")
    replay = said(capsys, "generate", spec, "--plan", saved, *asked)
    fresh = said(capsys, "generate", spec, "--budget", "64KiB", *asked)
    assert replay["tokens"] == fresh["tokens"] and len(replay["tokens"]) == 6
    assert said(capsys, "verify", saved, "--spec", spec, "--json")["verified"]
    shutil.copy(SPECS / "llama.yaml", spec)
    assert main(("verify", saved, "--spec", spec)) == 2


@pytest.mark.parametrize("count", ["Infinity", "1e999", "-1", "2.5", '"1"', "null", "[]"])
@pytest.mark.parametrize("command", ["verify", "generate"])
def test_a_recipe_with_no_count_where_one_belongs_is_damaged(
    count: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = folder(tmp_path)
    saved, spec = where / "set.json", str(where / "spec.yaml")
    text = saved.read_text(encoding="utf-8")
    assert text.count('"batch":1,') == 1
    saved.write_text(text.replace('"batch":1,', f'"batch":{count},'), encoding="utf-8")
    rest = ("--weights", str(where / "m"), "--prompt", "hell", *ON_CPU)
    words = (command, str(saved), "--spec", spec) if command == "verify" else (command, spec, "--plan", str(saved), *rest)
    assert main(words) == 2
    assert "damaged plan file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--budget", "1MiB"), "--budget: --plan "),
        (("--dtype", "fp16", "--set", "vocab=3"), "--dtype, --set: --plan "),
        (("--plan-seconds", "1"), "--plan-seconds: --plan "),
        (("--prompt", "hell"), "2 prompts, and the plans are for 1"),
        (("--max-new", "40"), "--max-new 11 is planned for"),
        (("--max-new", "0"), "--max-new 0 is not between 1 and"),
    ],
)
def test_what_the_file_says_is_not_asked_again(
    tmp_path: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = folder(tmp_path)
    asked = ("--weights", str(where / "m"), "--prompt", "hell", *ON_CPU, "--max-new", "3")
    assert main(("generate", str(where / "spec.yaml"), "--plan", str(where / "set.json"), *asked, *words)) == 2
    told = capsys.readouterr()
    assert message in told.err and len(told.err.splitlines()) == 1 and not told.out


@pytest.mark.parametrize("words", [(), ("--set", "seq=1000")], ids=str)
def test_more_positions_than_there_are_is_said_of_the_option(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Of what was asked for, and not of the line of the spec at which positions end."""
    assert main(("plan", "gpt2", "--set", "layers=1", "--budget", "8GiB", "--generate", "2001", *words)) == 2
    told = capsys.readouterr()
    assert "--generate 2001 is more than the 1024 positions that gpt2 has; say --generate 1024, or less (" in told.err
    assert len(told.err.splitlines()) == 1 and not told.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--passes", "2"), "--passes: of one plan"),
        (("--warm", "--free-order"), "--warm, --free-order: of one plan"),
        (("--policy", "stream-all"), "--policy: of one plan"),
        (("--set", "past=2"), "--set past and --set room"),
        (("--set", "seq=12"), "ask for more"),
        (("--generate", "0"), "--generate 0 is not between 2 and"),
    ],
)
def test_a_set_that_is_not_one_is_refused(tmp_path: Path, words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    where = folder(tmp_path)
    assert main(("plan", str(where / "spec.yaml"), "--budget", "64KiB", "--generate", "12", *words)) == 2
    told = capsys.readouterr()
    assert message in told.err and len(told.err.splitlines()) == 1 and not told.out


@pytest.mark.parametrize(("weights_as", "most"), [("run", 1.4), ("stored", 2.0)])
def test_a_set_for_the_real_model(weights_as: str, most: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its report is by bucket; saved and read again it is judged right, and says the same tokens as plans made on the spot."""
    weights, out = str(smollm2_path()), str(tmp_path / "set.json")
    words = ("--weights", weights, "--budget", "64MiB", "--generate", "80", "--set", "seq=8", "--machine", "cpu")
    facts = said(capsys, "plan", "llama", *words, "--weights-as", weights_as, "--out", out, "--json")
    assert [(phase["past"], phase["extra"], phase["tokens"]) for phase in facts["phases"]] == [(0, 0, 8), (0, 79, 1)]
    assert all(1 <= phase["bound_ratio"] < most for phase in facts["phases"]) and facts["positions"] == 80
    asked = (
        "--weights",
        weights,
        "--prompt",
        "The capital of France is",
        "--max-new",
        "6",
        "--machine",
        "cpu",
        "--device",
        "cpu",
        "--greedy",
    )
    assert said(capsys, "generate", "llama", "--plan", out, *asked, "--json")["tokens"] == [7042, 30, 198, 198, 504, 2988]
