"""Training whose tasks run twice: the same bits, no second run after the update of what it reads, never slower, and in less of a host."""

from __future__ import annotations

import json
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from command_line import ran
from einpage.exec.load.inputs import token_lists
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.train_step import TrainStep, open_step
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.loaded_model import without_states
from einpage.exec.train.batches import token_batches
from einpage.exec.train.carried import StatePairs
from einpage.exec.train.planned_step import plan_step
from einpage.exec.train.trainer import Trainer
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import Compute, MemGraph, Move
from einpage.memplan.graph.simulate import second_runs
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import load_machine
from specs_small import SPECS

SIZES = {"vocab": 64, "model": 16, "layers": 2, "heads": 2, "kv_heads": 1, "ffn": 24, "seq": 16, "batch": 2}
SEQUENCES = [[1, 5, 9, 2, 7, 7, 3, 8, 60, 4, 4, 61, 12, 9, 1, 2], [6, 5, 4, 3, 2, 1, 0], [17, 39, 8], [33, 2, 9, 13, 22, 5, 5, 5, 1]]
KIB = 1 << 10


def step(seed: int = 3, **sizes: int) -> TrainStep:
    return open_step("llama", {**SIZES, **sizes}, f"random:{seed}")


def machine(bytes_per_s: float = 2e7, host_bytes: int = 1 << 40) -> Machine:
    """Links so slow that it pays to compute twice."""
    found = load_machine("cpu")
    return replace(found.with_links(*(replace(link, bytes_per_s=bytes_per_s) for link in found.links)), host_bytes=host_bytes)


def planned(of: Machine, budget: int, recompute: Recompute, plan_steps: int | None = None, **sizes: int) -> Planned:
    return plan_step(step(**sizes), of, PlanRequest(budget, recompute=recompute, plan_steps=plan_steps))


