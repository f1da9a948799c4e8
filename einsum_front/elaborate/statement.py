"""A statement to its meaning where it is elaborated: names resolved, sums written out, indices safe, the target's as axes and numbers.

In: a statement and the names in scope. Out: a ResolvedStatement, made once for each different meaning that the scope gives the statement:
iterations of a repeat that agree in numbers and shapes share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Name, Num, walk
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.elaborate.implicit_sums import with_sums
from einpage.einsum_front.elaborate.resolve import Symbol, SymbolTable, resolve
from einpage.einsum_front.elaborate.safe_indices import refuse_unsafe_indices, with_safe_indices
from einpage.einsum_front.elaborate.state_writes import RowWrite, after_write, row_write
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.sizes import refuse_beyond_fp32
from einpage.einsum_front.spec.source import SourceFile

ROWS = "(rows)"
"""In a state after a write, the value that is written."""


@dataclass(frozen=True, slots=True)
class ResolvedStatement:
    """`target = expr`; loads still have the spec's names."""

    target: tuple[Expr, ...]
    """An `Axis` or a `Num` per dimension; of a write of one row into a state, without the dimension that rows are counted along."""
    expr: Expr
    reads: tuple[str, ...]
    """The names of the values it reads."""
    write: RowWrite | None = None
    """For a state of which it writes rows: which."""


class StatementResolver:
    """Resolves statements in `table` as it is at the time, remembering what it found."""

    def __init__(self, table: SymbolTable, source: SourceFile, along_by_state: Mapping[str, Letter]) -> None:
        self._table = table
        self._source = source
        self._along_by_state = along_by_state
        self._names_by_statement: dict[int, dict[str, Span]] = {}
        self._resolved_by_key: dict[tuple[object, ...], ResolvedStatement] = {}
        self._after_by_key: dict[tuple[object, ...], Expr] = {}

    def names(self, statement: Statement) -> dict[str, Span]:
        """Every name the statement uses, and where first."""
        if id(statement) not in self._names_by_statement:
            names: dict[str, Span] = {statement.name: statement.span} if statement.adds else {}
            for node in (node for e in (statement.expr, *statement.indices) for node in walk(e)):
                if isinstance(node, Name | Load):
                    names.setdefault(node.word if isinstance(node, Name) else node.name, node.span)
            self._names_by_statement[id(statement)] = names
        return self._names_by_statement[id(statement)]

    def resolved(self, statement: Statement) -> ResolvedStatement:
        """The statement's meaning in the scope as it is now. Raises SpecError."""
        numbers, symbols = self._table.numbers, self._table.symbols
        meanings = tuple(
            (name, repr(numbers.get(name)), (symbol.shape, symbol.integers) if (symbol := symbols.get(name)) else None)
            for name in self.names(statement)
        )
        key = (id(statement), meanings)
        if key not in self._resolved_by_key:
            self._resolved_by_key[key] = self._resolve(statement)
        return self._resolved_by_key[key]

    def _resolve(self, statement: Statement) -> ResolvedStatement:
        target, write = self._target(statement)
        letters = tuple(i.letter for i in target if isinstance(i, Axis))
        written = statement.expr
        if statement.adds:
            written = Binary("+", Load(statement.name, statement.indices, statement.span), written, statement.span)
        found = resolve(written, self._table, self._source)
        refuse_beyond_fp32(found, self._source)
        refuse_unsafe_indices(found, self._table, self._source)
        expr = with_safe_indices(with_sums(found, letters, self._source), self._table, self._source)
        reads = [n.name for e in (expr, *([] if write is None else [write.start])) for n in walk(e) if isinstance(n, Load)]
        return ResolvedStatement(target, expr, tuple(dict.fromkeys(reads)), write)

    def after_write(self, statement: Statement, write: RowWrite, shape: tuple[int, ...]) -> Expr:
        """The state after a write of rows of `shape`, which are called ROWS in it; the state has the spec's name. `write` is that of what
        the statement resolves to."""
        key = (id(statement), id(write), shape)  # what was resolved is kept, and so is `write`
        if key not in self._after_by_key:
            self._after_by_key[key] = self._after_write(statement, write, shape)
        return self._after_by_key[key]

    def _after_write(self, statement: Statement, write: RowWrite, shape: tuple[int, ...]) -> Expr:
        state = self._table.symbols[statement.name]
        letters = tuple(map(Letter, state.dims))
        before = Load(statement.name, tuple(Axis(letter) for letter in letters), statement.span)
        table = replace(self._table, symbols={**self._table.symbols, ROWS: Symbol(ROWS, "value", shape, tuple(map(str, shape)))})
        indices = tuple(resolve(i, self._table, self._source) for i in statement.indices)
        return with_safe_indices(after_write(write, indices, letters, ROWS, before), table, self._source)

    def _target(self, statement: Statement) -> tuple[tuple[Expr, ...], RowWrite | None]:
        """The target's indices as axes and numbers, and which rows of a state it writes. Raises SpecError."""
        target = tuple(resolve(i, self._table, self._source) for i in statement.indices)
        written = statement.indices
        state = self._table.symbols.get(statement.name)
        write = None
        if state is not None and state.what == "state":
            along = self._along_by_state.get(statement.name)
            write = row_write(statement, target, state, along, self._table, self._source)
            if write is not None:
                counted = () if write.letter is None else (Axis(write.letter, statement.indices[write.dim].span),)
                target = (*target[: write.dim], *counted, *target[write.dim + 1 :])
                written = (*written[: write.dim], *written[write.dim : write.dim + len(counted)], *written[write.dim + 1 :])
        self._check_target(statement, target, written)
        return target, write

    def _check_target(self, statement: Statement, target: tuple[Expr, ...], indices: tuple[Expr, ...]) -> None:
        letters: list[Letter] = []
        for written, index in zip(indices, target, strict=True):
            if isinstance(index, Axis):
                if index.letter in letters:
                    message, cure = f"`{index.letter}` stands twice on the target", "declare a second letter of this extent"
                    raise self._source.error(index.span, message, cure=cure)
                letters.append(index.letter)
            elif not isinstance(index, Num):
                message = f"arithmetic in an index of the target `{statement.name}`, which is no state"
                instead = "`y[s] = where(s >= 1, x[s-1], 0)` for `y[s+1] = x[s]`"
                cure = f"declare it under `state:`, or move the arithmetic to what is read: {instead}"
                raise self._source.error(written.span, message, expected="an axis letter or a whole number", cure=cure)
            elif not isinstance(index.value, int) or index.value < 0:
                raise self._source.error(written.span, f"the index {index.value} on a target", expected="a whole number from 0")
        if statement.adds and len(letters) < len(target):
            cure = "write partial definitions with `=`, as a new value"
            raise self._source.error(statement.span, "`+=` on a part of a value", expected="axis letters only", cure=cure)
