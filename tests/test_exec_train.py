"""`einpage train` on small models: losses and states against the reference in fp64, the same bits in any budget, checkpoints, errors."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import einpage
from einpage.checkpoints.files.write_safetensors import metadata_of
from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.taskgraph import TensorId
from einpage.exec.cli import main
from einpage.exec.load.fill import read_weights
from einpage.exec.load.inputs import token_lists
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.train_step import TrainStep, open_step
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.loaded_model import without_states
from einpage.exec.train.batches import token_batches
from einpage.exec.train.planned_step import bytes_of_step, graphs_of, peak_bytes, plan_step, plan_with
from einpage.exec.train.run import TrainResult, train_model
from einpage.exec.train.saved import TrainOptions
from einpage.exec.train.schedule import RateSchedule, RateShape
from einpage.exec.train.setup import TrainRequest, set_up
from einpage.memplan.graph.memgraph import Compute, Edges, Extent, Free, MemGraph, Move, Offset, Residency, ResidencyId
from einpage.memplan.judge.reason import Reason
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE, HOST, Queue
from einpage.memplan.machine.profile import load_machine
from specs_small import SPECS

SIZES = {"vocab": 90, "model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 48}
SEQUENCES = [[1, 5, 9, 2, 7, 7, 3, 8], [4, 4, 61], [80, 2, 9, 13, 22], [6, 5, 4, 3, 2, 1, 0], [17, 89]]
RATE, DECAY = 3e-3, 0.1
WORDS = ["--machine", "cpu", "--device", "cpu", "--weights", "random:3", *(w for n, x in SIZES.items() for w in ("--set", f"{n}={x}"))]


def small_step(**settings: int) -> TrainStep:
    return open_step("llama", {**SIZES, "seq": 8, **settings}, "random:3", None, DECAY)


def trained(steps: int = 5, **more: Any) -> TrainResult:
    """Of SEQUENCES, in 64 KiB."""
    given = {"budget": "64KiB", "tokens": SEQUENCES, "lr": RATE, "weight_decay": DECAY, **more}
    return einpage.train("llama", "random:3", set=SIZES, machine="cpu", device="cpu", steps=steps, **given)


def by_reference(steps: int, batch: int = 1) -> tuple[list[float], dict[str, Tensor]]:
    """Losses and states in fp64, each step from what the one before left."""
    step = small_step(batch=batch)
    assert step.model.resolved is not None
    batches = token_batches(without_states(step.program), token_lists(SEQUENCES, "these"), batch, {})
    weights = {name: x.double() for name, x in read_weights(step.model.resolved, step.program).items()}
    carried: dict[str, Tensor] = {}
    losses: list[float] = []
    for n in range(steps):
        inputs = {name: torch.from_numpy(x) for name, x in batches.at(n).items()} | {"rate": torch.tensor(RATE, dtype=torch.float64)}
        now = {**weights, **{name: x for name, x in carried.items() if name in weights}}
        carried = evaluate(step.program, {**inputs, **carried}, now, torch.float64)
        losses.append(float(carried.pop(step.loss)))
    return losses, carried


@pytest.mark.parametrize("batch", [1, 2])
def test_steps_are_those_of_the_reference(batch: int) -> None:
    """Losses, weights, moments and the number of the step, in an arena of a fraction of the states."""
    losses, states = by_reference(5, batch)
    found = trained(batch=batch)
    assert np.allclose(found.losses, losses, rtol=1e-5, atol=0)
    assert found.states.keys() == states.keys() and float(found.states["step"]) == 5
    for name, x in states.items():
        assert float((found.states[name].double() - x).abs().max()) <= 2e-5 * max(1e-3, float(x.abs().max())), name
    assert found.planned.memgraph.budget_bytes < sum(x.numel() * 4 for x in states.values()) / 3


def test_the_loss_is_the_sum_over_next_tokens_by_their_number() -> None:
    """Of two sequences of other lengths: neither the mean of means, nor with the padding. A uniform model would give log(vocab) either way,
    so the sequences' own losses are compared."""
    alone = [trained(1, tokens=[SEQUENCES[i]]).losses[0] for i in (0, 1)]
    together = trained(1, tokens=SEQUENCES[:2], batch=2).losses[0]
    assert abs(alone[0] - alone[1]) > 1e-2
    assert abs(together - (7 * alone[0] + 2 * alone[1]) / 9) <= 2e-6