def trained(plan: Planned, seed: int, dispatch: Dispatch, poison: bool = False) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of two steps, and all states after them."""
    of = step(seed)
    batches = token_batches(without_states(of.program), token_lists(SEQUENCES, "these"), SIZES["batch"], {})
    options = RunOptions(PlanRequest(plan.memgraph.budget_bytes), dispatch=dispatch, poison=poison)
    with closing(Trainer(of, plan, options)) as trainer:
        losses = [trainer.take({**batches.at(n), of.rate_input: np.array(3e-3, np.float32)}).loss for n in range(2)]
        return losses, {state.name: trainer.state(state.name).clone() for state in trainer.states}


def assert_same_bits(plan: Planned, other: Planned, seed: int, dispatch: Dispatch) -> None:
    """`plan` on memory that is overwritten where its contents have ended."""
    assert plan.graph.split == other.graph.split
    (losses, states), (its, its_states) = trained(plan, seed, dispatch, poison=True), trained(other, seed, dispatch)
    assert losses == its and losses[0] != losses[1] and np.isfinite(losses).all()
    assert states.keys() == its_states.keys() and all(torch.equal(x, its_states[name]) for name, x in states.items())


def read_again(memgraph: MemGraph, pairs: StatePairs) -> int:
    """How many second runs read a state, each proven to stand before the update of it."""
    tasks, first_run, found = memgraph.graph.tasks, dict[int, int](), list[tuple[int, int]]()
    for n, node in enumerate(memgraph.nodes):
        if isinstance(node, Compute) and first_run.setdefault(node.task, n) != n:
            found.append((n, node.task))
    update = {t: n for task, n in first_run.items() for t in tasks[task].results}
    assert all(n < update[last] for n, task in found for first, last in pairs if first in tasks[task].reads())
    return sum(any(first in tasks[task].reads() for first, _ in pairs) for _, task in found)


def test_a_host_that_is_too_small_without_second_runs() -> None:
    """The same losses and states, from several weights at the start, as of a plan without them on a host that has room."""
    small = machine(host_bytes=150 * KIB)
    with pytest.raises(DoesNotFit, match="host"):
        planned(small, 50 * KIB, Recompute.NEVER)
    again, alone = planned(small, 50 * KIB, Recompute.FASTEST), planned(machine(), 50 * KIB, Recompute.NEVER)
    assert second_runs(again.memgraph) > 0 and second_runs(alone.memgraph) == 0
    assert again.memgraph.host_bytes <= 150 * KIB
    assert again.timeline.makespan_s < alone.timeline.makespan_s
    for seed, dispatch in ((1, Dispatch.SERIAL), (2, Dispatch.DYNAMIC), (3, Dispatch.STATIC)):
        assert_same_bits(again, alone, seed, dispatch)


@pytest.mark.parametrize(("budget", "recompute"), [(32 * KIB, Recompute.FASTEST), (32 * KIB, Recompute.ALL), (60 * KIB, Recompute.ALL)])
def test_no_task_runs_again_after_the_update_of_what_it_reads(budget: int, recompute: Recompute) -> None:
    """A weight that stays is written over in place: a task that read it afterwards would read the next one."""
    alone = planned(machine(), budget, Recompute.NEVER)
    again = planned(machine(), budget, recompute)
    assert judge(again.memgraph) is None and second_runs(again.memgraph) > 0
    assert read_again(again.memgraph, again.memgraph.carried) > 0
    if again.graph.split == alone.graph.split:
        assert_same_bits(again, alone, 3, Dispatch.SERIAL)


SIZES_OF_ONE_LAYER = {"layers": 1, "seq": 8, "batch": 1}


@pytest.mark.parametrize(("rate", "plan_steps"), [(6e7, 600), (1e10, None)])
def test_never_slower(rate: float, plan_steps: int | None) -> None:
    """Nor where plans are searched for, and the search without second runs finds more."""
    alone, again = (
        planned(machine(rate), 40 * KIB, recompute, plan_steps, **SIZES_OF_ONE_LAYER) for recompute in (Recompute.NEVER, Recompute.FASTEST)
    )
    assert again.timeline.makespan_s <= alone.timeline.makespan_s


SMALL_HOST = ("llama", *(w for n, x in SIZES.items() if n != "seq" for w in ("--set", f"{n}={x}")), "--seq", "16", "--weights", "random:3")


@pytest.fixture
def small_machine(tmp_path: Path) -> str:
    """Its links are slow, and the host has room for weights and moments, and little besides."""
    file = tmp_path / "small.yaml"
    text = (SPECS / "machines" / "cpu.yaml").read_text()
    for name, value in (("host_bytes", "150KiB"), ("h2d_bytes_per_s", "2e7"), ("d2h_bytes_per_s", "2e7")):
        text = re.sub(rf"(?m)^{name}: .*$", f"{name}: {value}", text)
    file.write_text(text)
    return str(file)


def test_the_command_line_trains_on_a_host_that_is_too_small_without_second_runs(
    small_machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names --recompute; with it weights and moments are those of a run with room for everything, bit for bit, in each
    dispatch; what was planned is said."""
    sequences = tmp_path / "sequences.json"
    sequences.write_text(json.dumps(SEQUENCES))

    def trains(out: str, *words: str, status: int = 0) -> tuple[str, str]:
        given = ("--tokens", str(sequences), "--steps", "3", "--lr", "3e-3", "--device", "cpu", "--out", str(tmp_path / out))
        return ran(capsys, "train", *SMALL_HOST, *given, *words, status=status)

    def saved(out: str) -> dict[str, torch.Tensor]:
        return load_file(tmp_path / out / "checkpoint.safetensors")

    little = ("--machine", small_machine, "--budget", "50KiB")
    _, err = trains("refused", *little, status=3)
    assert err.endswith("a larger host is needed, or --recompute fastest, which offloads less\n") and err.count("\n") == 1
    _, err = trains("refused", *little, "--recompute", "all", status=3)
    assert err.endswith("a larger host is needed\n"), "it was asked for"
    split = None
    for dispatch in Dispatch:
        out, _ = trains(dispatch.value, *little, "--recompute", "fastest", "--dispatch", dispatch.value, "--json")
        facts = json.loads(out)
        split = ",".join(f"{letter}={n}" for letter, n in facts["split"].items())
        assert facts["second_runs"] > 0 and facts["second_runs_spared_bytes"] > 0 and 0 < facts["second_runs_s"] < facts["compute_s"]
        assert facts["predicted_without_second_runs_s"] is None and facts["host_bytes"] <= 150 * KIB
    roomy = ("--machine", "cpu", "--budget", "64MiB", *(("--split", split) if split else ()))
    out, _ = trains("roomy", *roomy, "--json")
    facts = json.loads(out)
    assert facts["second_runs"] == facts["second_runs_spared_bytes"] == facts["step_activations_written_bytes"] == 0
    assert facts["predicted_without_second_runs_s"] == facts["predicted_s"]
    room = saved("roomy")
    for dispatch in Dispatch:
        found = saved(dispatch.value)
        assert found.keys() == room.keys() and all(torch.equal(x, room[name]) for name, x in found.items())
    assert len(room) >= 3 * 21, "weights, and two moments of each"


