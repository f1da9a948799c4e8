"""`einpage cache`, and host budgets that are refused: one line, what is wrong and what to do."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.cli import main
from einpage.exec.run.choose import DeviceKind, refuse_host_budget
from einpage.exec.run.report import DiskFigures, host_peaks
from einpage.exec.system.cache_folder import CODE_LIMIT, blocks_folder, code_folder
from einpage.memplan.graph.memgraph import Extent
from einpage.memplan.machine.places import HOST
from hand_plan import hand_graph
from test_memplan_third_place import plan_with_disk


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path))
    return tmp_path


def packed(key: str, used_s: int, nbytes: int = 10_000) -> None:
    def write(fd: int) -> Mapping[str, object]:
        return {}

    path, _ = blocks_folder().make(key, nbytes, write)
    os.utime(path, (used_s, used_s))


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["cache", "--json", *words]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_it_lists_limits_and_clears(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert said(capsys)["files"] == []
    packed("a", 1)
    packed("b", 2)
    listed = said(capsys)
    assert [Path(f["file"]).name for f in listed["files"]] == ["a.blocks", "b.blocks"]  # type: ignore[attr-defined, index]
    assert listed["folder"] == str(cache / "blocks") and listed["bytes"] == sum(f["bytes"] for f in listed["files"])  # type: ignore[attr-defined, index]
    assert main(["cache"]) == 0
    out = capsys.readouterr().out
    assert "a.blocks" in out and "1970-01-01 00:00 UTC" in out and "of at most 64GiB" in out
    limited = said(capsys, "--limit", "15KB")
    assert [Path(f["file"]).name for f in limited["files"]] == ["b.blocks"] and limited["limit_bytes"] == 15_000  # type: ignore[attr-defined, index]
    assert limited["removed_bytes"] == listed["bytes"] - limited["bytes"]  # type: ignore[operator]
    assert said(capsys, "--clear")["bytes"] == 0 and said(capsys)["limit_bytes"] == 15_000


def test_machine_code_is_counted_and_cleared(capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    assert said(capsys)["code"] == {"folder": str(cache / "code"), "limit_bytes": CODE_LIMIT, "bytes": 0, "removed_bytes": 0, "files": 0}
    code_folder().write("a", bytes(1000))
    listed = said(capsys)["code"]
    assert listed["files"] == 1 and 1000 < listed["bytes"] < 1100  # type: ignore[index]
    assert main(["cache"]) == 0
    assert "machine code: 1" in capsys.readouterr().out
    cleared = said(capsys, "--clear")["code"]
    assert (cleared["files"], cleared["bytes"], cleared["removed_bytes"]) == (0, 0, listed["bytes"])  # type: ignore[index]


def test_a_limit_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--limit", "much"]) == 2
    err = capsys.readouterr().err
    assert "--limit" in err and err.count("\n") == 1


def test_where_no_plan_with_a_disk_runs_it_is_refused() -> None:
    refuse_host_budget(DeviceKind.CPU, 1)
    refuse_host_budget(DeviceKind.CUDA, None, find_nan=True)
    with pytest.raises(UsageError, match=r"--host-budget with --device cuda: .* say --device cpu"):
        refuse_host_budget(DeviceKind.CUDA, 1)
    with pytest.raises(UsageError, match=r"--find-nan with --host-budget: .*leave one of them out"):
        refuse_host_budget(DeviceKind.CPU, 1, find_nan=True)


@pytest.mark.parametrize("size", ["0", "-1", "much", "1"])
def test_a_host_budget_that_is_none_is_one_line(size: str, capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    from einpage.memplan.machine.profile import machine_text
    from test_exec_smollm2_disk import DISK

    (cache / "m.yaml").write_text(machine_text(DISK), encoding="utf-8")
    words = ["run", "mlp", "--weights", "random:0", "--machine", str(cache / "m.yaml"), "--budget", "4MiB", "--host-budget", size]
    assert main(words) in (2, 3)
    out, err = capsys.readouterr()
    assert out == "" and err.count("einpage:") == 1 and "Traceback" not in err


def test_what_powers_of_two_would_take() -> None:
    """Of the hand-made plan: bytes that are no powers of two, rounded up where they live at once."""
    made = plan_with_disk()
    exact, rounded = host_peaks(made)
    sizes = {t.name: t.nbytes for t in hand_graph().tensors}
    assert exact >= max(sizes.values()) and rounded >= exact
    odd = [
        replace(r, extents=(Extent(r.extents[0].offset, r.extents[0].nbytes + 1),)) if r.place == HOST else r
        for r in made.residencies  # type: ignore[arg-type]
    ]
    assert host_peaks(replace(made, residencies=tuple(odd)))[1] == 2 * rounded, "a byte more than a power of two takes the next"


def test_figures_of_the_disk_as_json() -> None:
    figures = DiskFigures("io_uring, past the page cache", (512, 1024), (0, 512), 2048, 100, 128)
    assert figures.facts()["disk_sector_bytes"] == 1024 and figures.facts()["disk_loaded_bytes"] == 2048
