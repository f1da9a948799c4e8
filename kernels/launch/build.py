"""Source text to a Triton function, through a file named by its content, so that equal text is compiled once and can be read.

The folder is `kernels/` in $EINPAGE_CACHE, else in einpage/ of $XDG_CACHE_HOME or ~/.cache, else a temporary one. A file is written
beside and moved into place, and used only if it holds exactly the text asked for.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any


@lru_cache(maxsize=4096)
def build(text: str) -> Any:
    """The `@triton.jit` function that `text` defines (its last `def`)."""
    path = _stored(text)
    spec = importlib.util.spec_from_file_location(f"einpage_kernel_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    name = [line.split("(")[0].removeprefix("def ") for line in text.splitlines() if line.startswith("def ")][-1]
    return getattr(module, name)


def _stored(text: str) -> Path:
    stem = hashlib.sha256(text.encode()).hexdigest()[:24]
    for folder in _folders():
        path = folder / f"{stem}.py"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as f:
                    f.write(text)
                os.replace(f.name, path)
            return path
        except OSError:
            continue
    raise OSError(f"no folder to write generated kernels to: tried {', '.join(map(str, _folders()))}; set EINPAGE_CACHE")


@lru_cache(maxsize=1)
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="einpage-kernels-")


def _folders() -> Iterator[Path]:
    """Where source files may lie, best first; the temporary folder is made when it is asked for."""
    if own := os.environ.get("EINPAGE_CACHE"):
        cache = Path(own)
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "einpage"
    yield cache / "kernels"
    yield Path(_temporary().name)
