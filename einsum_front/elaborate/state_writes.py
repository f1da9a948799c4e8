"""Writes of rows into a state: `k[b, at[b]+s, d] = …` sets rows `at[b]` to `at[b] + seq - 1` and leaves the others.

In: a statement whose target is a state, its indices resolved. Out: a RowWrite, and the state after it as one expression over all its rows:

    k'[b,t,d] = where(t >= at[b] and t < at[b] + seq, rows[b, t - at[b], d], k[b,t,d])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, Unary, free_letters, loads, substitute, text
from einpage.einsum_front.algebra.intervals import interval
from einpage.einsum_front.base.errors import Span, SpecError, listing
from einpage.einsum_front.elaborate.resolve import Symbol, SymbolTable
from einpage.einsum_front.graph.program import Definition, Input, State, UnchangedRows
from einpage.einsum_front.spec.document import StateEntry
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.source import SourceFile


class States:
    """The states declared so far: which are in scope, whether they were written, and how they ended."""

    def __init__(self, source: SourceFile) -> None:
        self._source = source
        self.along: dict[str, Letter] = {}
        """Of those in scope whose rows may be written."""
        self.at_start: list[Input] = []
        self.ended: list[State] = []
        self._started: dict[str, Input] = {}
        self._unchanged: dict[str, UnchangedRows] = {}
        """By value, after a write of rows: as if no other write came before those."""
        self._after_rows: dict[str, list[str]] = {}
        """By state in scope, its values after writes of rows."""
        self._read: set[str] = set()
        self._carriers: dict[str, str] = {}
        """By state, the value that carries it so far."""
        self._carrying: set[str] = set()
        """The values of `_carriers`; each carries one state."""
        self._first_row: dict[str, int] = {}
        """The first row that any write so far may have written; no entry before one."""

    def start(self, entries: Sequence[StateEntry], inputs: Sequence[Input]) -> None:
        """They are in scope: `inputs` are what they hold at the start."""
        self.at_start += inputs
        for entry, found in zip(entries, inputs, strict=True):
            self._started[entry.name] = found
            if entry.along is not None:
                self.along[entry.name] = entry.along[0]

    def carries(self, value: str) -> bool:
        """Whether `value` carries a state already: none carries two."""
        return value in self._carrying

    def rows_written(self, word: str, value: str, unchanged: UnchangedRows) -> None:
        """A statement made `value`, the state with other rows."""
        self._unchanged[value] = unchanged
        self._after_rows.setdefault(word, []).append(value)

    def with_unchanged(self, definition: Definition) -> Definition:
        """`definition`, and which of its rows no write of its state touches, once all of them are known."""
        unchanged = self._unchanged.get(definition.name)
        return definition if unchanged is None or not unchanged.rows else replace(definition, unchanged=unchanged)

    def written(self, word: str, first_row: int, value: str) -> None:
        """A statement wrote rows from `first_row` on, or all of it; `value` carries it since."""
        self._first_row[word] = min(first_row, self._first_row.get(word, first_row))
        state = self._started[word].name
        self._carrying.discard(self._carriers.get(state, ""))
        self._carrying.add(value)
        self._carriers[state] = value

    def read(self, statement: Statement, place_by_name: Mapping[str, Span]) -> None:
        """A statement uses these names, there. Raises SpecError where one is a state whose rows no statement before it writes."""
        for word, span in place_by_name.items():
            if word in self.along and word not in self._first_row:
                expected = "its rows are written first; a condition hides those that are not to be seen"
                cure = f"move `{word}[…] = …` before this line"
                if word == statement.name:
                    cure = "a statement that first writes rows cannot read them; a state without `along:` may be read before it is set"
                raise self._source.error(span, f"the state `{word}` is read before it is written", expected=expected, cure=cure)
        self._read |= place_by_name.keys() & self._started.keys()

    def end(self, entries: Sequence[StateEntry], symbols: Mapping[str, Symbol]) -> None:
        """They go out of scope. Raises SpecError for one that nothing has written, or read."""
        for entry in entries:
            if entry.name not in self._first_row:
                cure = f"set it, as in `{entry.name}[{', '.join(symbols[entry.name].dims)}] = …`"
                raise self._source.error(entry.span, f"no statement sets the state `{entry.name}`", cure=cure)
            if entry.name not in self._read:
                cure = "leave it out, or read it"
                raise self._source.error(entry.span, f"no statement reads the state `{entry.name}`", cure=cure)
            self._read.remove(entry.name)
            started, letter = self._started.pop(entry.name), self.along.pop(entry.name, None)
            along = None if letter is None else started.letters.index(letter)
            for value in self._after_rows.pop(entry.name, ()):
                self._unchanged[value] = replace(self._unchanged[value], rows=self._first_row[entry.name])
            last, first_row = symbols[entry.name].unique, self._first_row.pop(entry.name)
            self.ended.append(State(started.name, entry.name, started.letters, started.shape, along, last, first_row))


@dataclass(frozen=True, slots=True)
class RowWrite:
    """Which rows of a state a statement writes."""

    dim: int
    """The dimension of the state that rows are counted along."""
    start: Expr
    """The first row, over the target's other letters and whole-number inputs."""
    letter: Letter | None
    """The letter of the target that counts them; None: it is one row."""
    rows: int
    extent: int
    """Rows of the state."""
    least: int
    """The least that `start` can be."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the state is left as it was: `start` is 0 then."""
        return self.rows == self.extent


