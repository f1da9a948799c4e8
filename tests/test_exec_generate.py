"""Generation token by token against the eager reference, which runs the whole text anew each time: every budget, dispatcher, bucket."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.cli import main
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import Hooks
from einpage.exec.load.fill import read_weights
from einpage.exec.load.inputs import TokenLists
from einpage.exec.planning import model as model_of_planning
from einpage.exec.planning import plan_set, text_lengths
from einpage.exec.planning.judged_plan import MachineSource
from einpage.exec.planning.model import Model, ModelAt, open_model
from einpage.exec.planning.plan_set import PlannedSet
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.text_lengths import TextLengths
from einpage.exec.run import generation
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.generation import Generation, GenerationFigures, plan_generation, refuse_prompts
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.sampling import Sampling
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.simulate import all_moved_bytes
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import load_machine
from smollm2 import smollm2_path
from specs_small import SPECS

SIZES = {"vocab": 160, "model": 48, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128}
GREEDY = Sampling()
OPTIONS = RunOptions(PlanRequest(1 << 20), dispatch=Dispatch.SERIAL, poison=True)
CPU = load_machine("cpu")
RAGGED = ((5, 17, 3), (1,), (90, 2, 2, 7, 61, 33, 8))


def model_at(sizes: Mapping[str, int]) -> Model:
    return open_model(SPECS / "llama.yaml", {**SIZES, **sizes}, "random:3")


@dataclass(frozen=True)
class Opened:
    """A model held open, and what it is asked."""

    generation: Generation
    prompts: Sequence[Sequence[int]]
    max_new: int

    @property
    def plans(self) -> PlannedSet:
        return self.generation.plans

    @property
    def figures(self) -> GenerationFigures:
        return self.generation.figures


def opened(
    prompts: Sequence[Sequence[int]],
    max_new: int,
    budget: int = 1 << 20,
    dispatch: Dispatch = Dispatch.SERIAL,
    at: ModelAt = model_at,
    machine: Machine | MachineSource = CPU,
) -> Opened:
    options = RunOptions(PlanRequest(budget), dispatch=dispatch, poison=True)
    lists = TokenLists(tuple(map(tuple, prompts)), "the prompts")
    texts = TextLengths.of(lists.lists, max_new)
    refuse_prompts(at, texts, lists)
    plans = plan_generation(at, machine, options, texts)
    return Opened(Generation(plans, options, LoadedModel(options)), prompts, max_new)


def generated(opening: Opened, sampling: Sampling = GREEDY) -> list[list[int]]:
    """[sequence] the new ids."""
    found = opening.generation.tokens(opening.prompts, opening.max_new, sampling)
    return [list(ids) for ids in zip(*found, strict=True)]


@cache
def expected(prompt: tuple[int, ...], max_new: int) -> tuple[int, ...]:
    """The best next tokens by the reference in fp64, which has no state: it runs the whole text for each."""
    ids = list(prompt)
    for _ in range(max_new):
        model = model_at({"batch": 1, "seq": len(ids), "past": 0, "room": 0})
        assert model.resolved is not None
        weights = read_weights(model.resolved, model.program)
        logits = evaluate(model.program, {"tokens": torch.tensor([ids])}, weights, torch.float64, ["logits"])["logits"]
        ids.append(int(logits[0].argmax()))
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("dispatch", Dispatch)
@pytest.mark.parametrize("budget", [36 << 10, 64 << 10, 1 << 20])
def test_tokens_are_the_references(budget: int, dispatch: Dispatch) -> None:
    """Sequences of 1 to 7 tokens in one batch; buckets of 3 positions, so that three are met; memory whose contents ended is poisoned.
    Asked twice, it says the same: nothing of the first time is left."""
    with patch.object(text_lengths, "LEAST_POSITIONS", 3):
        opening = opened(RAGGED, 8, budget, dispatch)
    for _ in range(2):
        assert [tuple(ids) for ids in generated(opening)] == [expected(prompt, 8) for prompt in RAGGED]
        assert len(opening.figures.loaded_bytes) == len(opening.plans.buckets) >= 3


@pytest.mark.parametrize("budget", [36 << 10, 64 << 10, 1 << 20])
def test_where_a_bucket_begins_no_weight_is_loaded(budget: int) -> None:
    """But for the first: what is resident then leaves, and rows of states come."""
    with patch.object(text_lengths, "LEAST_POSITIONS", 3):
        opening = opened(RAGGED, 12, budget)
    generated(opening)
    figures = opening.figures
    assert len(figures.loaded_bytes) == len(opening.plans.buckets) >= 4
    for bucket, loaded in zip(opening.plans.buckets[1:], figures.loaded_bytes[1:], strict=True):
        memgraph = bucket.planned.memgraph
        tensors = [memgraph.graph.tensors[t] for t in memgraph.resident]
        assert loaded == sum(t.nbytes for t in tensors if t.kind is not Kind.WEIGHT)


def test_weights_are_loaded_anew_where_a_plan_has_them_elsewhere() -> None:
    """Phases in their own pieces, as where one of them does not read some weight."""
    with patch.object(plan_set, "weight_pieces", lambda program, graph: {Letter("f"): 2}):
        opening = opened(RAGGED, 4)
    assert opening.plans.first.planned.graph.split != opening.plans.buckets[0].planned.graph.split == ()
    for _ in range(2):
        assert [tuple(ids) for ids in generated(opening)] == [expected(prompt, 4) for prompt in RAGGED]


def test_one_token_needs_one_plan() -> None:
    opening = opened(RAGGED[:1], 1)
    assert generated(opening) == [list(expected(RAGGED[0], 1))]
    assert len(opening.plans.plan_set.phases) == 1 and opening.figures.steps == 0


def test_the_bytes_of_a_pass_are_its_plans() -> None:
    """No weight is read twice for a token, and the rows that are carried are the bucket's own, not all of the past."""
    with patch.object(text_lengths, "LEAST_POSITIONS", 20):
        opening = opened([tuple(range(1, 41))], 6, 48 << 10)
    (bucket,) = opening.plans.buckets
    generated(opening)
    assert opening.figures.moved_bytes == opening.figures.steps * all_moved_bytes(bucket.planned.memgraph)
    graph = bucket.planned.graph
    carried = [t for t in graph.tensors if t.value.startswith(("ck@", "cv@")) and t.kind.value == "input"]
    assert carried and all(t.box.start[1] == bucket.bucket.past == 20 for t in carried), "only rows of the bucket change from pass to pass"


