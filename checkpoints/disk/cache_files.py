"""A folder of what can be made again: files named by what is in them, which appear whole or not at all, within a limit.

In: a key, which is a digest of all that the bytes follow from, and a function that writes them. Out: the file of that key, made once. It is
written under a name of its own, synced, and renamed; what a killed process left is removed by the next. The least recently used go when
another wants their room. What is small and wanted often is written without waiting for the disk, and read whole beside its digest.

    <key>.blocks    | extents, each at a multiple of 4096 | index: JSON | [bytes of data, of index] of 8 bytes each | magic |
    <key>.code      | SHA-256 of the key and the data | data |
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from einpage.checkpoints.disk.direct_file import DiskError, full_or
from einpage.einsum_front.base.units import format_bytes

DEFAULT_LIMIT = 64 << 30
"""Bytes of all cache files together, where nobody said another limit."""
_PART, _LIMIT = ".part", "limit"
_MAGIC = b"einpage blocks 1"
_TAIL = struct.Struct("<QQ16s")
_MOST_INDEX = 256 << 20
_DIGEST_BYTES = hashlib.sha256().digest_size
_numbers = count()


@dataclass(frozen=True, slots=True)
class CacheFile:
    """One that is whole."""

    path: Path
    nbytes: int
    used_s: float
    """When it was last used, seconds of the system's clock."""


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """`path` need not exist yet."""

    path: Path
    suffix: str = ".blocks"
    """Of the names of its files."""
    default_limit: int = DEFAULT_LIMIT
    """Bytes of all its files together, where nobody said another limit."""

    def files(self) -> tuple[CacheFile, ...]:
        """Those that are whole, the least recently used first."""
        found = []
        for path in self._named(self.suffix):
            with suppress(FileNotFoundError):
                status = path.stat()
                found.append(CacheFile(path, status.st_size, status.st_atime))
        return tuple(sorted(found, key=lambda file: (file.used_s, file.path.name)))

    def limit(self) -> int:
        """Bytes that all files together may have."""
        try:
            return int((self.path / _LIMIT).read_text(encoding="ascii"))
        except (OSError, ValueError):
            return self.default_limit

    def set_limit(self, nbytes: int) -> None:
        """Keep to `nbytes` from now on: what is too much goes. Raises DiskError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            part = self.path / f"{os.getpid()}.{next(_numbers)}{_PART}"
            part.write_text(str(nbytes), encoding="ascii")
            os.replace(part, self.path / _LIMIT)
        except OSError as error:
            raise full_or(f"{self.path}: cannot be written", error) from error
        self._evict(0, nbytes)

    def clear(self) -> int:
        """Remove every file; how many bytes that were."""
        self._remove_abandoned()
        return self._evict(0, -1)

    def find(self, key: str) -> tuple[Path, Mapping[str, object]] | None:
        """The file of that key and its index; None where there is none. It counts as used now."""
        path = self._path(key)
        try:
            index = _index(path)
            os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))  # who has it open sees that nothing was written
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            path.unlink(missing_ok=True)  # cut off, or none of ours: to be made anew
            if isinstance(error, OSError):
                raise full_or(f"{path}: cannot be read", error) from error
            return None
        return path, index

    def make(self, key: str, nbytes: int, write: Callable[[int], Mapping[str, object]]) -> tuple[Path, Mapping[str, object]]:
        """The file of that key, made by `write`: it puts `nbytes` into the descriptor that it is given, and answers their index.

        Raises DiskError where the limit, or the disk, has no room.
        """
        limit = self.limit()
        if nbytes > limit:
            raise DiskError(
                f"{self.path}: packed weights take {format_bytes(nbytes)}, more than the limit of {format_bytes(limit)} for all of them; "
                f"say `einpage cache --limit {format_bytes(nbytes)}`, or more"
            )
        self._remove_abandoned()
        self._evict(nbytes, limit)
        path = self._path(key)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with self._part() as (part, fd):
                os.posix_fallocate(fd, 0, max(nbytes, 1))
                index = write(fd)
                text = json.dumps(index, sort_keys=True).encode()
                _write_all(fd, text + _TAIL.pack(nbytes, len(text), _MAGIC), nbytes)
                os.fsync(fd)
                os.replace(part, path)
            folder = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise full_or(f"{path}: cannot be written", error) from error
        return path, index

    def read(self, key: str) -> bytes | None:
        """What was written for that key; None where that is nothing, or not whole, or where another user could have written it. It counts
        as used now."""
        path = self._path(key)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                found = file.read() if status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else b""
            data = found[_DIGEST_BYTES:]
            if found[:_DIGEST_BYTES] != _digest(key, data):
                path.unlink(missing_ok=True)
                return None
            os.utime(path)
        except OSError:
            return None
        return data

    def write(self, key: str, data: bytes) -> None:
        """Keep `data` for that key, for `read`. Where the folder cannot be written, or the limit is less, nothing is kept."""
        content, limit = _digest(key, data) + data, self.limit()
        if len(content) > limit:
            return
        with suppress(OSError):
            self._remove_abandoned()
            self._evict(len(content), limit)
            self.path.mkdir(parents=True, exist_ok=True)
            with self._part() as (part, fd):
                os.fchmod(fd, stat.S_IRUSR | stat.S_IWUSR)
                _write_all(fd, content, 0)
                os.replace(part, self._path(key))

    def _path(self, key: str) -> Path:
        return self.path / f"{key}{self.suffix}"

    @contextmanager
    def _part(self) -> Iterator[tuple[Path, int]]:
        """A new file, locked as long as it is open; it is removed unless it was renamed."""
        part = self.path / f"{os.getpid()}.{next(_numbers)}{_PART}"
        fd = os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield part, fd
        finally:
            part.unlink(missing_ok=True)
            os.close(fd)

    def _remove_abandoned(self) -> None:
        """What processes left that ended while they wrote: files that nobody has locked."""
        for part in self._named(_PART):
            with suppress(OSError):
                fd = os.open(part, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    part.unlink(missing_ok=True)
                finally:
                    os.close(fd)

    def _evict(self, nbytes: int, limit: int) -> int:
        """Remove the least recently used until `nbytes` more are within `limit`; how many bytes went. Who has one open keeps it."""
        files, evicted = self.files(), 0
        total = sum(file.nbytes for file in files)
        for file in files:
            if total - evicted + nbytes <= limit:
                break
            file.path.unlink(missing_ok=True)
            evicted += file.nbytes
        return evicted

    def _named(self, suffix: str) -> Sequence[Path]:
        try:
            return sorted(path for path in self.path.iterdir() if path.name.endswith(suffix))
        except (FileNotFoundError, NotADirectoryError):
            return ()


def _index(path: Path) -> Mapping[str, object]:
    """Raises ValueError for a file that is not whole, OSError."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < _TAIL.size:
            raise ValueError("too short")
        file.seek(size - _TAIL.size)
        data, length, magic = _TAIL.unpack(file.read(_TAIL.size))
        if magic != _MAGIC or data + length + _TAIL.size != size or length > _MOST_INDEX:
            raise ValueError("not whole")
        file.seek(data)
        index = json.loads(file.read(length))
    if not isinstance(index, dict):
        raise ValueError("no index")
    return index


def _digest(key: str, data: bytes) -> bytes:
    """Of data under that key: what another file holds is not taken for it either."""
    return hashlib.sha256(key.encode() + b"\0" + data).digest()


def _write_all(fd: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
