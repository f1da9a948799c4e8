"""A program: a spec after parsing, resolving and unrolling. What the fuser and the reference read.

Every value is defined once (static single assignment, SSA), every size is a number, every sum is written out as a `Reduce`, no `Name` is
left in any expression. Definitions are in a topological order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from einpage.einsum_front.algebra.expr import Letter, loads
from einpage.einsum_front.base.dtype import BlockFormat, DType
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.graph.job import Part


@dataclass(frozen=True, slots=True)
class Source:
    """One name that a checkpoint may use for a weight, and how its dimensions are made of the weight's axes."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    """Per checkpoint dimension, outermost first, which dimensions of the weight (by position) it is the product of:
    `(k g e z) m` for a weight with axes `(k g z e) m` is ((0, 1, 3, 2), (4,))."""
    plus: float = 0.0
    """Added to every element when it is read, in fp32: some formats store 1 + w where others store w."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """How a checkpoint stores a weight, where its rows are the weight's last dimensions."""

    format: BlockFormat
    dims: int
    """How many dimensions a row is."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A declared weight of one iteration (or, outside repeats, of the model)."""

    name: str
    """Unique: `wq@3` is the weight `wq` of iteration 3."""
    base: str
    """The word in the spec."""
    letters: tuple[Letter, ...]
    shape: tuple[int, ...]
    sources: tuple[Source, ...]
    """Tried in order."""
    fallback: str | None
    """Tied weights: the unique name of the weight to use where the checkpoint has none of the sources."""
    span: Span
    stored: StoredRows | None = None
    """How a checkpoint stores it, where a run is to keep it so; every op that reads it must be able to."""
    start: float | str | None = None
    """Where the checkpoint has none of the sources: the number that every element is, or `random`; None: it must have one."""
    dtype: DType | None = None
    """None: the run's dtype."""


class WeightsAs(Enum):
    """In which form weights wait and travel; the value is the word of `--weights-as`."""

    RUN = "run"
    """As numbers of the run's dtype, made when they are loaded."""
    STORED = "stored"
    """As the checkpoint stores them, where every use can unpack them."""
    QUANTISED = "auto"
    """As stored where several numbers share a scale; else as numbers of the run's dtype."""

    @staticmethod
    def of_recipe(word: object) -> WeightsAs:
        """What a plan file's recipe says. Raises KeyError for a word that is none."""
        found = next((form for form in WeightsAs if form.value == word), None)
        if found is None:
            raise KeyError("weights_as")
        return found

    def wants_stored(self, weight: Weight, dtype: DType) -> bool:
        """Whether `weight` is wanted as it is stored. What is stored in the run's dtype is that anyway."""
        if self is WeightsAs.RUN or weight.stored is None or weight.stored.format.value == dtype.value:
            return False
        return self is WeightsAs.STORED or weight.stored.format.is_quantised


@dataclass(frozen=True, slots=True)
class Input:
    """A declared input."""

    name: str
    letters: tuple[Letter, ...]
    shape: tuple[int, ...]
    dtype: DType | None
    """None: the run's dtype."""
    default: float | int | None
    span: Span
    range: tuple[int, int] | None = None
    """The least and the largest value that whole numbers may have here."""


@dataclass(frozen=True, slots=True)
class State:
    """A value that a run leaves to the next: what it is at the start is an input of its name, 0 before the first run."""

    name: str
    """Unique, as a weight's: `ck@3` is the state `ck` of iteration 3."""
    base: str
    letters: tuple[Letter, ...]
    shape: tuple[int, ...]
    along: int | None
    """The dimension along which rows are written; None: it is only written whole."""
    last: str
    """The value that carries it at the end."""
    first_row: int
    """Of the rows along that dimension, the first that may be written: those before it are at the end as at the start; 0 without one."""


@dataclass(frozen=True, slots=True)
class UnchangedRows:
    """The first rows of a value, which are those of another of its shape: no task writes them."""

    value: str
    """The other."""
    dim: int
    """The dimension that rows are counted along."""
    rows: int


@dataclass(frozen=True, slots=True)
class Definition:
    """One SSA value and the statements that define it."""

    name: str
    """Unique: `x.4` is the fifth value called `x`."""
    base: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    """Together they cover the shape. `+=` has become `name = previous + ...`."""
    loop: tuple[int, ...]
    """The repeat iterations it was written in, outermost first; () outside any repeat."""
    span: Span
    unchanged: UnchangedRows | None = None
    """Of a state after rows of it were written: those before them."""
    dtype: DType | None = None
    """None: the run's dtype."""


@dataclass(frozen=True, slots=True)
class Output:
    """A declared output."""

    name: str
    value: str
    """The SSA value (or weight, or input) that carries it."""
    letters: tuple[Letter, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """A spec at given sizes."""

    name: str
    path: str
    """The spec's file, for messages."""
    sizes: Mapping[str, int]
    scalars: Mapping[str, float]
    extents: Mapping[Letter, int]
    inputs: tuple[Input, ...]
    weights: tuple[Weight, ...]
    definitions: tuple[Definition, ...]
    outputs: tuple[Output, ...]
    ignore: tuple[str, ...]
    """Globs over checkpoint names that may be unused."""
    lists: Mapping[str, tuple[int | float, ...]] = field(default_factory=dict)
    """Numbers by the iteration of a repeat."""
    states: tuple[State, ...] = ()

    def with_states_as_outputs(self) -> Program:
        """The program that also puts out every state as it is at the end, under its own name."""
        carried = tuple(Output(state.name, state.last, state.letters, state.shape) for state in self.states)
        return replace(self, outputs=(*self.outputs, *carried))


def needed(program: Program, values: Iterable[str]) -> frozenset[str]:
    """`values` and everything they are computed from, by name."""
    found = set(values)
    for definition in reversed(program.definitions):
        if definition.name in found:
            found.update(load.name for part in definition.parts for load in loads(part.expr))
    return frozenset(found)


def fresh_name(word: str, used: set[str]) -> str:
    """`word`, or else the first of `word_2`, `word_3`, … that is not in `used`, to which it is added."""
    found, again = word, 2
    while found in used:
        found, again = f"{word}_{again}", again + 1
    used.add(found)
    return found
