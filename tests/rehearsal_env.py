"""An environment as on a machine that has a GPU and nothing else: an interpreter with some of the distributions that are here, no git.

In: which distributions it lacks. Out: an interpreter of its own, whose packages are links to those of the one that runs the tests, and a
PATH with the few tools that bench/gpu.sh calls. What is missing is really missing: nothing pretends.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("bash", "env", "dirname", "mktemp", "rm")
"""All that bench/gpu.sh calls beside the interpreter."""
OURS = ("einpage",)
FEW = 3
"""Processors that it is given, where there are so many."""


@dataclass(frozen=True, slots=True)
class Environment:
    python: Path
    variables: dict[str, str]

    def gpu_sh(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """`bench/gpu.sh` begun there, in a group of its own; its output is one stream."""
        return subprocess.Popen(
            [ROOT / "bench" / "gpu.sh", *words],
            cwd="/",
            env={**self.variables, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:FEW]),
        )


def tops(distribution: metadata.Distribution) -> set[str]:
    """The names in the folder of packages that belong to a distribution."""
    return {path.parts[0] for path in distribution.files or () if path.parts[0] not in ("..", "__pycache__")}


def python_3_12() -> Path | None:
    """An interpreter of that version on this machine, wherever such are kept; None where there is none."""
    kept = (Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob("3.12*/bin/python3.12")
    on_path = shutil.which("python3.12")
    found = [Path(on_path)] if on_path else []
    for python in (*found, *sorted(kept)):
        asked = [python, "-c", "import sys; print(sys.version_info[:2])"]
        if subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() == "(3, 12)":
            return python
    return None


def bare(folder: Path, python: Path) -> Environment:
    """`python` as it is, with no package of anybody's."""
    venv_python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    return Environment(venv_python, _variables(folder, venv_python))


def make(folder: Path, without: Collection[str] = ()) -> Environment:
    """Made in `folder`, which is new; `without` these distributions."""
    python = folder / "venv" / "bin" / "python"
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    site = folder / "venv" / "lib" / version / "site-packages"
    hidden = {top for name in (*without, *OURS) for top in tops(metadata.distribution(name))}
    for entry in sorted(Path(sysconfig.get_path("purelib")).iterdir()):
        if entry.name not in hidden and entry.name != "__pycache__" and not entry.name.startswith("__editable__"):
            (site / entry.name).symlink_to(entry)
    return Environment(python, _variables(folder, python))


def _variables(folder: Path, python: Path) -> dict[str, str]:
    tools = folder / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, name
        (tools / name).symlink_to(found)
    kept = ("LANG", "LC_ALL", "TMPDIR")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    variables |= {"PATH": str(tools), "HOME": str(folder), "PYTHON": str(python), "OPENBLAS_NUM_THREADS": "1"}
    return variables | {"PYTHONDONTWRITEBYTECODE": "1", "EINPAGE_CACHE": str(folder / "cache")}
