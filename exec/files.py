"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from einpage.einsum_front.errors import UsageError


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place: a reader sees the old file or the new one, never a part.

    Raises UsageError where the place cannot be written.
    """
    write_through(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_through(path: Path, write: Callable[[Path], object]) -> None:
    """As write_atomically, for what `write` puts into the file it is given; the mode is the user's, whatever `write` makes it.

    Raises UsageError where the place cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        try:
            part.touch()
            mode = part.stat().st_mode
            write(part)
            part.chmod(mode)
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def refuse_unwritable(file: str | None) -> None:
    """Raises UsageError now for a result that could not be written after the run."""
    if file is not None and not (Path(file).absolute().parent.is_dir() and not Path(file).is_dir()):
        raise UsageError(f"cannot write {file}: its folder does not exist, or it is a folder itself")