def row_write(
    statement: Statement, target: Sequence[Expr], state: Symbol, along: Letter | None, table: SymbolTable, source: SourceFile
) -> RowWrite | None:
    """The rows that `statement` writes, whose indices resolve to `target`; None where these are letters alone, over all of the state.

    Raises SpecError.
    """
    word = statement.name
    shown = f"`{word}[{', '.join(state.dims)}]`" if state.dims else f"`{word}`"
    if len(target) != len(state.shape):
        message = f"the state `{word}` has {len(state.shape)} dimension(s), found {len(target)} indices"
        raise source.error(statement.span, message, expected=shown)
    partial: list[int] = []
    for dim, (written, index, extent) in enumerate(zip(statement.indices, target, state.shape, strict=True)):
        if isinstance(index, Axis) and table.extents[index.letter] == extent:
            continue
        if along is None or state.dims[dim] != along:
            rows = f"rows along `{along}`, or all of it" if along is not None else "all of it"
            place = f"dimension {dim + 1} (`{state.dims[dim]}`) of the state `{word}`"
            message, cure = f"`{text(index)}` is not all of {place}", f"for rows along an axis, declare it: `along: {state.dims[dim]}`"
            if isinstance(index, Axis):
                message = f"`{index.letter}` has extent {table.extents[index.letter]}, but stands in {place}, which has extent {extent}"
                cure = f"use a letter of extent {extent}"
            elif along is not None:
                cure = f"only `{along}` may have another index than a letter; set a value part by part, and from it the state, whole"
            raise source.error(written.span, message, expected=f"{rows}: {shown}", cure=cure)
        partial.append(dim)
    if not partial:
        return None
    (dim,) = partial
    if statement.adds:
        cure = f"write the sum out: `{word}[…] = {word}[…] + …`"
        raise source.error(statement.span, f"`+=` on rows of the state `{word}`", expected="`=`", cure=cure)
    return _rows(statement, target, dim, state, table, source)