def test_micro_batches_give_the_step_of_the_whole_batch() -> None:
    whole, pieces = trained(3, batch=4), trained(3, batch=4, micro_batches=4)
    assert dict(pieces.planned.graph.split)["b"] == 4 and "b" not in dict(whole.planned.graph.split)
    assert np.allclose(whole.losses, pieces.losses, rtol=0, atol=2e-6)
    assert float((whole.states["embed"] - pieces.states["embed"]).abs().max()) <= 1e-6


@pytest.mark.parametrize("dispatch", ["dynamic", "static", "serial"])
def test_paging_leaves_no_trace(dispatch: str) -> None:
    """The same pieces with room for everything, and in a fraction of it: the same bits."""
    small = trained(3, dispatch=dispatch)
    roomy = trained(3, budget="1GiB", split=dict(small.planned.graph.split))
    assert small.losses == roomy.losses
    assert all(torch.equal(x, roomy.states[name]) for name, x in small.states.items())


def test_a_share_of_the_budget_is_of_the_peak() -> None:
    step = small_step()
    roomy = plan_step(step, load_machine("cpu"), PlanRequest(1 << 30))
    peak = peak_bytes(roomy.graph)
    states = sum(np.prod(s.shape) * 4 for s in step.program.states)
    assert states < peak < 2 * states
    assert trained(1, budget="40%").planned.memgraph.budget_bytes == -(-4 * peak // 10)


def test_bytes_are_the_plans() -> None:
    """Every state is written once a step, and what does not train never."""
    for spec, sizes in (("llama", {}), ("specs/lora/llama.yaml", {"rank": 2})):
        given = {"set": {**SIZES, **sizes}, "machine": "cpu", "device": "cpu", "tokens": SEQUENCES, "budget": "48KiB", "weights_as": "run"}
        found = einpage.train(SPECS.parent / spec if "/" in spec else spec, "random:3", steps=2, **given)
        of, states = found.bytes, sum(x.numel() * 4 for x in found.states.values())
        assert of.states_written + of.states_kept == states, spec
        assert of.read == found.measured.moved_bytes[Queue.H2D] and of.written == found.measured.moved_bytes[Queue.D2H]
        frozen = [w.name for w in small_step().program.weights if w.name not in found.states]
        assert (of.frozen_read > 0) == ("lora" in spec) and (spec == "llama") == (not frozen)
        assert found.facts()["step_frozen_written_bytes"] == 0
        assert of.activations_written > 0


def ends_on_device(memgraph: MemGraph) -> set[TensorId]:
    return {memgraph.residencies[r].tensor for r in memgraph.end if memgraph.residencies[r].place == DEVICE}


def loaded_from_host(memgraph: MemGraph, tensor: TensorId) -> MemGraph:
    """With a load of the host's copy of `tensor` after everything else, beyond what the arena has been."""
    source = next(r for r in memgraph.start if memgraph.residencies[r] == replace(memgraph.residencies[r], tensor=tensor, place=HOST))
    extent = Extent(Offset(memgraph.budget_bytes), memgraph.graph.tensors[tensor].nbytes)
    new = Residency(ResidencyId(len(memgraph.residencies)), tensor, DEVICE, (extent,))
    n, old = len(memgraph.nodes), memgraph.edges
    edges = Edges(
        *(np.append(column, x).astype(column.dtype) for column, x in zip((old.source, old.target, old.kind), (n, n + 1, 0), strict=True))
    )
    wider = memgraph.with_arena(DEVICE, memgraph.budget_bytes + 4096 + extent.nbytes // 4096 * 4096)
    nodes = (*memgraph.nodes, Move(source, new.id), Free(new.id))
    return replace(wider, nodes=nodes, edges=edges, residencies=(*memgraph.residencies, new))


def test_a_state_has_one_home() -> None:
    """The host has weights and moments once, and what fits stays on the device. The judge sees a state that ends elsewhere, one that is
    overwritten while it is read, one that is read on the host where it is old, and an update that does not wait for a reader."""
    step = small_step()
    request = PlanRequest(200 << 10, outputs=step.outputs)
    memgraph = plan_with(step, graphs_of(step, request), load_machine("cpu"), request, 120 << 10)
    assert judge(memgraph) is None and len(memgraph.carried) >= len(step.program.states)
    states = sum(np.prod(s.shape) * 4 for s in step.program.states)
    assert memgraph.host_bytes < 1.5 * states
    moved = bytes_of_step(memgraph)
    assert moved.states_written + moved.states_kept == states and moved.states_kept > 0 and moved.states_written > 0
    there = ends_on_device(memgraph)
    stays, goes = ([pair for pair in memgraph.carried if (pair[1] in there) is here] for here in (True, False))
    (first, last), (other, its) = goes[:2]
    found = [
        replace(memgraph, carried=((first, its), (other, last), *goes[2:], *stays)),
        replace(memgraph, carried=tuple(pair for pair in memgraph.carried if pair != (first, last))),
        replace(memgraph, carried=((stays[0][0], stays[1][1]), *memgraph.carried)),
    ]
    reasons = [violation.reason for plan in found if (violation := judge(plan)) is not None]
    assert reasons == [Reason.CARRIED_ELSEWHERE, Reason.HOST_COPY_FREED, Reason.CARRIED_ELSEWHERE]
    stale = judge(loaded_from_host(memgraph, stays[0][0]))
    assert stale is not None and stale.reason is Reason.CARRIED_ELSEWHERE and "which is read" in stale.message
    tasks = memgraph.graph.tasks
    update = {t: n for n, node in enumerate(memgraph.nodes) if isinstance(node, Compute) for t in tasks[node.task].results}
    waits = [n for n in np.flatnonzero(np.isin(memgraph.edges.target, [update[last] for _, last in stays])) if memgraph.edges.kind[n]]
    seen = set()
    for n in waits:
        edges = Edges(*(np.delete(column, n) for column in (memgraph.edges.source, memgraph.edges.target, memgraph.edges.kind)))
        violation = judge(replace(memgraph, edges=edges))
        seen.add(None if violation is None else violation.reason)
    assert {Reason.DONATED_IN_USE} <= seen <= {None, Reason.DONATED_IN_USE, Reason.RACE}


@pytest.mark.parametrize("budget", [24 << 10, 48 << 10, 128 << 10, 240 << 10, 280 << 10, 4 << 20])
def test_in_every_budget_the_same_bits_on_poisoned_memory(budget: int) -> None:
    """Whatever of the states stays on the device; bytes whose contents have ended are NaN. LoRA too, where most weights do not train."""
    for spec in ("llama", SPECS / "lora" / "llama.yaml"):
        request = TrainRequest(
            spec, "random:3", TrainOptions(3), {**SIZES}, tokens=token_lists(SEQUENCES, "these"), budget=budget, rate=RATE
        )
        poisoned = RunOptions(PlanRequest(1), dispatch=Dispatch.SERIAL, poison=True)
        small = train_model(set_up(request, poisoned), load_machine("cpu"), request.how, "random:3")
        assert small.planned.report.bound_ratio >= 1
        pieces = replace(poisoned.plan, pieces=dict(small.planned.graph.split))
        roomy = set_up(replace(request, budget=1 << 30), replace(poisoned, plan=pieces, poison=False, dispatch=Dispatch.DYNAMIC))
        large = train_model(roomy, load_machine("cpu"), request.how, "random:3")
        assert small.losses == large.losses and all(torch.equal(x, large.states[name]) for name, x in small.states.items())
        assert (large.bytes.states_written, large.bytes.frozen_read) == ((0, 0) if spec != "llama" else (90 * 32 * 4, 0))


def test_rates() -> None:
    constant, linear, cosine = (RateSchedule(1.0, 10, shape, 2) for shape in RateShape)
    assert [constant.at(n) for n in (1, 2, 3, 10)] == [0.5, 1, 1, 1]
    assert [linear.at(n) for n in (1, 2, 3, 7, 10)] == [0.5, 1, 1, 0.5, 0.125]
    assert [round(cosine.at(n), 6) for n in (2, 3, 7, 11)] == [1, 1, 0.5, 0]
    assert [RateSchedule(1.0, 4).at(n) for n in (1, 4)] == [1, 1]


def test_the_rate_of_a_step_is_the_schedules() -> None:
    """The first of two steps that rise to the rate is at half of it: what follows it is what follows a step at half the rate."""
    rising, half, whole = trained(2, warmup=2), trained(2, lr=RATE / 2), trained(2)
    assert rising.losses == half.losses != whole.losses
    assert not torch.equal(rising.states["embed"], half.states["embed"]), "and the second at all of it"


def command(*words: str, out: Path) -> list[str]:
    return ["train", "llama", *WORDS, "--budget", "64KiB", "--lr", "3e-3", "--out", str(out), *words]


@pytest.fixture
def sequences(tmp_path: Path) -> str:
    file = tmp_path / "sequences.json"
    file.write_text(json.dumps(SEQUENCES))
    return str(file)


def facts(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_killed_run_goes_on_bit_for_bit(sequences: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SIGKILL in the middle of a step, checkpoints every 3: the same bits at the end as of a run that nothing stopped."""
    more = ["--tokens", sequences, "--steps", "10", "--schedule", "cosine", "--warmup", "2", "--checkpoint-every", "3", "--json"]
    assert main(command(*more, out=tmp_path / "whole")) == 0
    whole = facts(capsys)
    line = [sys.executable, "-m", "einpage.exec.cli", *command(*more, out=tmp_path / "killed")]
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=SPECS.parent) as run:
        assert run.stderr is not None
        for said in run.stderr:
            if said.startswith("step 7/"):
                run.send_signal(signal.SIGKILL)
                break
        run.stderr.read()
    steps = int(metadata_of(tmp_path / "killed" / "checkpoint.safetensors")["steps"])
    assert run.returncode == -signal.SIGKILL and steps in (6, 9)
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    assert main(command(*more, "--resume", out=tmp_path / "killed")) == 0
    resumed = facts(capsys)
    assert resumed["resumed_at"] == steps and resumed["losses"] == whole["losses"] and len(whole["losses"]) == 10
    assert resumed["rates"] == whole["rates"][steps:]
    for name in ("checkpoint.safetensors", "model.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_trained_weights_run(sequences: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The folder of a run is a checkpoint of the spec: its perplexity is what the next step's loss says."""
    one = tmp_path / "one.json"
    one.write_text(json.dumps(SEQUENCES[0]))
    assert main(command("--tokens", str(one), "--steps", "5", "--json", out=tmp_path / "trained")) == 0
    files = facts(capsys)["saved"]
    assert [Path(file).name for file in files] == ["checkpoint.safetensors", "model.safetensors"]
    run = ["run", "llama", "--weights", str(tmp_path / "trained"), "--budget", "64KiB", "--machine", "cpu", "--tokens", str(one), "--json"]
    assert main([*run, "--perplexity", *(w for n, x in SIZES.items() for w in ("--set", f"{n}={x}"))]) == 0
    nll = facts(capsys)["mean_nll"]
    assert main(command("--tokens", str(one), "--steps", "6", "--json", "--resume", out=tmp_path / "trained")) == 0
    assert abs(facts(capsys)["losses"][5] - nll) <= 2e-6


def test_a_run_for_a_person(sequences: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, picture = tmp_path / "trace.json", tmp_path / "step.svg"
    more = ("--tokens", sequences, "--steps", "2", "--batch", "2", "--trace", str(trace), "--timeline", str(picture))
    assert main(command(*more, out=tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert said.startswith("step 1/2  loss 4.") and "the plan's bytes exactly" in said and "frozen weights 0B read" in said
    assert trace.stat().st_size > 1000 and picture.read_text().startswith("<svg")


REFUSED: Mapping[str, tuple[Sequence[str], str]] = {
    "nothing to learn": ((), "--data TEXT-FILE, or --tokens FILE.json"),
    "a spec without training": (("mlp", "--tokens", "SEQUENCES"), "no `train:` says what to train; add one"),
    "two things to learn": (("--tokens", "SEQUENCES", "--data", "SEQUENCES"), "use one"),
    "a text without a tokenizer": (("--data", "SEQUENCES"), "tokenizer"),
    "fewer sequences than a batch": (("--tokens", "SEQUENCES", "--batch", "6"), "5 sequences, fewer than the 6 of a step; say --batch 5"),
    "no target": (("--tokens", "ONES"), "sequence 1 has one token each, so step 2 has no next token to learn"),
    "a token there is not": (("--tokens", "LARGE"), "element 1 of sequence 1 is 90, outside 0 .. 89"),
    "a sequence that is too long": (("--tokens", "SEQUENCES", "--seq", "7"), "sequence 0 has 8 tokens, and seq is 7"),
    "a size twice": (("--tokens", "SEQUENCES", "--seq", "8", "--set", "seq=8"), "--seq and --set seq both give the size"),
    "no batch": (("--tokens", "SEQUENCES", "--batch", "0"), "--batch 0 is not at least 1"),
    "too many micro-batches": (("--tokens", "SEQUENCES", "--batch", "2", "--micro-batches", "3"), "a step has 2 sequences; say 1 to 2"),
    "no step": (("--tokens", "SEQUENCES", "--steps", "0"), "--steps 0 is not between 1 and"),
    "no rate": (("--tokens", "SEQUENCES", "--lr", "-1"), "--lr -1 is not between 0 and"),
    "a rate that is none": (("--tokens", "SEQUENCES", "--lr", "nan"), "--lr nan is not between 0 and"),
    "a longer warmup than steps": (("--tokens", "SEQUENCES", "--warmup", "9"), "--warmup 9 is more than the 3 steps"),
    "a share of nothing": (("--tokens", "SEQUENCES", "--budget", "0%"), "a share is above 0 %"),
    "a share of more": (("--tokens", "SEQUENCES", "--budget", "101%"), "at most 100 %"),
    "checkpoints nowhere": (("--tokens", "SEQUENCES", "--checkpoint-every", "2"), "--checkpoint-every needs --out"),
    "resumed from nowhere": (("--tokens", "SEQUENCES", "--resume"), "--resume needs --out"),
    "resumed from nothing": (("--tokens", "SEQUENCES", "--resume", "--out", "EMPTY"), "there is no"),
    "a loss scale that is none": (
        ("--tokens", "SEQUENCES", "--loss-scale", "large"),
        "--loss-scale 'large': expected `dynamic`, `none`, or numbers",
    ),
    "a disk": (("--tokens", "SEQUENCES", "--host-budget", "1MiB"), "has no disk behind it; leave it out"),
    "half a precision": (
        (
            "--tokens",
            "MISSING",
        ),
        "cannot be read",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, sequences: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the place and a cure, before anything is written."""
    words, message = REFUSED[name]
    spec, rest = (words[0], words[1:]) if words and not words[0].startswith("-") else ("llama", words)
    (tmp_path / "ones.json").write_text("[[1, 2], [3], [4, 5]]")
    (tmp_path / "large.json").write_text("[[1, 2], [3, 90]]")
    files = {"SEQUENCES": sequences, "EMPTY": str(tmp_path / "empty")}
    files |= {"ONES": str(tmp_path / "ones.json"), "LARGE": str(tmp_path / "large.json"), "MISSING": str(tmp_path / "no.json")}
    line = [
        "train",
        spec,
        *(WORDS if spec == "llama" else WORDS[:6]),
        "--budget",
        "64KiB",
        "--steps",
        "3",
        *(files.get(w, w) for w in rest),
    ]
    assert main(line) == 2
    out, err = capsys.readouterr()
    assert message in err and out == "" and err.startswith("einpage: ") and err.count("\n") == 1


def test_checkpoints_that_are_refused(sequences: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another spec, or sizes; one that would be replaced; one of no step more; one cut off."""
    out = tmp_path / "out"
    line = command("--tokens", sequences, "--steps", "3", out=out)
    assert main(line) == 0
    changed = tmp_path / "llama.yaml"
    changed.write_text((SPECS / "llama.yaml").read_text().replace("silu(gate", "relu(gate"))
    capsys.readouterr()
    for message, words in {
        "holds the checkpoint of an earlier run; say --resume": line,
        "the checkpoint is of step 3 already; say more": [*line, "--resume"],
        "is of another spec, `llama`: its statements are others": [*line[:1], str(changed), *line[2:], "--resume", "--steps", "4"],
        "is of another spec, `llama`: it lacks": [*[w.replace("ffn=48", "ffn=40") for w in line], "--resume", "--steps", "4"],
    }.items():
        assert main(words) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1
    checkpoint = out / "checkpoint.safetensors"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-100])
    assert main([*line, "--resume", "--steps", "4"]) == 2
    assert "truncated" in capsys.readouterr().err


def test_arguments_from_python() -> None:
    for more, message in (
        ({"lr": "fast"}, "lr is 'fast', expected a number"),
        ({"schedule": "step"}, "expected constant or linear or cosine"),
        ({"tokens": [[1.5]]}, "not a token id"),
        ({"steps": 2.5}, "steps is 2.5, expected a whole number"),
        ({"device": "tpu"}, "device 'tpu'"),
    ):
        with pytest.raises(EinpageError) as caught:
            einpage.train(
                "llama", "random:3", **{"set": SIZES, "machine": "cpu", "steps": 1, "tokens": SEQUENCES, "budget": "64KiB", **more}
            )
        assert message in str(caught.value)


def test_a_loss_that_is_none_is_told_and_saved(sequences: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = [*command("--tokens", sequences, "--steps", "4", "--json", out=tmp_path / "out"), "--lr", "1e5"]
    assert main(line) == 0
    first = facts(capsys)
    assert None in first["losses"] and "a smaller --lr may keep it finite" in first["warnings"][-1]
    assert main([*line, "--resume", "--steps", "5"]) == 0
    assert facts(capsys)["losses"][:4] == first["losses"]
