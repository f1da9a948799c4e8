"""A statement to its meaning where it is elaborated: names resolved, sums written out, indices safe, the target's as axes and numbers.

In: a statement and the names in scope. Out: a ResolvedStatement, made once for each different meaning that the scope gives the statement:
iterations of a repeat that agree in numbers and shapes share it.
"""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Name, Num, walk
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.elaborate.implicit_sums import with_sums
from einpage.einsum_front.elaborate.resolve import SymbolTable, resolve
from einpage.einsum_front.elaborate.safe_indices import refuse_unsafe_indices, with_safe_indices
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.source import SourceFile


@dataclass(frozen=True, slots=True)
class ResolvedStatement:
    """`target = expr`; loads still have the spec's names."""

    target: tuple[Expr, ...]
    """An `Axis` or a `Num` per dimension."""
    expr: Expr
    reads: tuple[str, ...]
    """The names of the values it reads."""


class StatementResolver:
    """Resolves statements in `table` as it is at the time, remembering what it found."""

    def __init__(self, table: SymbolTable, source: SourceFile) -> None:
        self._table = table
        self._source = source
        self._names_by_statement: dict[int, dict[str, Span]] = {}
        self._resolved_by_key: dict[tuple[object, ...], ResolvedStatement] = {}

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
        target = self._target(statement)
        letters = tuple(i.letter for i in target if isinstance(i, Axis))
        written = statement.expr
        if statement.adds:
            written = Binary("+", Load(statement.name, statement.indices, statement.span), written, statement.span)
        found = resolve(written, self._table, self._source)
        refuse_unsafe_indices(found, self._table, self._source)
        expr = with_safe_indices(with_sums(found, letters, self._source), self._table, self._source)
        return ResolvedStatement(target, expr, tuple(dict.fromkeys(n.name for n in walk(expr) if isinstance(n, Load))))

    def _target(self, statement: Statement) -> tuple[Expr, ...]:
        """The target's indices as axes and numbers. Raises SpecError."""
        target = tuple(resolve(i, self._table, self._source) for i in statement.indices)
        letters: list[Letter] = []
        for written, index in zip(statement.indices, target, strict=True):
            if isinstance(index, Axis):
                if index.letter in letters:
                    message, cure = f"`{index.letter}` stands twice on the target", "declare a second letter of this extent"
                    raise self._source.error(index.span, message, cure=cure)
                letters.append(index.letter)
            elif not isinstance(index, Num):
                message = "arithmetic in a target's index is reserved and not yet implemented"
                cure = "set the whole value, and move the arithmetic to what is read: `y[s] = where(s >= 1, x[s-1], 0)` for `y[s+1] = x[s]`"
                raise self._source.error(written.span, message, expected="an axis letter or a whole number", cure=cure)
            elif not isinstance(index.value, int) or index.value < 0:
                raise self._source.error(written.span, f"the index {index.value} on a target", expected="a whole number from 0")
        if statement.adds and len(letters) < len(target):
            cure = "write partial definitions with `=`, as a new value"
            raise self._source.error(statement.span, "`+=` on a part of a value", expected="axis letters only", cure=cure)
        return target
