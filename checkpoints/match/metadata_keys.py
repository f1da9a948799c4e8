"""Keys of checkpoints' metadata as rows: metadata_keys.yaml, read once.

In: a key as the metadata have it. Out: the row that says what it changes, the fact that it changes nothing, or that it is unknown. And
what the metadata of a known model mean by leaving a key out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    """The values under which it changes nothing; text may be a condition, as `>= seq`."""
    unless: tuple[tuple[str, tuple[MetadataScalar, ...]], ...]
    """Other keys, each with the values under which this one is not read."""


class Harmless(Enum):
    """Why a key need not be looked at."""

    CHECKED_BY_TENSORS = "checked_by_tensors"
    NEVER_MATH = "never_math"


@dataclass(frozen=True, slots=True)
class AbsentKey:
    """A key that a checkpoint's metadata could have and leave out, and what it then stands for."""

    keys: tuple[str, ...]
    """As the metadata would have it; all of them mean the same."""
    value: MetadataScalar
    model: str | None
    """The model_type for which it is so; None: for all GGUFs."""


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
    word_groups: tuple[tuple[str, ...], ...]
    """Words that mean the same."""
    key_groups: tuple[tuple[str, ...], ...]
    """Keys that mean the same."""
    left_out: Mapping[str, Mapping[str, MetadataScalar]]
    """model_type → key → value."""
    left_out_of_gguf: Mapping[str, MetadataScalar]


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
        word_groups=tuple(tuple(group.split()) for group in raw["same_words"]),
        key_groups=tuple(tuple(group.split()) for group in raw["same_keys"]),
        left_out=raw["left_out"],
        left_out_of_gguf=raw["left_out_of_gguf"],
    )


def _rows(entry: Any) -> Iterator[MathKey]:
    """A row for each of an entry's keys, parted by blanks."""
    unless = tuple((key, tuple(values)) for key, values in entry.get("unless", {}).items())
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


def same_word(word: str, other: str) -> bool:
    """Whether two words of metadata mean the same, as `silu` and `swish`."""
    return word == other or any(word in group and other in group for group in metadata_keys().word_groups)


def left_out(metadata: Mapping[str, object]) -> Iterator[AbsentKey]:
    """What metadata leave out, for the models that they name, at the top and nested."""
    keys = metadata_keys()
    architecture = metadata.get("general.architecture")
    if isinstance(architecture, str):
        for key, value in keys.left_out_of_gguf.items():
            if (whole := key.replace("{arch}", architecture)) not in metadata:
                yield AbsentKey((whole,), value, None)
        return
    for start in ("", *keys.nested):
        model = metadata.get(f"{start}model_type")
        if not isinstance(model, str):
            continue
        for key, value in keys.left_out.get(model, {}).items():
            names = next((group for group in keys.key_groups if key in group), (key,))
            if not any(start + name in metadata for name in names):
                yield AbsentKey((start + key, *(start + name for name in names if name != key)), value, model)
