"""bench/gpu.sh as a whole, its parts replaced by processes that leave what they are told: exit status, last line, time limits, who goes on.

And what a part keeps, and does again, when a process or a call goes on where another ended.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import __main__ as everything
from bench.gpu import results_file, summary
from bench.gpu.parts import GO_ON, usual
from bench.gpu.report import ENDED, GPU_ONLY, DeviceLost, Go, Report
from test_bench_gpu import on_disk, report

ROOT = Path(__file__).parents[1]

# All parts in a row


WRITE = """
import sys, time
from pathlib import Path
from bench.gpu import results_file
results_file.put_part(Path({out!r}), {part!r}, {facts!r}, {{}})
time.sleep({seconds})
"""
WHOLE: dict[str, Any] = {"gates": [], "rows": [], "absent": {}, "left_out": [], "seconds": 0.1}


def leaving(out: Path, part: str, facts: dict[str, Any], seconds: float = 0, end: str = "") -> list[str]:
    """A process that leaves these facts of a part, takes so long, and ends as `end` does."""
    program = WRITE.format(out=str(out), part=part, facts={**WHOLE, **facts}, seconds=seconds)
    return [sys.executable, "-c", program + end]


@pytest.fixture
def parts_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace each part by such a process."""

    def replaced(facts: dict[str, Any], seconds: float = 0) -> None:
        monkeypatch.setattr(everything, "part_command", lambda part, asked, s, go: leaving(asked.out, part, facts, seconds))

    monkeypatch.setattr(everything, "GRACE_S", 0.5)
    return replaced


GATE = {"case": "a", "what": "a", "ok": True, "detail": ""}
RED = {**GATE, "ok": False, "detail": "it is wrong"}
ROW = {"what": "a", "h2d_bytes_per_s": 5e10, "d2h_bytes_per_s": 4e10, "device_copy_bytes_per_s": 3e12}
GREEN = {"state": "finished", "green": True, "gates": [GATE]}
ABSENT = {"state": "finished", "green": False, "absent": {"SmolLM2": "no file"}}


@pytest.mark.parametrize(
    ("facts", "words", "status", "said"),
    [
        (GREEN, [], 0, "gpu.sh: green: 2 gates of 2 parts; "),
        (
            {"state": "finished", "green": False, "gates": [GATE, RED]},
            [],
            1,
            "gpu.sh: RED: 2 of 4 gates are red, the first: links: a: it is wrong; ",
        ),
        (ABSENT, [], 1, "gpu.sh: green: absent: links, smollm2; "),
        (ABSENT, ["--dry-run"], 0, "gpu.sh: green: absent: links, smollm2; "),
        ({"state": "cut", "green": False, "gates": [GATE]}, [], 1, "gpu.sh: cut: links cut, smollm2 cut; "),
    ],
    ids=["green", "red", "absent", "absent in a dry run", "cut"],
)
def test_the_exit_status_and_the_last_line_say_whether_all_is_green(
    parts_of: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, Any], words: list[str], status: int, said: str
) -> None:
    parts_of(facts)
    assert everything.main(["--out", str(tmp_path), "--only", "links,smollm2", *words]) == status
    assert capsys.readouterr().out.splitlines()[-1].startswith(said)


def test_a_part_that_hangs_is_cut_and_keeps_what_it_had(parts_of: Any, tmp_path: Path) -> None:
    parts_of({"state": "cut", "green": False, "gates": [GATE], "rows": [ROW]}, 300)
    assert everything.main(["--out", str(tmp_path), "--only", "links", "--seconds", "2.5"]) == 1
    left = results_file.part_facts(tmp_path, "links")
    assert left["rows"] == [ROW] and summary.word(left) == "cut"


def test_what_an_earlier_run_left_is_not_this_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results_file.put_part(tmp_path, "links", {**WHOLE, **GREEN}, {})
    monkeypatch.setattr(everything, "part_command", lambda part, asked, s, go: [sys.executable, "-c", ""])
    assert everything.main(["--out", str(tmp_path), "--only", "links"]) == 1


