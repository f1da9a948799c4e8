"""stdout and stderr as a command needs them: every character can be printed, and a stream that is closed or full ends in one line.

What the encoding of a terminal lacks is written in ASCII (`÷` as `/`), or escaped. stderr that cannot be written to is silent: the exit
status still says how it ended. A reader of stdout that has seen enough (`| head`) is no mistake; a full disk is one.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

IN_ASCII = {"÷": "/", "×": "x", "→": "->", "−": "-", "–": "-", "µ": "u", "…": "...", "█": "#", "·": ".", "²": "^2", "∞": "inf", "≥": ">="}
"""How the characters that reports are made of are written where they cannot be."""
_HANDLER = "einpage.in_ascii"


class _StandardStream:
    """stdout or stderr: what cannot be written to it is lost. The first failure is kept; `silent`, none is raised."""

    def __init__(self, stream: TextIO, silent: bool) -> None:
        self._stream, self._silent = stream, silent
        self.failure: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """How many characters of `text` were taken: all of them, or OSError."""
        try:
            self._stream.write(text)
        except OSError as error:
            self._fail(error)
        return len(text)

    def flush(self) -> None:
        """Raises OSError unless the stream is silent."""
        try:
            self._stream.flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        """What the stream still holds goes nowhere: the interpreter would fail on it as it ends."""
        self.failure = self.failure or error
        with suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
        if not self._silent:
            raise error


@contextmanager
def standard_streams() -> Iterator[None]:
    """A context in which stdout and stderr are as above; stdout is None where it is closed."""
    codecs.register_error(_HANDLER, _in_ascii)
    _occupy()
    kept = sys.stdout, sys.stderr
    for stream in kept:
        with suppress(AttributeError, ValueError):  # another program's stream, as a test's, stays as it is
            stream.reconfigure(errors=_HANDLER)  # type: ignore[union-attr]
    if kept[0] is not None:
        sys.stdout = _StandardStream(kept[0], silent=False)
    sys.stderr = _StandardStream(kept[1] or open(os.devnull, "w", encoding="utf-8"), silent=True)  # noqa: SIM115 - for as long as the process
    try:
        yield
    finally:
        sys.stderr.flush()
        sys.stdout, sys.stderr = kept


def flush_stdout() -> str | None:
    """Print what is printed by now. Why not all of it could be, in words; None where it could, and where the reader has gone."""
    with suppress(OSError):
        sys.stdout.flush()
    failure: OSError | None = getattr(sys.stdout, "failure", None)
    if failure is None or isinstance(failure, BrokenPipeError):
        return None
    return f"stdout cannot be written: {failure.strerror or failure}"


def _occupy() -> None:
    """The numbers 0 to 2 are taken, so that no file opened later is written to by what prints."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one


def _in_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lost = error.object[error.start : error.end]
    return "".join(IN_ASCII.get(c) or c.encode("ascii", "backslashreplace").decode() for c in lost), error.end
