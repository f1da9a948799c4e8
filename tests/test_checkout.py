"""A script beside a checkout that lies in a folder called `einpage`: which package it imports (docs/adr/0011)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FINDER = """
import sys
from importlib.util import spec_from_file_location
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return spec_from_file_location(name, "elsewhere/einpage/__init__.py") if name == "einpage" else None
sys.meta_path.append(Finder)
"""
"""What an editable install does: a finder behind Python's own."""


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The folder above a checkout called `einpage`, with another `einpage` in `elsewhere`."""
    for file in ("__init__.py", "einpage/__init__.py"):
        (tmp_path / "einpage" / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / "einpage" / file)
    (tmp_path / "elsewhere/einpage").mkdir(parents=True)
    (tmp_path / "elsewhere/einpage/__init__.py").write_text("")
    return tmp_path


def imported(folder: Path, before: str = "") -> str:
    """The file of `einpage` for a script in `folder`, with nothing installed but what `before` sees to."""
    script = f"import sys\n{before}\nimport einpage\nassert sys.modules['einpage'] is einpage\nprint(einpage.__file__)\n"
    (folder / "script.py").write_text(script)
    call = [sys.executable, "-S", "-E", "script.py"]
    ran = subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    found = ran.stdout.strip()
    return found if found == "None" else str((folder / found).resolve().relative_to(folder))


def test_nothing_is_installed(beside: Path) -> None:
    assert imported(beside) == "einpage/einpage/__init__.py"


def test_a_wheel_is_installed(beside: Path) -> None:
    assert imported(beside, "sys.path.append('elsewhere')") == "elsewhere/einpage/__init__.py"


def test_an_editable_install(beside: Path) -> None:
    assert imported(beside, FINDER) == "elsewhere/einpage/__init__.py"


def test_a_linked_checkout(beside: Path) -> None:
    (beside / "einpage").rename(beside / "checkout")
    (beside / "einpage").symlink_to("checkout")
    assert imported(beside) == "checkout/einpage/__init__.py"


def test_without_the_file(beside: Path) -> None:
    """What the tests above would say if they could not fail: Python takes the checkout for a package without a file."""
    (beside / "einpage/__init__.py").unlink()
    assert imported(beside) == imported(beside, FINDER) == "None"


def test_inside_the_checkout(beside: Path) -> None:
    assert imported(beside / "einpage") == "einpage/__init__.py"