@pytest.mark.parametrize(
    ("budget", "policy", "said"),
    [
        ("50KiB", "fastest", r"\d+ second runs in [\d.]+ .s, for [\d.]+KiB that no link carries; without them nothing fits"),
        ("4MiB", "fastest", "no second run: none makes a step faster"),
        ("4MiB", "all", "no second run: nothing is offloaded that a task could make again"),
        ("4MiB", "never", None),
    ],
)
def test_what_is_planned_is_said(
    budget: str, policy: str, said: str | None, small_machine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sequences = tmp_path / "sequences.json"
    sequences.write_text(json.dumps(SEQUENCES))
    given = ("--tokens", str(sequences), "--steps", "1", "--device", "cpu", "--machine", small_machine, "--budget", budget)
    out, _ = ran(capsys, "train", *SMALL_HOST, *given, "--recompute", policy)
    lines = [line for line in out.splitlines() if line.startswith("recompute")]
    assert len(lines) == (said is not None) and all(re.fullmatch(f"recompute   {said}", line) for line in lines)


def test_a_run_says_what_it_computes_twice(small_machine: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--machine", small_machine, "--device", "cpu", "--budget", "8KiB", "--plan-seconds", "0")
    sizes = tuple(w for n, x in SIZES.items() for w in ("--set", f"{n}={24 if n == 'seq' else 1 if n == 'batch' else x}"))
    tokens = Path(small_machine).with_name("tokens.json")
    tokens.write_text(json.dumps(list(range(24))))
    out, _ = ran(capsys, "run", "llama", *sizes, "--weights", "random:1", "--tokens", str(tokens), *given, "--recompute", "all")
    assert re.search(r"(?m)^recompute   \d+ second runs in [\d.]+ .s, for [\d.]+KiB that no link carries$", out)
    once, _ = ran(capsys, "run", "llama", *sizes, "--weights", "random:1", "--tokens", str(tokens), *given)
    assert "recompute" not in once


def test_what_second_runs_cost_and_spare() -> None:
    """Of each a load, and an offload where the host never gets what it makes; their kernels' time is the engine's."""
    of = machine()
    alone, again = planned(of, 50 * KIB, Recompute.NEVER), planned(of, 50 * KIB, Recompute.FASTEST)
    found, memgraph = again.report.again, again.memgraph
    tensors, runs, spared, busy = memgraph.graph.tensors, dict[int, int](), 0, 0.0
    offloaded = {memgraph.residencies[node.source].tensor for node in memgraph.nodes if isinstance(node, Move)}
    for n, node in enumerate(memgraph.nodes):
        if isinstance(node, Compute):
            runs[node.task] = runs.get(node.task, 0) + 1
            if runs[node.task] > 1:
                results = memgraph.graph.tasks[node.task].results
                first = runs[node.task] == 2
                spared += sum(tensors[t].nbytes * (2 if first and t not in offloaded else 1) for t in results)
                busy += float(again.timeline.finish_s[n] - again.timeline.start_s[n])
    assert (found.second_runs, found.second_runs_spared_bytes) == (sum(n - 1 for n in runs.values()), spared)
    assert found.second_runs_s == pytest.approx(busy) and found.second_runs > 0
    assert again.once_s == alone.timeline.makespan_s > again.timeline.makespan_s
    assert alone.report.again.second_runs == alone.report.again.second_runs_spared_bytes == 0
