"""The wheel: built, installed into a fresh environment, and used from an empty folder.

The environment sees the libraries of the running one, but not its einpage: an editable install is active only where its own .pth lies.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("einsum_front", "checkpoints", "memplan", "kernels", "exec", "specs")
pytestmark = pytest.mark.slow


def call(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    """What the command prints; fails with what it says where it ends badly."""
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    ran = subprocess.run(command, cwd=cwd, env=plain | (env or {}), capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves folders beside the sources."""
    copy, dist = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in (*FOLDERS, "einpage"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "__init__.py"):
        shutil.copy(ROOT / name, copy / name)
    call(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", dist, ".", cwd=copy)
    (built,) = dist.glob("einpage-*.whl")
    return built


@dataclass(frozen=True, slots=True)
class Installed:
    python: Path
    folder: Path
    """An empty one."""
    einpage: Callable[..., str]
    """einpage(*arguments): what the installed command prints."""


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    home, folder = tmp_path_factory.mktemp("venv"), tmp_path_factory.mktemp("empty")
    venv.create(home, symlinks=True)
    python, paths = home / "bin/python", sysconfig.get_paths(vars={"base": str(home), "platbase": str(home)})
    libraries = "\n".join(dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))))
    Path(paths["purelib"], "libraries.pth").write_text(libraries)
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel, cwd=folder)
    env = {"EINPAGE_CACHE": str(home / "cache")}
    return Installed(python, folder, lambda *arguments: call(home / "bin/einpage", *arguments, cwd=folder, env=env))


def test_everything_is_in_it(wheel: Path) -> None:
    """Each file of the five folders, once."""
    files = (p.relative_to(ROOT) for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file())
    wanted = {f"einpage/{file}" for file in files if "__pycache__" not in file.parts} | {"einpage/__init__.py", "einpage/py.typed"}
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(name for name in names if ".dist-info/" not in name) == sorted(wanted)


def test_it_is_the_wheel_that_is_used(installed: Installed) -> None:
    said = call(installed.python, "-c", "import einpage; print(einpage.__file__)", cwd=installed.folder)
    assert Path(said.strip()).is_relative_to(installed.python.parent.parent)
    assert not Path(said.strip()).is_relative_to(ROOT)


def test_beside_a_checkout(installed: Installed, tmp_path: Path) -> None:
    """The installed package is imported by a script beside a checkout called einpage."""
    (tmp_path / "einpage").symlink_to(ROOT)
    (tmp_path / "script.py").write_text("import einpage\nprint(einpage.plan.__module__, einpage.__file__)\n")
    module, file = call(installed.python, "script.py", cwd=tmp_path).split()
    assert module == "einpage.exec.api" and Path(file).is_relative_to(installed.python.parent.parent)


def test_a_spec_is_found_by_name_and_by_path(installed: Installed) -> None:
    code = "import einpage.specs as s; print(list(s.__path__)[0])"
    shipped = Path(call(installed.python, "-c", code, cwd=installed.folder).strip()) / "llama.yaml"
    assert "FLOP" in installed.einpage("show", shipped)
    assert installed.einpage("show", "llama") == installed.einpage("show", shipped)


def test_a_mistake_is_found_by_the_schema(installed: Installed) -> None:
    (installed.folder / "wrong.yaml").write_text("einpage: 1\nname: wrong\nsize: {a: 1}\n")
    code = "from einpage.exec.cli import main; import sys; sys.exit(main(['show', 'wrong.yaml']) != 2)"
    call(installed.python, "-c", code, cwd=installed.folder)


def test_machines_are_found(installed: Installed) -> None:
    shipped = {path.stem for path in (ROOT / "specs/machines").glob("*.yaml")}
    assert {machine["name"] for machine in json.loads(installed.einpage("machine", "--json"))} == shipped


def test_a_plan_with_a_picture(installed: Installed) -> None:
    said = installed.einpage("plan", "gpt2", "--budget", "256MiB", "--machine", "h100", "--timeline", "t.html", "--out", "p.json", "--json")
    assert json.loads(said)["verified"] is True
    assert "<html" in (installed.folder / "t.html").read_text(encoding="utf-8")
    assert "verified" in installed.einpage("verify", "p.json", "--spec", "gpt2")


def test_a_run(installed: Installed) -> None:
    """The machine is measured first, and the profile lies in the cache."""
    (installed.folder / "x.json").write_text(json.dumps([[1.0] * 256] * 64))
    words = ("--weights", "random:0", "--input", "x=x.json", "--budget", "1500KiB", "--device", "cpu", "--json")
    facts = json.loads(installed.einpage("run", "mlp", *words))
    assert facts["measured_h2d_bytes"] == facts["h2d_bytes"] > 0
    assert list((installed.python.parent.parent / "cache").glob("cpu-*.yaml"))
