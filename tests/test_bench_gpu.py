"""The measurement on a GPU, as far as it can be tested without one: nothing wrong is reported, nothing is invented, nothing runs on.

The whole script in its dry run is a slow test; here its parts are broken one at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bench.gpu import __main__ as everything
from bench.gpu import kernel_tests, kernels, smollm2, summary, tiles
from bench.gpu.host_weights import in_host_memory
from bench.gpu.models import TINY
from bench.gpu.one import GO_ON, PARTS
from bench.gpu.report import GPU_ONLY, DeviceLost, Report, Setting
from bench.gpu.runs import opened
from bench.ring import Ring, flat_parameters
from einpage.einsum_front.base.dtype import DType
from einpage.kernels.prepare import Backend, prepare

ROOT = Path(__file__).parents[1]


def report(folder: Path, part: str = "kernels", dry: bool = True) -> Report:
    return Report(part, Setting(folder, dry, 60.0, "a test"))


def on_disk(made: Report) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made.setting.out / f"{made.part}.json").read_text(encoding="utf-8"))
    return found


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
    assert on_disk(made)["rows"] == [{"case": "a", "check": "error 0", "seconds": 1.0, "ratio": None}]


def test_rows_are_on_disk_before_a_part_ends_and_it_is_green_only_then(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.row("right", True, "error 0", {}, {}, "")
    assert (on_disk(made)["state"], on_disk(made)["green"], len(on_disk(made)["rows"])) == ("cut", False, 1)
    made.finish()
    assert (on_disk(made)["state"], on_disk(made)["green"]) == ("finished", True)


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


PASSED, FAILED, SKIPPED = "<testcase {}/>", "<testcase {}><failure/></testcase>", "<testcase {}><skipped/></testcase>"


@pytest.mark.parametrize(
    ("cases", "green"),
    [((PASSED, SKIPPED), True), ((PASSED, FAILED), False), ((SKIPPED, SKIPPED), False), ((), False)],
    ids=["passed", "failed", "all skipped", "none"],
)
def test_tests_are_counted(tmp_path: Path, cases: tuple[str, ...], green: bool) -> None:
    text = "".join(case.format('classname="tests.test_a" name="b"') for case in cases)
    (tmp_path / "tests.xml").write_text(f"<testsuites><testsuite>{text}</testsuite></testsuites>")
    made = report(tmp_path, "tests")
    kernel_tests._count(made, tmp_path / "tests.xml")
    made.finish()
    assert made.green == green


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


# All parts in a row


WRITE = "import json, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(json.dumps({})); time.sleep({})"


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace each part by a process that leaves a file and then takes so long."""

    def replaced(facts: dict[str, Any], seconds: float) -> None:
        whole = {"gates": [], "rows": [], "absent": {}, "left_out": [], "seconds": 0.1, **facts}
        program = WRITE.format(repr(whole), seconds)
        monkeypatch.setattr(
            everything, "part_command", lambda part, asked, s, resume: [sys.executable, "-c", program, str(asked.out / f"{part}.json")]
        )

    monkeypatch.setattr(everything, "GRACE_S", 0.5)
    return replaced


GATE = {"what": "a", "ok": True, "detail": ""}
ROW = {"h2d_bytes_per_s": 5e10, "d2h_bytes_per_s": 4e10, "device_copy_bytes_per_s": 3e12}


@pytest.mark.parametrize(
    ("facts", "words", "status"),
    [
        ({"state": "finished", "green": True, "gates": [GATE]}, [], 0),
        ({"state": "finished", "green": False, "gates": [{**GATE, "ok": False}]}, [], 1),
        ({"state": "finished", "green": False, "absent": {"SmolLM2": "no file"}}, [], 1),
        ({"state": "finished", "green": False, "absent": {"SmolLM2": "no file"}}, ["--dry-run"], 0),
    ],
    ids=["green", "red", "absent", "absent in a dry run"],
)
def test_the_exit_status_says_whether_all_is_green(
    parts_of: Any, tmp_path: Path, facts: dict[str, Any], words: list[str], status: int
) -> None:
    parts_of(facts, 0)
    assert everything.main(["--out", str(tmp_path), "--parts", "links,smollm2", *words]) == status


