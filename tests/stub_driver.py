"""The stub of the CUDA driver, compiled: for tests of what reaches a driver, in a process where Triton does not interpret."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

TESTS = Path(__file__).parent
WHY_NOT = (
    None
    if shutil.which("cc") and (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()
    else "needs a C compiler and Python's headers, as Triton does"
)


def compiled_stub(folder: Path) -> Path:
    """libcuda.so.1 in `folder`."""
    library = folder / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-w", "-o", str(library), "-Wl,-soname,libcuda.so.1", str(TESTS / "stub_libcuda.c")]
    subprocess.run(command, check=True)
    return library


def environment(folder: Path) -> dict[str, str]:
    """For a process whose CUDA driver is the stub in `folder`."""
    rest = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    own = {
        "TRITON_LIBCUDA_PATH": str(folder),
        "LD_LIBRARY_PATH": str(folder),
        "TRITON_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": path,
    }
    return {**rest, **own}
