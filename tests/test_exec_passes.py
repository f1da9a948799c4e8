"""Several passes on real bytes: resident tensors are found where they were, a pass moves the plan's bytes and gives what a cold
one gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.cli import main
from einpage.exec.device.arena import host_copies, outputs
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.dispatch.engine import Measured
from einpage.memplan.plan import PlanOptions, plan
from einpage.memplan.residency.resident_sets import Start
from real_bytes import differences, direct, filled_host, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine, budgets, data, task_graphs

MLP = str(Path(__file__).parents[1] / "specs" / "mlp.yaml")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), task_graphs(joined=True), st.integers(0, 2**16), st.sampled_from((run_serial, run_dynamic, run_static)))
def test_passes_give_the_direct_result_each(drawn: st.DataObject, graph: TaskGraph, seed: int, dispatch: Callable[..., Measured]) -> None:
    values, budget = data(graph, seed), drawn.draw(budgets(graph))
    warm = plan(graph, a_machine(), budget, PlanOptions(start=Start.WARM))
    assert differences(run_on_bytes(warm, values, dispatch), direct(graph, values)) == []
    loop = plan(graph, a_machine(), budget, PlanOptions(start=Start.LOOP))
    host = filled_host(loop, values)
    device = CpuDevice(loop, CpuMemory(host, loop.budget_bytes), poison=True)
    device.preload()
    for other in (values, data(graph, seed + 1), values):
        for tensor in graph.tensors:
            if tensor.value in other and tensor.kind.value == "input":
                box = tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))
                host_copies(loop, host)[tensor.id].copy_(torch.from_numpy(other[tensor.value][box].copy()))
        fresh = {**values, **{v.name: other[v.name] for v in graph.values if v.kind.value == "input"}}
        dispatch(loop, device)
        assert differences(outputs(loop, host), direct(graph, fresh)) == []


def test_run_passes_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((64, 256), np.float32))
    words = [MLP, "--budget", "1MiB", "--weights", "random:1", "--machine", "cpu", "--input", f"x={tmp_path / 'x.npy'}"]
    logits = [str(tmp_path / name) for name in ("once.safetensors", "thrice.safetensors")]
    assert main(["run", *words, "--json", "--logits", logits[0]]) == 0
    once = json.loads(capsys.readouterr().out)
    split = ["--split", ",".join(f"{k}={n}" for k, n in once["split"].items())] if once["split"] else []
    assert main(["run", *words, *split, "--json", "--passes", "3", "--logits", logits[1]]) == 0
    thrice = json.loads(capsys.readouterr().out)
    assert Path(logits[0]).read_bytes() == Path(logits[1]).read_bytes()
    assert len(thrice["passes_wall_s"]) == thrice["passes"] == 3
    assert thrice["resident_bytes"] > 0
    assert thrice["measured_h2d_bytes"] == thrice["h2d_bytes"] == once["h2d_bytes"] - thrice["resident_bytes"]
    assert thrice["passes_s"] == pytest.approx(thrice["prologue_s"] + 3 * thrice["makespan_s"])
    assert main(["run", *words, "--passes", "2"]) == 0
    assert "passes      2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--passes", "3", "--warm"), "exclude each other"),
        (("--passes", "0"), "--passes 0 is not at least 1"),
    ],
)
def test_words_that_exclude_each_other(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    assert main(["plan", MLP, "--budget", "128KiB", *words]) == 2
    assert told in capsys.readouterr().err


def test_plan_passes_from_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    saved = str(tmp_path / "loop.json")
    assert main(["plan", MLP, "--budget", "128KiB", "--passes", "10", "--json", "--out", saved]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["start"], found["passes"], found["verified"]) == ("loop", 10, True)
    assert found["bound_ratio"] >= 1
    assert main(["verify", saved]) == 0
    assert main(["plan", MLP, "--budget", "128KiB", "--passes", "10"]) == 0
    shown = capsys.readouterr().out
    assert "10 from a cold start in" in shown
    assert "a pass" in shown
