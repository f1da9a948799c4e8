"""Golden texts: what a person reads of each shipped spec, of small plans and of mistakes, as files under tests/golden.

`make golden` rewrites the files, and the diff is part of the review. A file that no test owns fails in any mode, so none can go stale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import unified_diff
from functools import partial
from pathlib import Path

import pytest

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.dump import graph_text
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.judged_plan import Planned, plan_program
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.graph.dump import memgraph_text
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.report import render
from golden_mistakes import command, mistakes_text, statements_text
from specs_small import SMALL, SPECS, small_program

FOLDER = Path(__file__).parent / "golden"
MOST_LINES = 260

SIZES: dict[str, dict[str, int]] = {
    "matmul_chain": {"width": 96, "depth": 2},
    "mlp": {},
    "attention": {"batch": 1},
    "llama": {"layers": 1},
    "gpt2": {"layers": 1},
}
"""On top of SMALL: one layer is enough to read."""


def graph(name: str, **pieces: int) -> str:
    """The TaskGraph of a spec at a small size."""
    return graph_text(split(fuse(small_program(name, SIZES[name])), pieces, DType.FP32))


def show(name: str) -> str:
    """`einpage show` of a spec at its own sizes."""
    status, out, _ = command("show", str(SPECS / f"{name}.yaml"))
    assert status == 0
    return out


def planned(name: str, machine: str, budget: int) -> Planned:
    return plan_program(small_program(name, SIZES[name]), load_machine(machine), PlanRequest(budget, DType.FP16))


def memgraph(name: str, machine: str, budget: int) -> str:
    return memgraph_text(planned(name, machine, budget).memgraph)


def reports() -> str:
    """The report of plans with a generous, a scarce and the smallest budget."""
    cases = (("llama", "h100", 4 << 20), ("llama", "p100", 400 << 10), ("matmul_chain", "v100", 110 << 10), ("mlp", "cpu", 120 << 10))
    texts = [render(replace(planned(name, machine, budget).report, plan_s=0.125)) for name, machine, budget in cases]
    return "\n\n".join(texts) + "\n"


GOLDEN: dict[str, Callable[[], str]] = {
    **{f"graph_{name}.txt": partial(graph, name) for name in SMALL},
    "graph_mlp_split.txt": partial(graph, "mlp", h=3, o=1),
    "graph_attention_split.txt": partial(graph, "attention", s=2, h=1),
    **{f"show_{name}.txt": partial(show, name) for name in SMALL},
    "plan_mlp.txt": partial(memgraph, "mlp", "a100", 100 << 10),
    "plan_matmul_chain.txt": partial(memgraph, "matmul_chain", "a100", 44 << 10),
    "reports.txt": reports,
    "mistakes.txt": mistakes_text,
    "mistakes_statements.txt": statements_text,
}
"""The text of each file of tests/golden."""


def difference(path: Path, expected: str, got: str) -> str:
    """A unified diff from the file to what the code says now; empty where they agree."""
    diff = unified_diff(expected.splitlines(True), got.splitlines(True), f"golden/{path.name}", "the code says now")
    return "".join(diff)


def check(path: Path, got: str, update: bool) -> None:
    """Fails with the diff where the file says otherwise; with `update`, writes the file instead."""
    assert got.endswith("\n") and len(got.splitlines()) <= MOST_LINES, f"{path.name} is not one that a person would read"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(got, encoding="utf-8")
    found = path.read_text(encoding="utf-8") if path.exists() else ""
    diff = difference(path, found, got)
    assert not diff, f"{path.name} is out of date; if the new text is right: make golden\n{diff}"


def strays(folder: Path) -> list[str]:
    """Files that no test owns, by name."""
    return sorted(p.name for p in folder.iterdir() if p.name not in GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    got = GOLDEN[name]()
    assert str(tmp_path) not in got and str(SPECS) not in got, "a path of this machine"
    check(FOLDER / name, got, request.config.getoption("--update-golden"))


def test_golden_files_all_have_an_owner() -> None:
    assert strays(FOLDER) == [], "no test writes these: remove them"


def test_golden_checks_see_a_difference(tmp_path: Path) -> None:
    path = tmp_path / "mlp.txt"
    with pytest.raises(AssertionError, match="make golden"):
        check(path, "one\n", update=False)
    check(path, "one\n", update=True)
    check(path, "one\n", update=False)
    with pytest.raises(AssertionError, match=r"(?s)-one.*\+two"):
        check(path, "two\n", update=False)
    assert strays(tmp_path) == ["mlp.txt"]
