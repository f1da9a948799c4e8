"""Where results go: every file that a command writes is written here, whole or not at all. And files are read, up to a length.

In: the path that the user gave, and what puts the bytes into a file. A new file is made beside its place and renamed into it. A link is
followed: what it leads to is replaced, the link stays. What is no regular file (/dev/stdout, /dev/null, a pipe) is written to directly,
and so is a file in a folder that lets nothing be made in it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BufferedReader, BytesIO, TextIOWrapper
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, TextIO

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes

_MOST_SUMMED = 1 << 30
"""Bytes of a pipe, for its checksum."""
_part_numbers = count()
_bytes_by_pipe: dict[tuple[int, int], bytes] = {}
"""What came out of pipes, by device and inode."""


def opened_to_read(path: Path, most: int) -> BufferedReader:
    """A file's bytes, from the first on. What is no regular file is read whole, and kept: a pipe gives its bytes once, and a spec is read
    again for its checksum and at each step of a sweep.

    Raises OSError where it cannot be read, ValueError for a pipe or a device with more than `most` bytes.
    """
    found = os.stat(path)
    if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
        return path.open("rb")
    key = (found.st_dev, found.st_ino)
    if key not in _bytes_by_pipe:
        with path.open("rb") as file:
            _bytes_by_pipe[key] = file.read(most + 1)
    if len(_bytes_by_pipe[key]) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return BufferedReader(BytesIO(_bytes_by_pipe[key]))


def checksum(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits. Raises UsageError where it cannot be read."""
    try:
        with opened_to_read(path, _MOST_SUMMED) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {_reason(error)}") from error


def not_regular(path: Path) -> str:
    """What keeps `path` from being a regular file, for messages."""
    if os.path.isdir(path):
        return "is a folder"
    if not os.path.exists(path):  # so too of a name that is too long for a file, where Path.exists raises
        return "does not exist"
    return f"is {'a pipe' if path.is_fifo() else 'a device or a socket'}, no regular file; write what it gives to a file, and name that"


