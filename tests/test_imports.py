"""What is loaded when: no torch, Triton or transformers on the way to a plan; seen in fresh processes."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = frozenset(("torch", "triton", "transformers"))


def heavy_after(*commands: list[str]) -> list[str]:
    """Which heavy modules a fresh process has loaded after running these commands of einpage, each of which must end well."""
    code = (
        "import sys\nfrom einpage.exec.cli import main\n"
        f"for words in {commands!r}:\n"
        "    try:\n        status = main(words)\n    except SystemExit as end:\n        status = end.code\n"
        "    assert not status, words\n"
        f"print(sorted({set(HEAVY)!r} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ast.literal_eval(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", ["show", "plan", "run", "verify", "pack", "machine"])
def test_help_leaves_torch_out(command: str) -> None:
    assert heavy_after([command, "--help"]) == []


def test_planning_leaves_torch_out(tmp_path: Path) -> None:
    spec, plan, picture = "specs/matmul_chain.yaml", str(tmp_path / "plan.json"), str(tmp_path / "timeline.html")
    planning = ["plan", spec, "--budget", "64MiB", "--out", plan, "--timeline", picture]
    packing = ["pack", "tests/data/minimalloc_A.csv", "--capacity", "1MiB"]
    assert heavy_after(["show", spec], planning, ["verify", plan], packing, ["machine"]) == []


def test_triton_text_is_written_without_torch_and_triton() -> None:
    """`math` is what the text imports, not what writes it."""
    wings = ("tiles", "writer", "on_triton")
    paths = [p.relative_to(ROOT) for wing in wings for p in sorted((ROOT / "kernels" / wing).glob("*.py")) if p.stem != "math"]
    modules = [".".join(("einpage", *path.with_suffix("").parts)) for path in paths]
    code = (
        f"import importlib, sys\nfor name in {modules!r}: importlib.import_module(name)\nprint(sorted({set(HEAVY)!r} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert len(modules) > 15 and ran.stdout == "[]\n"


def test_heavy_modules_are_seen() -> None:
    """The check above can fail: a module that uses torch is seen."""
    code = "import sys, einpage.kernels.prepare\nprint('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout == "True\n"
