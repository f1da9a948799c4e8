"""The part of measuring a GPU that chooses tiles: the fastest that is right is kept; what never ends costs its time, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from bench.gpu import tiles
from bench.gpu.cases import Case, product
from bench.gpu.report import Report, Setting
from bench.gpu.tiles import Table, Trial, is_risky, offered
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import ContractJob
from einpage.exec.load.kept_tiles import kept_tiles, tiles_path
from einpage.exec.measure.products import product_job
from einpage.kernels.launch.candidates import shape_of
from einpage.kernels.launch.kernel import launches_of
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import Tiles

GPU = "a GPU that is not here"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Report:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: GPU)
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "cache"))
    return Report("tiles", Setting(tmp_path, False, 1e6, "a test"))


def a_case() -> Case:
    return product("128³", product_job(128, 128, 128, DType.FP16), torch.device("cpu"))


def in_turn(report: Report, trials: dict[Tiles, Trial], monkeypatch: pytest.MonkeyPatch) -> None:
    """Try every tile offered for a case; those not in `trials` fail."""
    case, table = a_case(), Table(report)
    assert isinstance(case.job, ContractJob)

    def tried(clock: Any, case: Case, target: Target) -> Trial:
        (launch,) = launches_of(case.job, target)  # type: ignore[arg-type]
        if launch.tiles not in trials:
            raise RuntimeError("out of resource: shared memory")
        return trials[launch.tiles]

    monkeypatch.setattr(tiles, "tried", tried)
    monkeypatch.setattr(tiles, "_alone", lambda case, target: tried(None, case, target))
    for i, target in enumerate(offered(case.job)):
        tiles._try(report, None, table, case, target, i == 0)  # type: ignore[arg-type]
    table.keep(case)


def tiles_offered() -> list[Tiles]:
    job = a_case().job
    assert isinstance(job, ContractJob)
    return [launches_of(job, target)[0].tiles for target in offered(job)]


def test_the_fastest_tile_that_is_right_is_kept(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third, *_ = tiles_offered()
    in_turn(report, {first: Trial(0.0, 3e-6, 2e-6), second: Trial(0.5, 1e-6, 2e-6), third: Trial(0.0, 2e-6, 2e-6)}, monkeypatch)
    found, refused = kept_tiles(GPU)
    assert refused is None and found is not None
    (kept,) = found.found
    assert (kept.tiles, kept.seconds, kept.library_s) == (third, 2e-6, 2e-6)
    assert kept.shape == shape_of(a_case().job)  # type: ignore[arg-type]
    assert (report.setting.out / "tiles_table.json").read_text() == tiles_path(GPU).read_text()
    assert [gate["ok"] for gate in report.gates] == [True, False, True], "the second was wrong"
    assert all("out of resource" in why for why in report.absent.values()) and report.absent


def test_nothing_is_kept_of_a_case_in_which_nothing_was_right(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn(report, {tiles_offered()[0]: Trial(float("nan"), 1e-6, 2e-6)}, monkeypatch)
    found, _ = kept_tiles(GPU)
    assert found is not None and found.found == ()


def test_what_was_measured_before_stays(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    in_turn(report, {tiles_offered()[0]: Trial(0.0, 3e-6, 2e-6)}, monkeypatch)
    assert Table(report).tiles == kept_tiles(GPU)[0]


def test_tiles_that_might_never_end_run_alone_and_are_given_up(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, timeout: float, **__: Any) -> None:
        raise subprocess.TimeoutExpired(["python"], timeout)

    monkeypatch.setattr(tiles, "subprocess", SimpleNamespace(run=never))
    case = a_case()
    target = Target(90, Tiles(128, 128, 64, 4, 4, descriptors=True, specialised=True))
    assert is_risky(target) and not is_risky(Target(90, Tiles(128, 128, 64, 4, 4, descriptors=True))) and not is_risky(Target(90))
    tiles._try(report, None, Table(report), case, target, False)  # type: ignore[arg-type]
    ((what, why),) = report.absent.items()
    assert "specialised" in what and "timed out after 45" in why
    assert not report.gates, "it is not in use, so that nothing that runs is at fault"


def test_a_folder_that_cannot_be_written_is_noted(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    tiles_path(GPU).parent.parent.write_text("a file where the cache should be")
    in_turn(report, {tiles_offered()[0]: Trial(0.0, 3e-6, 2e-6)}, monkeypatch)
    assert "the file of this GPU's tiles" in report.absent