def test_a_call_that_goes_on_does_only_what_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And does that with what the earlier call left, wherever its results lie."""
    earlier, out, ran = tmp_path / "earlier", tmp_path / "out", list[tuple[str, str]]()
    results_file.put(earlier, command="the first", calls=[{"command": "the first", "commit": "1"}])
    for part, facts in {"links": GREEN, "first": {**GREEN, "left_out": ["b"]}, "kernels": {"state": "cut", "green": False}}.items():
        results_file.put_part(earlier, part, {**WHOLE, **facts}, {})

    def command(part: str, asked: Any, seconds: float, go: str) -> list[str]:
        ran.append((part, go))
        return leaving(asked.out, part, GREEN)

    monkeypatch.setattr(everything, "part_command", command)
    asked = ["--out", str(out), "--only", "links,first,kernels,models", "--resume", str(earlier / results_file.NAME)]
    assert everything.main(asked) == 0
    assert ran == [("first", "again"), ("kernels", "again"), ("models", "again")]
    assert [call["command"] for call in results_file.read(out)["calls"]] == ["the first", "bench/gpu.sh " + " ".join(asked)]


@pytest.mark.parametrize("end", [f"sys.exit({GO_ON})", "import os; os.kill(os.getpid(), 6)"], ids=["lost its device", "died"])
def test_a_part_that_ends_too_soon_goes_on_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str) -> None:
    def command(part: str, asked: Any, seconds: float, go: str) -> list[str]:
        return leaving(asked.out, part, GREEN) if go == "on" else leaving(asked.out, part, {"state": "cut", "green": False}, end=end)

    monkeypatch.setattr(everything, "part_command", command)
    assert everything.main(["--out", str(tmp_path), "--only", "smollm2"]) == 0


def test_who_goes_on_keeps_rows_and_does_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = report(tmp_path)
    assert first.begin("a")
    first.row("a", True, "", {"case": "a"}, {}, "")
    assert first.begin("b")
    assert (on_disk(first)["begun"], on_disk(first)["case"]) == (["a", "b"], "b")

    def lost() -> None:
        raise DeviceLost

    monkeypatch.setattr(first, "need_device", lost)
    with pytest.raises(DeviceLost):
        first.failed("b", RuntimeError("an illegal memory access"))
    second = Report("kernels", first.setting, Go.ON)
    assert [second.begin(what) for what in "abc"] == [False, False, True]
    assert [row["case"] for row in second.rows] == ["a"]
    assert [gate["ok"] for gate in second.gates] == [True, False]
    third = Report("kernels", first.setting, Go.ON)  # the second died in the middle of c
    assert [(gate["what"], gate["ok"]) for gate in third.gates] == [("a", True), ("b", False), ("c", False)]
    assert not third.begin("c")


def test_another_call_tries_again_what_was_not_right(tmp_path: Path) -> None:
    """What is red, absent, left out or cut; but not for ever what ends its process, where that was seen and no one killed both."""
    first = report(tmp_path)
    for case, ok in (("right", True), ("red", False)):
        assert first.begin(case)
        first.check("its bits", ok, "")
        first.row(case, ok, "", {}, {"seconds": 1.0}, "")
    first.lacks("absent", "no wheel")
    first.leave_out("left out")
    assert first.begin("cut")
    second = Report("kernels", first.setting, Go.AGAIN)
    assert [row["what"] for row in second.rows] == ["right"] and [gate["case"] for gate in second.gates] == ["right", "right"]
    assert (second.absent, second.left_out) == ({}, [])
    assert [second.begin(what) for what in ("right", "red", "absent", "left out", "cut")] == [False, True, True, True, True]
    for _ in range(2):  # from here on `cut` ends the process, and whoever started it sees that
        results_file.note_end(tmp_path, "kernels")
        again = Report("kernels", first.setting, Go.AGAIN)
        tried = again.begin("cut")
    assert not tried and [(gate["case"], gate["detail"]) for gate in again.gates if not gate["ok"]] == [("cut", ENDED)]
    assert [again.begin(what) for what in ("right", "red", "left out")] == [False, True, True]
    assert not Report("kernels", first.setting, Go.AGAIN).begin("cut")


def test_a_case_that_kills_interrupt_is_tried_again(tmp_path: Path) -> None:
    """However often: nobody saw it end its process."""
    for go in (Go.ANEW, *[Go.AGAIN] * 4):
        assert Report("kernels", report(tmp_path, "other").setting, go).begin("slow")


def test_a_missing_wheel_is_absent_and_any_other_import_is_a_fault(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.failed("one", ModuleNotFoundError("No module named 'rpds'", name="rpds"))
    made.failed("two", ModuleNotFoundError("No module named 'bench.gpu.gone'", name="bench.gpu.gone"))
    assert list(made.absent) == ["one"] and made.absent["one"].startswith("rpds-py==")
    assert [(gate["what"], gate["ok"]) for gate in made.gates] == [("two", False)]


def test_a_part_that_looks_for_something_better_decides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(part: str, asked: Any, seconds: float, go: str) -> list[str]:
        return leaving(asked.out, part, {**GREEN, "green": part == "smollm2"})

    monkeypatch.setattr(everything, "part_command", command)
    assert everything.main(["--out", str(tmp_path), "--only", "smollm2,tiles"]) == 0
    assert everything.main(["--out", str(tmp_path), "--only", "tests,smollm2"]) == 1


@pytest.mark.parametrize(
    "words", [["--only", "lins"], ["--resume", "nothing.json"], ["--rehearse", "x"]], ids=["part", "resume", "rehearse"]
)
def test_what_cannot_be_meant_is_refused_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        everything.main(["--out", str(tmp_path), *words])
    assert refused.value.code == 2 and words[0] in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_dry_run_passes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable, "OUT": str(tmp_path)}
    done = subprocess.run(["bench/gpu.sh", "--dry-run"], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert {path.name for path in tmp_path.iterdir()} == {"machine.yaml", results_file.NAME}
    whole = results_file.read(tmp_path)
    assert whole["command"] and whole["commit"] and whole["machine"] and whole["dry_run"]
    assert list(whole["parts"]) == usual()
    for facts in whole["parts"].values():
        assert facts["dry_run"] and facts["state"] == "finished"
        assert all(row[name] is None for row in facts["rows"] for name in GPU_ONLY & set(row))
    assert len(whole["parts"]["compile"]["rows"]) > 20