def read_text(path: Path, what: str, most: int) -> str:
    """A file's text, UTF-8. `what` names it in messages. Raises UsageError where it cannot be read, or has more than `most` characters: a
    device may have no end."""
    try:
        with TextIOWrapper(opened_to_read(path, most), encoding="utf-8-sig") as file:
            text = file.read(most + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read {what}: it is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {what}: {_reason(error)}") from error
    if len(text) > most:
        raise UsageError(f"cannot read {what}: it has more than {most:,} characters")
    return text


def read_bytes(path: Path, most: int) -> bytes:
    """A file's bytes. Raises OSError where it cannot be read, ValueError where it has more than `most` bytes."""
    with opened_to_read(path, most) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return data


def write_atomically(path: Path, text: str) -> None:
    """Write `text` beside `path` and rename it into place: a reader sees the old file or the new one, never a part.

    Raises UsageError where the place cannot be written.
    """
    write_through(path, lambda part: part.write_text(text, encoding="utf-8", errors="backslashreplace"))


def write_through(path: Path, write: Callable[[Path], object]) -> None:
    """As write_atomically, for what `write` puts into the file it is given. Mode and owner are those of the file that was there, or
    those that a new file of the user's has, whatever `write` makes them.

    Raises UsageError where the place cannot be written.
    """
    try:
        target = _target(path)
        if target is None:
            with TemporaryDirectory(prefix="einpage-") as folder:
                part = Path(folder, "part")
                write(part)
                _copy_into(part, path)
        else:
            _replace(target, write)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot write {path}: {_reason(error)}") from error


def write_each(results: Iterable[tuple[str | None, Callable[[Path], object]]]) -> None:
    """Write results one after another: (file, what writes it), without a file where nobody asked for it.

    Raises UsageError for the first that fails, saying which files stand already.
    """
    done: list[str] = []
    for file, write in results:
        if file is None:
            continue
        try:
            write(Path(file))
        except UsageError as error:
            raise UsageError(f"{error}; written before it: {', '.join(done)}" if done else str(error)) from error
        done.append(file)


def refuse_unwritable(*files: str | None) -> None:
    """Raises UsageError now for results that could not be written after the run, or of which one would replace another."""
    given = [Path(file) for file in files if file is not None]
    places: list[str] = []
    for path in given:
        try:
            if not path.absolute().parent.is_dir() or path.is_dir():
                raise UsageError(f"cannot write {path}: its folder does not exist, or it is a folder itself")
            target = _target(path)
            if target is None:
                if not os.access(path, os.W_OK):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                continue
            _part(target).unlink()
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot write {path}: {_reason(error)}") from error
        if str(target) in places:
            raise UsageError(f"cannot write {path}: two results would go there; give each a file of its own")
        places.append(str(target))


def refuse_overwriting(read: Iterable[str], *files: str | None) -> None:
    """Raises UsageError for a result that would replace a file that is `read`, or one in a folder that is."""
    sources = [(text, Path(text)) for text in read]
    for path in (Path(file) for file in files if file is not None and os.path.isfile(file)):
        for text, source in sources:
            with suppress(OSError, ValueError):
                if source.exists() and (path.samefile(source) or path.resolve().parent.samefile(source)):
                    raise UsageError(f"cannot write {path}: it is read, as {text}; give the result a file of its own")


def refuse_full(file: str | None, nbytes: int) -> None:
    """Raises UsageError where a result of so many bytes would find the disk full. What is there now stays until the result is whole."""
    if file is None or (target := _target(Path(file))) is None:
        return
    free = shutil.disk_usage(target.parent).free
    if nbytes > free:
        raise UsageError(f"cannot write {file}: it will have {format_bytes(nbytes)}, and its disk has {format_bytes(free)} left")


def _target(path: Path) -> Path | None:
    """The file to replace, links followed; None for what is to be written to directly. Raises OSError."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return Path(os.path.realpath(path))  # also of a link that leads nowhere yet
    target = Path(os.path.realpath(path))
    if not stat.S_ISREG(found.st_mode) or _stream_at(found) is not None or not target.exists() or not os.access(target.parent, os.W_OK):
        return None
    return target


def _stream_at(found: os.stat_result) -> TextIO | None:
    """stdout or stderr, where that is the file: /dev/stdout under `> file`."""
    for stream in (sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):
            if stream is not None and os.path.samestat(os.fstat(stream.fileno()), found):
                return stream
    return None


def _copy_into(part: Path, path: Path) -> None:
    """What `part` holds, into what is no file to be replaced. Where it is our own stdout, after what was printed before."""
    stream = _stream_at(os.stat(path))
    if stream is not None:
        stream.flush()
    with part.open("rb") as source, _opened(path, stream) as target:
        shutil.copyfileobj(source, target)


def _opened(path: Path, stream: TextIO | None) -> BinaryIO:
    return open(path, "wb") if stream is None else os.fdopen(os.dup(stream.fileno()), "wb")


def _replace(target: Path, write: Callable[[Path], object]) -> None:
    part = _part(target)
    try:
        new = part.stat()
        write(part)
        old = target.stat() if target.exists() else new
        part.chmod(stat.S_IMODE(old.st_mode))
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(PermissionError):  # only the superuser gives files away
                os.chown(part, old.st_uid, old.st_gid)
        try:
            os.replace(part, target)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            shutil.copyfile(part, target)  # a file mounted into a container: it can be written, and not replaced
    finally:
        part.unlink(missing_ok=True)


def _part(target: Path) -> Path:
    """A new, empty file beside `target`, with the mode that the user's files have. Its name is short: `target`'s may be very long."""
    part = target.with_name(f".einpage.{os.getpid()}.{next(_part_numbers)}.part")
    with suppress(FileNotFoundError):
        os.stat(target)  # a name that is too long is found out here
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return part


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