def _rows(statement: Statement, target: Sequence[Expr], dim: int, state: Symbol, table: SymbolTable, source: SourceFile) -> RowWrite:
    index, span, extent = target[dim], statement.indices[dim].span, state.shape[dim]
    terms = list(_terms(index))
    others = {i.letter for n, i in enumerate(target) if n != dim and isinstance(i, Axis)}
    counting = [term.letter for term in terms if isinstance(term, Axis) and term.letter not in others]
    letter = counting[0] if len(counting) == 1 else None
    rest = [term for term in terms if not (isinstance(term, Axis) and term.letter == letter)]
    start = _sum(rest)
    if len(counting) > 1 or (letter is not None and letter in free_letters(start)) or free_letters(start) - others:
        message = f"`{text(index)}` does not say which rows of the state `{statement.name}` are written"
        expected = "where the first of them stands, plus a letter that counts them: `at[b] + s`"
        unnamed = sorted(free_letters(start) - others - {letter})
        cure = f"`{unnamed[0]}` is no other index of this target: use one that is" if unnamed and letter is not None else None
        raise source.error(span, message, expected=expected, cure=cure)
    rows = 1 if letter is None else table.extents[letter]
    known = interval(start, {x: (0, n) for x, n in table.extents.items()}, table.integers)
    if known is None or known.low < 0 or known.high + rows > extent:
        raise _outside(statement, index, start, rows, dim, state, table, source)
    if known.low == known.high:
        start = Num(int(known.low), start.span)
    return RowWrite(dim, start, letter, rows, extent, int(known.low))


def _outside(
    statement: Statement, index: Expr, start: Expr, rows: int, dim: int, state: Symbol, table: SymbolTable, source: SourceFile
) -> SpecError:
    """Rows that may not be there."""
    extent, last = state.shape[dim], state.shape[dim] - rows
    known = interval(start, {x: (0, n) for x, n in table.extents.items()}, table.integers)
    values = "any values" if known is None or known.high - known.low > 2**62 else f"values {known.low:g} … {known.high + rows - 1:g}"
    place = f"outside dimension {dim + 1} (`{state.dims[dim]}`) of the state `{statement.name}`, which has extent {extent}"
    message = f"`{text(index)}` takes {values}, {place}"
    inputs = listing(dict.fromkeys(f"`{load.name}`" for load in loads(start)))
    cure = f"a `range:` of {inputs} that keeps `{text(start)}` within 0 … {last}" if inputs and last >= 0 else "fewer rows"
    return source.error(statement.indices[dim].span, message, expected=f"0 … {extent - 1}", cure=cure)


def after_write(write: RowWrite, indices: Sequence[Expr], letters: Sequence[Letter], rows: str, before: Load) -> Expr:
    """The state after `write`, over `letters`, those of its dimensions.

    `rows` is the value that holds what is written, over the letters of `indices`: the statement's target, whose letters may be others than
    the state's, or in another order. `before` is the state until then.
    """
    span, t = before.span, Axis(letters[write.dim], before.span)
    others = [(i, letter) for dim, (i, letter) in enumerate(zip(indices, letters, strict=True)) if dim != write.dim]
    own = {i.letter: letter for i, letter in others if isinstance(i, Axis)}
    start = substitute(write.start, lambda e: Axis(own[e.letter], e.span) if isinstance(e, Axis) else None)
    end = Num(int(start.value) + write.rows, span) if isinstance(start, Num) else Binary("+", start, Num(write.rows, span), span)
    inside = Binary("and", Binary(">=", t, start, span), Binary("<", t, end, span), span)
    shifted: dict[int, Expr] = {} if write.letter is None else {write.dim: Binary("-", t, start, span)}
    where = tuple(shifted.get(dim, Axis(x, span)) for dim, x in enumerate(letters) if dim in shifted or dim != write.dim)
    return Call("where", (inside, Load(rows, where, span), before), span)


def _terms(e: Expr) -> Iterator[Expr]:
    """What a sum adds; all of anything else."""
    match e:
        case Binary("+" | "-" as op, x, y):
            yield from _terms(x)
            yield from (term if op == "+" else Unary("-", term, term.span) for term in _terms(y))
        case _:
            yield e


def _sum(terms: Sequence[Expr]) -> Expr:
    def add(x: Expr, y: Expr) -> Expr:
        return Binary("-", x, y.x, y.span) if isinstance(y, Unary) else Binary("+", x, y, y.span)

    return reduce(add, terms) if terms else Num(0)
