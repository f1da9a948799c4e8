"""What a checkpoint is to the rest: named tensors whose rows can be read, and its own metadata.

In: one of gguf, safetensors, random. Out: plain numpy rows. A *row* is one run of the last
dimension; the dimensions before it are flattened, so `[out, in]` has `out` rows of `in` and a vector is a single row.
Readers read the file at each call and map no page of it: what is resident is what the caller holds. Nothing here
imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.base.errors import EinpageError

WeightRows: TypeAlias = "NDArray[Any]"
"""[rows, columns], float32, or float16 where the file holds that."""


class WeightError(EinpageError):
    """A checkpoint that cannot be read, or does not hold what a spec asks for. The message lists every fault found."""


class Checkpoint(Protocol):
    @property
    def tensors(self) -> Mapping[str, tuple[int, ...]]:
        """Name → shape, outermost dimension first, in the order in which they lie in the file."""

    @property
    def damage(self) -> tuple[str, ...]:
        """What is wrong with the files themselves, in words: cut off, a shard missing. Empty for sound files."""

    def config(self) -> Mapping[str, object]:
        """The checkpoint's own metadata under dotted keys; long arrays are left out."""

    def fault(self, name: str) -> str | None:
        """Why the rows of this tensor cannot be read (its element type, in words), or None."""

    def read_rows(self, name: str, start: int, end: int) -> WeightRows:
        """Rows [start, end) of a tensor, read anew: [end - start, columns]. Raises WeightError where the file fails."""


def rows_and_columns(shape: tuple[int, ...]) -> tuple[int, int]:
    """How a shape is split into rows: `[2, 3, 4]` is 6 rows of 4, `[4]` one row of 4, `[]` one row of 1."""
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def read_bytes(path: Path, offset: int, nbytes: int) -> NDArray[np.uint8]:
    """`nbytes` bytes of a file from `offset` on, into fresh memory: nothing is mapped."""
    out = np.empty(nbytes, np.uint8)
    view = out.data
    done = 0
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            while done < nbytes:
                got = file.readinto(view[done:])
                if not got:
                    raise WeightError(f"{path}: the file ended at byte {offset + done} while bytes up to {offset + nbytes} were being read")
                done += got
    except OSError as error:
        raise unreadable(path, error) from error
    return out


def file_size(path: Path) -> int:
    """Bytes of a file that exists and is a file. Raises WeightError otherwise."""
    try:
        if not path.is_file():
            what = "is a folder" if path.is_dir() else "does not exist" if not path.exists() else "is not a file"
            raise WeightError(f"{path}: {what}")
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> WeightError:
    """The error to raise for a file that the system refuses to read."""
    return WeightError(f"{path}: cannot be read: {error.strerror or error}")


def cut_off(path: Path, size: int, end_by_name: Mapping[str, int]) -> tuple[str, ...]:
    """A damage report for a file of `size` bytes whose tensors end where given: one line, or none when all lie inside."""
    needed = max(end_by_name.values(), default=0)
    lost = [name for name, end in end_by_name.items() if end > size]
    if not lost:
        return ()
    which = ", ".join(lost)
    return (f"{path}: truncated: {size} bytes on disk, {needed} needed; cut off: {which}",)
