"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile

from einpage.einsum_front.base.errors import UsageError


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


def refuse_unwritable(*files: str | None) -> None:
    """Raises UsageError now for results that could not be written after the run, or of which one would replace another.

    A pipe or a device, as /dev/null, is refused: a file renamed into its place would replace it.
    """
    given = [Path(file) for file in files if file is not None]
    for path in given:
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise UsageError(f"cannot write {path}: its folder does not exist, or it is a folder itself")
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot write {path}: it is a pipe or a device; name a file, which appears whole")
        try:
            with NamedTemporaryFile(dir=path.absolute().parent):
                pass
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror or error}") from error
    places = [path.resolve() for path in given]
    for path, place in zip(given, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"cannot write {path}: two results would go there; give each a file of its own")
