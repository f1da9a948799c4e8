"""A file read and written past the page cache, in whole sectors.

O_DIRECT wants offset, length and address in multiples of the device's logical block, the sector. What is to be read begins and ends
anywhere, so the rounded superset is read, into memory as far beyond a sector's start as the file is:

    file     |......xx|xxxxxxxx|xxx.....|        the bytes of a tensor in three sectors
    memory   |......xx|xxxxxxxx|xxx.....|        its address is congruent to its offset, modulo the sector

On a file system without O_DIRECT (tmpfs), or with larger sectors, the same bytes come through the page cache; `is_direct` says so.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from einpage.einsum_front.base.errors import EinpageError

SECTOR = 512
"""Bytes."""
PAGE = 4096
"""Bytes: what is packed, and each file in an arena, begins at a multiple, which is one of any device's physical block."""


class DiskError(EinpageError):
    """A file that cannot be read or written as a plan wants; one line, with the file and the cure."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a file was when it was opened: where any of it differs, its bytes may."""

    device: int
    inode: int
    nbytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        """As the system says it."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def sector_span(offset: int, nbytes: int) -> tuple[int, int]:
    """[start, end) of the whole sectors that hold `nbytes` from `offset` on."""
    return offset // SECTOR * SECTOR, -(-(offset + nbytes) // SECTOR) * SECTOR


class DirectFile:
    """An open file. `fd` is its descriptor."""

    def __init__(self, path: Path, fd: int, *, is_direct: bool) -> None:
        self.path, self.fd, self.is_direct = path, fd, is_direct
        self.identity = Identity.of(os.fstat(fd))

    @property
    def nbytes(self) -> int:
        """As it was opened."""
        return self.identity.nbytes

    def refuse_changed(self) -> None:
        """Raises DiskError where the file is no longer what it was when it was opened, by its size and the time of its last change."""
        found = Identity.of(os.fstat(self.fd))
        if (found.nbytes, found.modified_ns) == (self.identity.nbytes, self.identity.modified_ns):
            return
        what = f"it had {self.nbytes} bytes, and has {found.nbytes}" if found.nbytes != self.nbytes else "it was written to"
        raise DiskError(f"{self.path}: changed while it was in use: {what}; start again when nobody writes to it")

    def close(self) -> None:
        """Let the descriptor go."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def open_direct(path: Path) -> DirectFile:
    """For reading. Raises DiskError."""
    try:
        return _opened(path, lambda flags: os.open(path, os.O_RDONLY | flags))
    except OSError as error:
        raise DiskError(f"{path}: cannot be read: {error.strerror}") from error


def open_scratch(folder: Path, nbytes: int) -> DirectFile:
    """A file of `nbytes` that has no name, so that whatever ends the process frees its bytes, all of them allocated now.

    Raises DiskError, where the disk is full too.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _opened(folder / "(scratch)", lambda flags: _nameless(folder, os.O_RDWR | flags))
        try:
            os.posix_fallocate(file.fd, 0, max(nbytes, 1))
            return DirectFile(file.path, file.fd, is_direct=file.is_direct)
        except BaseException:
            file.close()
            raise
    except OSError as error:
        raise full_or(f"{folder}: {nbytes} bytes of scratch cannot be had", error) from error


def full_or(what: str, error: OSError) -> DiskError:
    """The error to raise for `what`: where the disk is full, with a cure."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskError(f"{what}: the disk is full; free some of it (`einpage cache --clear`), or name another folder in EINPAGE_CACHE")
    return DiskError(f"{what}: {error.strerror or error}")


def _nameless(folder: Path, flags: int) -> int:
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):
            return os.open(folder, flags | os.O_TMPFILE, 0o600)
    path = folder / f".scratch.{os.getpid()}.part"
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    path.unlink()
    return fd


def _opened(path: Path, open_with: Callable[[int], int]) -> DirectFile:
    """Past the page cache where that works. Raises OSError."""
    if hasattr(os, "O_DIRECT"):
        try:
            fd = open_with(os.O_CLOEXEC | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            if _reads_sectors(fd):
                return DirectFile(path, fd, is_direct=True)
            os.close(fd)
    return DirectFile(path, open_with(os.O_CLOEXEC), is_direct=False)


def _reads_sectors(fd: int) -> bool:
    """Whether the file can be read by the sector: tried, for not every kernel says so."""
    if os.fstat(fd).st_size < 2 * SECTOR:
        return True
    with mmap.mmap(-1, 2 * SECTOR) as memory, memoryview(memory) as view:
        try:
            os.preadv(fd, [view[SECTOR:]], SECTOR)
        except OSError as error:
            return error.errno != errno.EINVAL
    return True
