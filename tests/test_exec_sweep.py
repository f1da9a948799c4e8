"""`einpage plan --sweep`, and the advice at the end of `einpage plan`: each figure is that of a plan one can ask for by itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command_line import LLAMA, LLAMA_SIZES, MLP, SMALL_LLAMA, facts, ran
from einpage.einsum_front.choose.working_set import WorkingSets
from einpage.einsum_front.graph.program import Program
from einpage.exec.planning import advice as advice_module
from einpage.exec.planning import judged_plan
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import fused
from test_exec_plan import SQUEEZE, VGG

ON_V100 = ("--machine", "v100", "--dtype", "fp16")
DEEP_LLAMA = ("plan", LLAMA, "--set", "layers=8", "--set", "seq=256", "--set", "batch=2", "--set", "vocab=4000", *ON_V100)


def swept(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    out, _ = ran(capsys, "plan", *words, "--json")
    found = json.loads(out)
    assert isinstance(found, list)
    return found


def test_a_sweep_of_budgets_is_the_plans_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    plan = (LLAMA, *SMALL_LLAMA)
    rows = swept(capsys, *plan, "--sweep", "budget=256KiB:1MiB:4")
    assert [row["value"] for row in rows] == [n * 2**18 for n in (1, 2, 3, 4)]
    for row in rows:
        alone = facts(capsys, "plan", *plan, "--budget", str(row["value"]), "--plan-seconds", "0")
        same = ("budget_bytes", "makespan_s", "bound_s", "h2d_bytes", "nodes", "verified")
        assert {key: row[key] for key in same} == {key: alone[key] for key in same}
    assert {row["verified"] for row in rows} == {True}
    assert rows[-1]["makespan_s"] < rows[0]["makespan_s"]


def test_a_sweep_of_sizes_doubles_them(capsys: pytest.CaptureFixture[str]) -> None:
    rows = swept(capsys, LLAMA, *LLAMA_SIZES, "--budget", "1MiB", "--sweep", "seq=4:30")
    assert [row["value"] for row in rows] == [4, 8, 16]
    assert rows[0]["compute_s"] < rows[1]["compute_s"] < rows[2]["compute_s"]
    assert [row["value"] for row in swept(capsys, MLP, "--budget", "1MiB", "--sweep", "batch=8:24:3")] == [8, 16, 24]


def test_a_budget_that_is_too_small_says_so_in_its_row(capsys: pytest.CaptureFixture[str]) -> None:
    rows = swept(capsys, "--graph", SQUEEZE, "--h2d", "12GB/s", "--sweep", "budget=6MB:9MB:3")
    assert "makespan_s" not in rows[0] and rows[0]["smallest_budget"] == 6308352
    assert [row["verified"] for row in rows[1:]] == [True, True]
    ran(capsys, "plan", "--graph", SQUEEZE, "--h2d", "12GB/s", "--sweep", "budget=1MB:2MB", status=3)


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_sweep_for_people_is_a_table_and_a_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"t.{suffix}"
    sweep = ("--sweep", "budget=6MB:9MB:3", "--timeline", str(picture))
    out, err = ran(capsys, "plan", "--graph", SQUEEZE, "--h2d", "12GB/s", *sweep)
    lines = out.splitlines()
    assert len(lines) == 4 and "÷ bound" in lines[0]
    assert "does not fit; 6.02MiB would" in lines[1]
    assert lines[2].count("█") == 32 >= lines[3].count("█") > 20, "the longest time has the longest bar"
    assert err == ""
    text = picture.read_text(encoding="utf-8")
    assert text.count("<circle") == 2
    assert text.startswith("<svg" if suffix == "svg" else "<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--sweep", "budget"), "write a name and a range"),
        (("--sweep", "budget=4GiB"), "write a name and a range"),
        (("--sweep", "budget=4GiB:40GiB:3:1"), "write a name and a range"),
        (("--sweep", "budget=8MiB:8MiB"), "the range is empty"),
        (("--sweep", "budget=9MiB:8MiB"), "the range is empty"),
        (("--sweep", "budget=1MiB:8MiB:1"), "1 points"),
        (("--sweep", "budget=1MiB:8MiB:1000"), "1000 points"),
        (("--sweep", "budget=1MiB:eight"), "not an amount"),
        (("--sweep", f"batch=1:{'9' * 5000}", "--budget", "1MiB"), "not a positive whole number"),
        (("--sweep", "batch=0:8", "--budget", "1MiB"), "not a positive whole number"),
        (("--sweep", "btach=1:8", "--budget", "1MiB"), "btach"),
        (("--sweep", "batch=1:8", "--budget", "1MiB", "--set", "batch=3"), "both give the size"),
        (("--sweep", "batch=1:8"), "under which budget"),
        (("--sweep", "budget=1MiB:8MiB", "--budget", "1MiB"), "use one"),
        (("--sweep", "budget=1MiB:8MiB", "--out", "p.json"), "--out saves one plan"),
        ((), "plan needs --budget"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], message: str) -> None:
    out, err = ran(capsys, "plan", MLP, *words, status=2)
    assert message in err and out == ""
    assert len(err.strip().splitlines()) < 12


def test_a_trace_has_no_sizes_to_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    _, err = ran(capsys, "plan", "--graph", SQUEEZE, "--h2d", "1GB", "--budget", "9MB", "--sweep", "seq=1:8", status=2)
    assert "a trace has no sizes" in err


def test_a_link_that_waits_is_hidden_by_more_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    found = facts(capsys, *DEEP_LLAMA, "--budget", "1GiB")
    helps = found["advice"]
    assert (found["limited_by"], helps["knob"], helps["from"], helps["by"]) == ("h2d", "seq", 256, "plan")
    times = helps["to"] // 256
    words = tuple(f"seq={helps['to']}" if word == "seq=256" else word for word in DEEP_LLAMA)
    longer = facts(capsys, *words, "--budget", "1GiB")
    assert longer["makespan_s"] == pytest.approx(helps["makespan_s"])
    assert helps["gain"] == pytest.approx(1 - longer["makespan_s"] / found["makespan_s"] / times)
    assert longer["limited_by"] == "compute" or longer["compute_s"] > 0.7 * longer["makespan_s"]


def test_memory_that_is_short_asks_for_a_budget(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("plan", "--graph", SQUEEZE, "--h2d", "12GB/s", "--device-bytes", "16MiB", "--plan-seconds", "0")
    found = facts(capsys, *words, "--budget", "6308352")
    helps = found["advice"]
    assert (helps["knob"], helps["from"]) == ("budget", 6308352)
    alone = facts(capsys, *words, "--budget", str(helps["to"]))
    assert alone["makespan_s"] == helps["makespan_s"]
    assert helps["gain"] == pytest.approx(1 - alone["makespan_s"] / found["makespan_s"])
    out, _ = ran(capsys, *words, "--budget", "6308352")
    assert out.splitlines()[-2].startswith("limited by ") and out.splitlines()[-1] == f"would help    {helps['text']}"


def test_of_two_budgets_that_gain_alike_the_smaller_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    helps = facts(capsys, "plan", "--graph", VGG, "--h2d", "12GB/s", "--device-bytes", "1GiB", "--budget", "420MB")["advice"]
    assert (helps["knob"], helps["to"]) == ("budget", 525_000_000)


def test_where_nothing_helps_a_bound_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = [word for size in ("layers=4", "seq=8192", "batch=4", "vocab=4000") for word in ("--set", size)]
    found = facts(capsys, "plan", LLAMA, *sizes, *ON_V100, "--budget", "15GiB")
    helps = found["advice"]
    assert (helps["knob"], helps["by"]) == (None, "bound")
    assert helps["makespan_s"] == found["bound_s"]
    assert f"{100 * (1 - found['bound_s'] / found['makespan_s']):.1f} %" in helps["text"]


def test_what_a_budget_does_not_change_is_made_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of other budgets: of a sweep, and of the advice; another size is another spec."""
    fusings: list[str] = []

    def counted(program: Program, request: PlanRequest) -> WorkingSets:
        fusings.append(f"seq={program.sizes['seq']}")
        return fused(program, request)

    monkeypatch.setattr(judged_plan, "fused", counted)
    words = (LLAMA, *SMALL_LLAMA, "--machine", "cpu")
    swept(capsys, *words, "--sweep", "budget=256KiB:1MiB:4")
    assert len(fusings) == 1
    fusings.clear()
    helps = facts(capsys, "plan", *words, "--budget", "256KiB")["advice"]
    assert helps["knob"] == "budget" and len(fusings) == 1
    fusings.clear()
    swept(capsys, LLAMA, *LLAMA_SIZES, "--budget", "1MiB", "--sweep", "seq=4:16")
    assert fusings == ["seq=4", "seq=8", "seq=16"]


def test_of_loops_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert facts(capsys, "plan", LLAMA, *SMALL_LLAMA, "--budget", "1MiB", "--passes", "2")["advice"] is None


def test_of_large_plans_nothing_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice_module, "MOST_NODES", 3)
    assert facts(capsys, "plan", "--graph", SQUEEZE, "--h2d", "1GB", "--budget", "7MB")["advice"] is None
    assert "would help" not in ran(capsys, "plan", "--graph", SQUEEZE, "--h2d", "1GB", "--budget", "7MB")[0]
