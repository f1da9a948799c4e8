"""Keys of checkpoints' metadata as rows: metadata_keys.yaml, read once.

In: a key as the metadata have it. Out: the row that says what it changes, the fact that it changes nothing, or that it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from einpage.einsum_front.spec.source import SourceFile
from einpage.einsum_front.spec.yamltree import json_value, parse_yaml

MetadataScalar: TypeAlias = "bool | int | float | str"
_FILE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True, slots=True)
class MathKey:
    """A key that changes the math."""

    glob: str
    changes: str
    """What it changes, for messages."""
    neutral: tuple[MetadataScalar, ...]
    """The values under which it changes nothing."""
    unless: tuple[str, MetadataScalar] | None
    """Another key, and its value under which this one is not read."""


class Harmless(Enum):
    """Why a key need not be looked at."""

    CHECKED_BY_TENSORS = "checked_by_tensors"
    NEVER_MATH = "never_math"


@dataclass(frozen=True, slots=True)
class MetadataKeys:
    """The file's rows."""

    math: tuple[MathKey, ...]
    harmless: tuple[tuple[str, Harmless], ...]
    """Globs."""
    names: tuple[str, ...]
    """Keys that name a model."""
    nested: tuple[str, ...]
    """Prefixes under which a text model's keys may stand."""


@cache
def metadata_keys() -> MetadataKeys:
    """The rows of metadata_keys.yaml."""
    text = _FILE.read_text(encoding="utf-8")
    tree = parse_yaml(SourceFile(_FILE.name, tuple(text.split("\n"))), text)
    assert tree is not None
    raw: Any = json_value(tree)
    return MetadataKeys(
        math=tuple(row for entry in raw["math"] for row in _rows(entry)),
        harmless=tuple((glob, why) for why in Harmless for keys in raw[why.value] for glob in keys.split()),
        names=tuple(raw["names"].split()),
        nested=tuple(raw["nested"].split()),
    )


def _rows(entry: Any) -> Iterator[MathKey]:
    """A row for each of an entry's keys, parted by blanks."""
    unless = next(iter(entry.get("unless", {}).items()), None)
    for glob in entry["keys"].split():
        yield MathKey(glob, entry["changes"], tuple(entry.get("neutral", ())), unless)


def general_key(key: str, architecture: object) -> str:
    """`key` as the rows have it: GGUF's architecture replaced by `{arch}`, the name of a nested text model left out."""
    if isinstance(architecture, str) and key.startswith(f"{architecture}."):
        return "{arch}" + key[len(architecture) :]
    return next((key.removeprefix(prefix) for prefix in metadata_keys().nested if key.startswith(prefix)), key)


@cache
def row_of(key: str) -> MathKey | Harmless | None:
    """The row of a `general_key`; None where it is unknown."""
    keys = metadata_keys()
    if key in keys.names:
        return None
    rows = ((row.glob, row) for row in keys.math)
    every: tuple[tuple[str, MathKey | Harmless], ...] = (*rows, *keys.harmless)
    exact = next((row for glob, row in every if glob == key), None)
    return exact or next((row for glob, row in every if fnmatchcase(key, glob)), None)