def test_states_lie_where_the_reference_has_them() -> None:
    """After every pass: each row that was written is what the program's own states are when the text is run at once."""
    prompt = RAGGED[2]
    opening = opened([prompt], 5)
    kept: list[dict[str, torch.Tensor]] = []
    run = generation.ReadyPhase.run

    def watched(phase: generation.ReadyPhase, arrays: Mapping[str, Any], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        found = run(phase, arrays, hooks)
        kept.append(phase.states())
        return found

    with patch.object(generation.ReadyPhase, "run", watched):
        (ids,) = generated(opening)
    text = [*prompt, *ids[:-1]]
    model = model_at({"batch": 1, "seq": len(text), "past": 0, "room": 0})
    assert model.resolved is not None
    program = model.program.with_states_as_outputs()
    names = [state.name for state in program.states]
    whole = evaluate(program, {"tokens": torch.tensor([text])}, read_weights(model.resolved, model.program), torch.float64, names)
    assert len(kept) == 5 and len(names) == 4
    for name in names:
        torch.testing.assert_close(kept[-1][name][:, : len(text)].double(), whole[name], rtol=1e-4, atol=1e-5)
        assert not kept[-1][name][:, len(text) :].any(), "rows beyond the text are as they were"


def test_a_seed_draws_the_same_text() -> None:
    first, again, other = (generated(opened(RAGGED, 6), Sampling(temperature=1.0, seed=seed)) for seed in (7, 7, 8))
    assert first == again != other


@pytest.mark.parametrize("spec", ["mlp", "attention"])
def test_a_spec_without_states_is_refused(spec: str) -> None:
    def without(sizes: Mapping[str, int]) -> Model:
        return open_model(SPECS / f"{spec}.yaml", {}, "random:0")

    with pytest.raises(UsageError, match="no `state:`"):
        opened([(1,)], 3, at=without)


LINE = """\
einpage: 1
name: line
sizes: {batch: 1, seq: 1, past: 0, room: 0, reach: past + room + seq, vocab: 50}
axes: {b: batch, s: seq, t: reach, v: vocab}
inputs:
  tokens: {axes: b s, dtype: int32, range: 0 .. 40}
  lengths: {axes: b, dtype: int32, default: seq, range: 1 .. seq}
  at: {axes: b, dtype: int32, default: past, range: past .. past + room}
  hot: {axes: b, dtype: int32, default: 7, range: 0 .. 49}
weights: {w: {axes: v, from: w}}
state: {k: {axes: b t, along: t}}
body:
  - k[b,at[b]+s] = tokens[b,s]
  - sum_of_all[b] = sum[t](k[b,t])
  - logits[b,v] = w[v] * 0 + 9 * (v == hot[b]) + 0 * sum_of_all[b]
outputs: {logits: {axes: b v}}
"""


def of_text(path: Path, text: str, prompts: Sequence[Sequence[int]] = ((1, 2),), max_new: int = 4) -> Opened:
    path.write_text(text, encoding="utf-8")
    return opened(prompts, max_new, at=lambda sizes: open_model(path, sizes, "random:0"))


def test_an_input_has_its_default_in_every_pass(tmp_path: Path) -> None:
    assert generated(of_text(tmp_path / "line.yaml", LINE)) == [[7, 7, 7, 7]]


@pytest.mark.parametrize(
    ("old", "new", "prompts", "message"),
    [
        ("default: 7, range: 0 .. 49", "range: 0 .. 49", ((1, 2),), "it lacks a default for the input `hot`"),
        ("", "", ((1, 41),), r"input tokens\[0, 1\] is 41, outside its range"),
        ("v == hot[b])", "v == 45)", ((1, 2),), r"input tokens\[0, 0\] is 45, outside its range"),
        ("outputs: {logits", "outputs: {other: {axes: b v}, logits", ((1, 2),), "other and logits could each be the logits"),
        ("k: {axes: b t, along: t}", "h: {axes: b}", ((1, 2), (3,)), "the state `h` is written whole, and would take in the padding"),
        ("9 * (v", "sqrt(0 * sum_of_all[b] - 1) * (v", ((1, 2),), "hold NaN or inf, so there is no next token"),
    ],
)
def test_what_would_give_wrong_tokens_is_refused(
    tmp_path: Path, old: str, new: str, prompts: tuple[tuple[int, ...], ...], message: str
) -> None:
    text = LINE.replace(old, new)
    if "other:" in new:
        text = text.replace("  - logits", "  - other[b,v] = w[v] + sum_of_all[b]\n  - logits")
    if "h: {" in new:
        text = text.replace("k[b,at[b]+s] = tokens[b,s]", "h[b] = h[b] + sum[s](tokens[b,s])").replace("sum[t](k[b,t])", "h[b]")
    with pytest.raises(UsageError, match=message):
        generated(of_text(tmp_path / "line.yaml", text, prompts))


TABLE = LINE.replace("weights: {w: {axes: v, from: w}}", "weights: {w: {axes: v, from: w}, table: {axes: p, from: table}}").replace(
    "v: vocab}", "v: vocab, p: 9}"
)


def places(path: Path, rows: int, max_new: int, prompts: Sequence[Sequence[int]]) -> Opened:
    """A spec with a learned table of so many rows, read at every position."""
    text = TABLE.replace("p: 9", f"p: {rows}").replace("+ 0 * sum", "+ 0 * table[at[b] + lengths[b] - 1] + 0 * sum")
    return of_text(path, text, prompts, max_new)


@pytest.mark.parametrize("rows", [6, 9, 30])
@pytest.mark.parametrize("prompts", [((1, 2),), ((1,), (1, 2, 3, 4))])
def test_as_many_tokens_come_as_a_learned_table_has_positions_for(tmp_path: Path, rows: int, prompts: Sequence[Sequence[int]]) -> None:
    """The last of them is not read, so it needs none; one more is refused before the first, and buckets do not ask for more."""
    most = rows - max(map(len, prompts)) + 1
    with patch.object(text_lengths, "LEAST_POSITIONS", 4):
        assert generated(places(tmp_path / "s.yaml", rows, most, prompts)) == [[7] * most] * len(prompts)
        with pytest.raises(UsageError, match=rf"more than the {rows} positions that line has; say --max-new {most}, or less .*`table`"):
            places(tmp_path / "s.yaml", rows, most + 1, prompts)


def test_a_prompt_longer_than_a_learned_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^4 tokens of the prompt are more than the 3 positions that line has; shorten .* to 3"):
        places(tmp_path / "s.yaml", 3, 5, [(1, 2, 3, 4)])


def test_a_later_bucket_that_no_plan_fits_is_refused_before_the_first_token() -> None:
    """Each position adds to what attention has on the device at once. It is so before a machine is asked for too."""

    def none() -> Machine:
        raise AssertionError("no machine is needed to refuse this")

    for machine in (CPU, none):
        with pytest.raises(DoesNotFit, match=r"at position 401 \(a smaller --max-new ends before it\) wants .* smallest budget that works"):
            opened(RAGGED[:1], 400, 27 << 10, machine=machine)
    assert generated(opened(RAGGED[:1], 8, 27 << 10)) == [list(expected(RAGGED[0], 8))]


HUGE = "9" * 400
MISTAKES = {
    "--greedy --top-k 3": "--greedy takes the best token",
    "--greedy --seed 9": "--greedy takes the best token",
    "--stop=": "--stop is empty",
    "--max-new -1": "--max-new -1 is not between 1 and 16,777,216",
    "--max-new 0": "--max-new 0 is not between 1 and 16,777,216",
    "--max-new 1000000000": "--max-new 1000000000 is not between 1 and 16,777,216",
    f"--max-new {HUGE}": "--max-new a whole number of 1329 bits is not between 1 and 16,777,216",
    f"--seed {HUGE}": "--seed a whole number of 1329 bits is not between 0 and 9,223,372,036,854,775,807",
    f"--top-k {HUGE}": "--top-k a whole number of 1329 bits is not between 0 and 2,147,483,648",
    f"--lookup {HUGE}": "--lookup a whole number of 1329 bits is not between 0 and 64",
    "--temperature nan": "--temperature nan is not between 0",
    "--temperature inf": "--temperature inf is not between 0",
    "--temperature -1": "--temperature -1 is not between 0",
    "--top-p 0": "--top-p 0 is not between",
    "--top-k -2": "--top-k -2 is not between",
    "--min-p 2": "--min-p 2 is not between",
    "--repetition-penalty 0": "--repetition-penalty 0 is not between",
    "--seed -1": "--seed -1 is not between",
    "--greedy --temperature 1": "--greedy and --temperature exclude each other",
    "--set past=3": "--set past: generate sets it",
    "--set batch=2": "--set batch: generate sets it",
}


COMMAND = ("generate", "llama", "--budget", "64MiB", "--machine", "cpu")


@pytest.mark.parametrize("option", MISTAKES)
def test_mistakes_are_one_line(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--weights", str(smollm2_path()), "--prompt", "a", *option.split()]) == 2
    said = capsys.readouterr()
    assert MISTAKES[option] in said.err and len(said.err.splitlines()) == 1 and not said.out


@pytest.mark.parametrize(("arguments", "message"), [(("--prompt", ""), "empty"), ((), "generate needs a --prompt")])
def test_no_prompt_is_refused(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "--weights", str(smollm2_path()), *arguments]) == 2
    said = capsys.readouterr()
    assert message in said.err and len(said.err.splitlines()) == 1


@pytest.mark.parametrize(("weights_as", "least", "most"), [("run", 450, 540), ("stored", 28, 45)])
def test_the_real_model_answers(weights_as: str, least: int, most: int, capsys: pytest.CaptureFixture[str]) -> None:
    """In an arena of an eighth of its weights, or of two thirds as they are stored; the tokens are transformers' for the same file."""
    arguments = ("--prompt", "The capital of France is", "--max-new", "10", "--greedy", "--plan-seconds", "0", "--json")
    arguments += ("--weights-as", weights_as)
    assert main([*COMMAND, "--weights", str(smollm2_path()), *arguments]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["text"] == " Paris.\n\nThe answer is: 2" and told["tokens"] == [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34]
    assert told["prompt"] == "The capital of France is"
    assert least << 20 < told["bytes_per_token"] < most << 20, "what the arena of 64 MiB does not hold"
    assert told["tokens_per_s"] > 0 and told["time_to_first_token_s"] > 0 and told["predicted_tokens_per_s"] > 0


@pytest.mark.parametrize(
    ("command", "option", "says"),
    [
        ("chat", f"--positions {HUGE}", "--positions a whole number of 1329 bits is not between 128 and 16,777,216"),
        ("chat", "--positions 1000000000", "--positions 1000000000 is not between 128 and 16,777,216"),
        ("chat", f"--max-new {HUGE}", "--max-new a whole number of 1329 bits is not between 1 and"),
        ("plan", f"--generate {HUGE}", "--generate a whole number of 1329 bits is not between 2 and 16,777,216"),
        ("plan", "--generate 1000000000", "--generate 1000000000 is not between 2 and 16,777,216"),
    ],
)
def test_more_positions_than_any_model_has_are_refused_before_it_is_read(
    command: str, option: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ("--out", str(tmp_path / "set.json")) if command == "plan" else ("--weights", str(smollm2_path()))
    with patch.object(model_of_planning, "load_document", side_effect=AssertionError("the spec is read")):
        assert main([command, *COMMAND[1:], *more, *option.split()]) == 2
    said = capsys.readouterr()
    assert says in said.err and len(said.err.splitlines()) == 1 and not said.out
