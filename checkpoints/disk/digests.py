"""Whether bytes are what they were: SHA-256 of whole files, and a checksum of pieces that costs a tenth of reading them from a disk.

The digest of a file is kept in a folder with what the file was when it was taken (device, inode, size, times), and the next asks the system
for these alone; a file that was changed within the last seconds is read again, for the clock of a file system is coarse. For a checksum the
words of 64 bits at the same place of each kibibyte are summed, and the sums hashed in their order: it finds any change within one word,
and words that change places within a kibibyte.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import astuple
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from einpage.checkpoints.disk.direct_file import DiskError, Identity

UNCHANGED_S = 2.0
"""Seconds since the last change after which a file's times tell whether there was another."""
_BLOCK = 1 << 20
_MOST_KEPT = 1000
_NAME = "digests.json"
_WORDS = 128
"""In a row of those that are summed column by column."""


def file_digest(path: Path, folder: Path) -> str:
    """Hexadecimal. Raises DiskError where the file cannot be read, or changes meanwhile."""
    try:
        with path.open("rb", buffering=0) as file:
            before = Identity.of(os.fstat(file.fileno()))
            key = ":".join(map(str, astuple(before)))
            kept = _kept(folder)
            if key in kept:
                return kept[key]
            found = hashlib.sha256()
            while data := file.read(_BLOCK):
                found.update(data)
                with suppress(OSError, AttributeError):  # the page cache is for others
                    os.posix_fadvise(file.fileno(), file.tell() - len(data), len(data), os.POSIX_FADV_DONTNEED)
            if Identity.of(os.fstat(file.fileno())) != before:
                raise DiskError(f"{path}: changed while it was being read; start again when nobody writes to it")
    except OSError as error:
        raise DiskError(f"{path}: cannot be read: {error.strerror}") from error
    if time.time() - max(before.modified_ns, before.changed_ns) / 1e9 > UNCHANGED_S:
        _save(folder, {**dict([*kept.items()][1 - _MOST_KEPT :]), key: found.hexdigest()})
    return found.hexdigest()


def _kept(folder: Path) -> dict[str, str]:
    try:
        read = json.loads((folder / _NAME).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return {}
    return {k: v for k, v in read.items() if isinstance(v, str)} if isinstance(read, dict) else {}


def _save(folder: Path, digest_by_identity: dict[str, str]) -> None:
    """What cannot be kept is taken again."""
    part = folder / f"{_NAME}.{os.getpid()}"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(digest_by_identity), encoding="ascii")
        os.replace(part, folder / _NAME)


def checksum(data: NDArray[np.uint8]) -> int:
    """Of flat bytes."""
    row = 8 * _WORDS
    whole = len(data) // row * row
    sums = data[:whole].view("<u8").reshape(-1, _WORDS).sum(axis=0, dtype=np.uint64)
    digest = blake2b(sums.tobytes(), digest_size=8)
    digest.update(data[whole:].tobytes())
    digest.update(len(data).to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")
