"""A spec as written: every expression parsed, no size known yet, nothing unrolled. Each entry keeps the span of its key or text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from einpage.einsum_front.algebra.expr import Expr, Letter, Name
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.spec.parse import AxesGroup, Statement
from einpage.einsum_front.spec.sizes import Entry, ListEntry
from einpage.einsum_front.spec.source import Snippet, SourceFile


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes as written: one group per dimension of the checkpoint."""

    groups: tuple[AxesGroup, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class SourceName:
    """A name in a checkpoint: text and, in braces, expressions over repeat variables."""

    parts: tuple[str | Expr, ...]
    axes: Axes | None
    """None: the weight's own."""
    plus: float
    """Added to every element."""
    span: Span


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of a checkpoint's metadata that gives a size, a scalar or a list."""

    key: str
    values: tuple[tuple[str, float], ...]
    """The number that each value stands for; empty where the values are numbers themselves."""
    span: Span


RANDOM = "random"
"""What a weight may start as."""
UNSCALED = "none"
"""What `scale:` may be beside numbers."""


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """A weight as declared."""

    name: str
    axes: Axes
    sources: tuple[SourceName, ...]
    """`from:`, in the order to try."""
    fallback: Name | None
    """`or:`, the weight to use where the checkpoint has none of the sources."""
    span: Span
    start: float | str | None = None
    """`start:`, where the checkpoint has none of the sources: the number that every element is, or RANDOM."""


@dataclass(frozen=True, slots=True)
class InputEntry:
    """An input as declared."""

    name: str
    axes: Axes
    dtype: DType | None
    """None: the run's dtype."""
    default: Entry | None
    range: tuple[Entry, Entry] | None
    """The least and the largest value it may have."""
    span: Span


@dataclass(frozen=True, slots=True)
class OutputEntry:
    """An output as declared."""

    name: str
    axes: Axes
    span: Span


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A state as declared."""

    name: str
    axes: Axes
    along: tuple[Letter, Span] | None
    """The axis along which rows are written; None: it is only written whole."""
    span: Span


@dataclass(frozen=True, slots=True)
class Repeat:
    """A `repeat:` and its body, not unrolled."""

    count: Entry
    variable: str | None
    """`as:`, the number of the iteration."""
    let: tuple[Entry, ...]
    weights: tuple[WeightEntry, ...]
    states: tuple[StateEntry, ...]
    body: tuple[BodyItem, ...]
    span: Span


BodyItem: TypeAlias = "Statement | Repeat"


@dataclass(frozen=True, slots=True)
class TrainEntry:
    """`train:` as written."""

    loss: Name
    """The word that names the loss."""
    inputs: tuple[InputEntry, ...]
    body: tuple[BodyItem, ...]
    weights: tuple[Snippet, ...]
    """Globs; none: every weight that the loss depends on."""
    optimiser: Snippet | None
    numbers: tuple[Entry, ...]
    states: tuple[Snippet, ...]
    update: tuple[Statement, ...]
    span: Span
    scaled: bool | None = None
    """Whether the loss is scaled; None: in fp16 alone."""
    scale: tuple[Entry, ...] = ()
    """The numbers of the loss scale."""


@dataclass(frozen=True, slots=True)
class Document:
    """A spec; fields are its keys."""

    name: str
    source: SourceFile
    sizes: tuple[Entry, ...]
    scalars: tuple[Entry, ...]
    axes: tuple[Entry, ...]
    lists: tuple[ListEntry, ...]
    config: Mapping[str, tuple[ConfigKey, ...]]
    """Size, scalar or list → the keys of a checkpoint's metadata that may hold it, in the order to try."""
    assume: Mapping[str, tuple[Snippet, ...]]
    """A key of a checkpoint's metadata → the values under which the spec is right: words, or numbers over sizes and scalars."""
    inputs: tuple[InputEntry, ...]
    weights: tuple[WeightEntry, ...]
    states: tuple[StateEntry, ...]
    body: tuple[BodyItem, ...]
    outputs: tuple[OutputEntry, ...]
    ignore: tuple[str, ...]
    train: TrainEntry | None = None

    @property
    def reads_weights(self) -> bool:
        """Whether a weight is declared anywhere, repeats included."""
        return bool(self.weights) or any(_has_weights(item) for item in self.body)

    @property
    def path(self) -> str:
        """The file, for messages."""
        return self.source.path


def states_of(document: Document) -> Iterator[StateEntry]:
    """Every state that is declared anywhere, repeats included."""
    yield from document.states
    for item in document.body:
        yield from _states_below(item)


def _states_below(item: BodyItem) -> Iterator[StateEntry]:
    if isinstance(item, Repeat):
        yield from item.states
        for below in item.body:
            yield from _states_below(below)


def statements_of(body: Sequence[BodyItem]) -> Iterator[Statement]:
    """Every statement of `body`, repeats included."""
    for item in body:
        if isinstance(item, Repeat):
            yield from statements_of(item.body)
        else:
            yield item


def _has_weights(item: BodyItem) -> bool:
    return isinstance(item, Repeat) and (bool(item.weights) or any(map(_has_weights, item.body)))
