"""The measurement on a GPU, as far as it can be tested without one: nothing wrong is reported, nothing is invented, nothing runs on.

The whole script in its dry run is a slow test; here its parts are broken one at a time.
"""

from __future__ import annotations

from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.gpu import compile, kernel_tests, kernels, models, results_file, smollm2, summary, tiles
from bench.gpu.cells import TINY
from bench.gpu.host_weights import in_host_memory
from bench.gpu.report import Report, Setting
from bench.gpu.runs import opened
from bench.ring import Ring, flat_parameters
from einpage.einsum_front.base.dtype import DType
from einpage.exec.measure.products import product_job
from einpage.kernels.prepare import Backend, prepare

ROOT = Path(__file__).parents[1]


def report(folder: Path, part: str = "kernels", dry: bool = True) -> Report:
    return Report(part, Setting(folder, dry, 60.0, "a test"))


def on_disk(made: Report) -> dict[str, Any]:
    return results_file.part_facts(made.setting.out, made.part)


# Rows and gates


def test_figures_of_what_is_wrong_are_withheld(tmp_path: Path) -> None:
    made = report(tmp_path, dry=False)
    made.row("right", True, "error 0", {"case": "a"}, {"seconds": 1.0, "ratio": 0.9}, "")
    made.row("wrong", False, "error 1", {"case": "b"}, {"seconds": 2.0, "ratio": 1.9}, "")
    made.finish()
    right, wrong = on_disk(made)["rows"]
    assert (right["seconds"], right["ratio"]) == (1.0, 0.9)
    assert "seconds" not in wrong and "ratio" not in wrong
    assert not on_disk(made)["green"]