def test_a_part_that_hangs_is_cut_and_keeps_what_it_had(parts_of: Any, tmp_path: Path) -> None:
    parts_of({"state": "cut", "green": False, "gates": [GATE], "rows": [ROW]}, 300)
    assert everything.main(["--out", str(tmp_path), "--parts", "links", "--seconds", "1.5"]) == 1
    assert json.loads((tmp_path / "links.json").read_text())["rows"] == [ROW]
    assert json.loads((tmp_path / "summary.json").read_text())["rows"][0]["word"] == "cut"


def test_what_an_earlier_run_left_is_not_this_runs(parts_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "links.json").write_text(
        '{"state": "finished", "green": true, "gates": [], "rows": [], "absent": {}, "left_out": [], "seconds": 1}'
    )
    monkeypatch.setattr(everything, "part_command", lambda part, asked, s, resume: [sys.executable, "-c", ""])
    assert everything.main(["--out", str(tmp_path), "--parts", "links"]) == 1


@pytest.mark.parametrize("end", [f"sys.exit({GO_ON})", "import os; os.kill(os.getpid(), 6)"], ids=["lost its device", "died"])
def test_a_part_that_ends_too_soon_goes_on_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    def command(part: str, asked: Any, seconds: float, resume: bool) -> list[str]:
        facts = {"state": "finished" if resume else "cut", "green": resume, "gates": [GATE], "rows": [], "absent": {}, "left_out": []}
        program = WRITE.format(repr({**facts, "seconds": 1}), 0) + ("" if resume else f"; {end}")
        return [sys.executable, "-c", program, str(asked.out / f"{part}.json")]

    monkeypatch.setattr(everything, "part_command", command)
    assert everything.main(["--out", str(tmp_path), "--parts", "smollm2"]) == 0


def test_who_goes_on_keeps_rows_and_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = report(tmp_path)
    assert first.begin("a")
    first.row("a", True, "", {"case": "a"}, {}, "")
    assert first.begin("b")
    assert on_disk(first)["begun"] == ["a", "b"]

    def lost() -> None:
        raise DeviceLost

    monkeypatch.setattr(first, "need_device", lost)
    with pytest.raises(DeviceLost):
        first.failed("b", RuntimeError("an illegal memory access"))
    second = Report("kernels", first.setting, resume=True)
    assert [second.begin(what) for what in "abc"] == [False, False, True]
    assert [row["case"] for row in second.rows] == ["a"]
    assert [gate["ok"] for gate in second.gates] == [True, False]
    third = Report("kernels", first.setting, resume=True)  # the second died in the middle of c
    assert [(gate["what"], gate["ok"]) for gate in third.gates] == [("a", True), ("b", False), ("c", False)]


def test_a_part_that_looks_for_something_better_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(part: str, asked: Any, seconds: float, resume: bool) -> list[str]:
        facts = {"state": "finished", "green": part == "smollm2", "gates": [GATE], "rows": [], "absent": {}, "left_out": [], "seconds": 1}
        return [sys.executable, "-c", WRITE.format(repr(facts), 0), str(asked.out / f"{part}.json")]

    monkeypatch.setattr(everything, "part_command", command)
    assert everything.main(["--out", str(tmp_path), "--parts", "smollm2,tiles"]) == 0
    assert everything.main(["--out", str(tmp_path), "--parts", "tests,smollm2"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_dry_run_passes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path)}
    done = subprocess.run(["bench/gpu.sh", "--dry-run"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"machine.yaml", "summary.json", *(f"{part}.json" for part in PARTS if part not in summary.FOLDED)}
    for part in sorted(left - {"machine.yaml", "summary.json"}):
        facts = json.loads((tmp_path / part).read_text(encoding="utf-8"))
        assert facts["dry_run"] and facts["state"] == "finished" and facts["command"] and facts["machine"]
        assert all(row[name] is None for row in facts["rows"] for name in GPU_ONLY & set(row))
    (compiled,) = (row for row in json.loads((tmp_path / "summary.json").read_text())["rows"] if row["part"] == "compile")
    assert len(compiled["rows"]) > 20