def test_a_dry_run_has_no_figure_of_a_gpu(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.row("right", True, "error 0", {"case": "a"}, {"seconds": 1.0, "ratio": 0.9}, "")
    assert on_disk(made)["rows"] == [{"what": "right", "call": 0, "case": "a", "check": "error 0", "seconds": 1.0, "ratio": None}]


def test_rows_are_on_disk_before_a_part_ends_and_it_is_green_only_then(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.row("right", True, "error 0", {}, {}, "")
    assert (on_disk(made)["state"], on_disk(made)["green"], len(on_disk(made)["rows"])) == ("cut", False, 1)
    made.finish()
    assert (on_disk(made)["state"], on_disk(made)["green"]) == ("finished", True)


def test_what_is_said_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever ends the process when a line has come does not lose what it says."""
    made, known = report(tmp_path), list[int]()
    monkeypatch.setattr(made, "say", lambda text: known.append(len(on_disk(made)["gates"]) + len(on_disk(made)["absent"])))
    made.check("one", True, "")
    made.row("two", True, "", {}, {}, "")
    made.lacks("three", "")
    assert known == [1, 2, 3]


def test_a_part_that_checked_nothing_is_not_green(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.finish()
    assert not on_disk(made)["green"]


# Parts


def test_right_kernels_are_green(tmp_path: Path) -> None:
    made = report(tmp_path)
    kernels.measure(made)
    made.finish()
    assert made.green, made.gates
    assert {row["kind"] for row in made.rows} == {"product", "attention", "rows"}


@pytest.mark.parametrize("fault", [1.02, float("nan")], ids=["two per cent", "nan"])
def test_wrong_kernels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: float) -> None:
    def wrong(job: Any, backend: Backend) -> Any:
        kernel = prepare(job, Backend.TORCH)

        def call(operands: Any, result: torch.Tensor, workspace: Any) -> None:
            kernel(operands, result, workspace)
            result.mul_(fault)

        return call

    monkeypatch.setattr(kernels, "prepare", wrong)
    monkeypatch.setattr(kernels, "tiny", lambda: (kernels.Square(40, DType.FP32), kernels.Square(40, DType.FP16)))
    made = report(tmp_path)
    kernels.measure(made)
    assert len(made.gates) == 2 and not any(gate["ok"] for gate in made.gates)
    assert all("seconds" not in row for row in made.rows)


def test_a_kernel_that_breaks_does_not_end_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: Any, backend: Backend) -> Any:
        raise RuntimeError("out of everything")

    monkeypatch.setattr(kernels, "prepare", broken)
    made = report(tmp_path)
    kernels.measure(made)
    assert len(made.gates) == 8 and not made.rows
    assert {gate["detail"] for gate in made.gates} == {"RuntimeError: out of everything"}


@pytest.mark.parametrize(
    ("outcomes", "green"),
    [(("passed", "skipped"), True), (("passed", "failed"), False), (("skipped", "skipped"), False), ((), False)],
    ids=["passed", "failed", "all skipped", "none"],
)
def test_tests_are_counted(tmp_path: Path, outcomes: tuple[str, ...], green: bool) -> None:
    made = report(tmp_path, "tests")
    found = {f"tests/test_a.py::test_{i}": {"outcome": outcome, "said": ""} for i, outcome in enumerate(outcomes)}
    kernel_tests._count(made, found)
    made.finish()
    assert made.green == green


def test_operands_that_cannot_be_had_cost_their_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(kernels.Square):
        def cases(self, device: torch.device) -> Any:
            raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(kernels, "tiny", lambda: (Full(40, DType.FP32), kernels.Square(41, DType.FP32)))
    made = report(tmp_path)
    kernels.measure(made)
    assert [(gate["what"], gate["ok"]) for gate in made.gates] == [("40³ fp32", False), ("41³ fp32", True)]


def test_nobody_compiles_any_more_when_kernels_are_measured(tmp_path: Path) -> None:
    """They would hold memory of the device, and its processors; the last is cut short here."""
    jobs = [compile.Wanted(f"{n}", product_job(n, n, n, DType.FP32)) for n in (8, 9)]
    assert [fault for _, _, fault in compile.compile_all(jobs, True, 60.0)] == [None, None]
    assert not active_children()
    slow = [compile.Wanted("slow", product_job(6000, 6000, 6000, DType.FP32))]
    assert [*compile.compile_all(slow, True, 0.0)] == []
    assert not active_children()


def test_what_failed_in_an_earlier_call_is_tested_again(tmp_path: Path) -> None:
    made = Report("tests", Setting(tmp_path, True, 60.0, "a test", call=1))
    kept = {f"{outcome} {call}": {"outcome": outcome, "said": "", "call": call} for outcome in ("passed", "failed") for call in (0, 1)}
    made.facts["outcomes"] = kept
    assert list(kernel_tests._before(made)) == ["passed 0", "passed 1", "failed 1"]


def test_whole_models_are_green(tmp_path: Path) -> None:
    """Their kernels one behind the other included, which read what another node left."""
    made = report(tmp_path, "first")
    models.measure_first(made)
    made.finish()
    assert made.green, made.gates
    assert made.rows[0]["kernels_alone_s"] > 0


def test_an_absent_model_is_said_and_is_not_green(tmp_path: Path) -> None:
    setting = Setting(tmp_path, True, 60.0, "a test", tmp_path / "none.gguf")
    made = Report("smollm2", setting)
    smollm2.measure(made)
    made.finish()
    assert summary.word(on_disk(made)) == "absent"
    assert any("none.gguf" in line for line in summary.lines({"smollm2": on_disk(made)}))


def test_no_two_tiles_go_by_one_name() -> None:
    """A second one of the same name would be taken for done."""
    titles = [w.title for w in tiles._wanted()]
    assert len(titles) > 20 and len(titles) == len(set(titles))


# The weights and the ring


def test_held_weights_are_the_checkpoints_own() -> None:
    model = opened(TINY["tiny"], 8)
    assert model.resolved is not None
    host_weights, source = in_host_memory(model), model.resolved.checkpoint
    assert set(host_weights.values) == {s.name for s in model.resolved.source_by_weight.values()}
    for name, values in host_weights.values.items():
        wanted = torch.from_numpy(source.read_rows(name, 0, 5 if values.dim() > 1 else 1)).half()
        got = torch.from_numpy(host_weights.read_rows(name, 0, 5 if values.dim() > 1 else 1))
        assert got.dtype is torch.float16 and torch.equal(got, wanted), name


@pytest.mark.parametrize("resident", range(6))
def test_a_ring_is_the_layers_in_a_row(resident: int) -> None:
    torch.manual_seed(resident)
    layers = [nn.Linear(7, 7) for _ in range(5)]
    x = torch.randn(3, 7)
    with torch.inference_mode():
        wanted = x
        for layer in layers:
            wanted = torch.tanh(layer(wanted))
        host = [flat_parameters(layer, pinned=False) for layer in layers]
        for layer in layers:
            for p in layer.parameters():
                p.data = torch.full_like(p, torch.nan)
        ring = Ring(layers, host, torch.device("cpu"), resident)
        for _ in range(2):
            assert torch.equal(ring(x, lambda layer, x: torch.tanh(layer(x))), wanted)
