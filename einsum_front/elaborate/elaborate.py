"""A Document to a Program: sizes become numbers, repeats unroll, every value is set once, every sum is written out.

In: a Document and settings that override its sizes and scalars. Out: a Program. A statement is resolved once for each
different meaning it has (the repeat variables and the shapes it sees), not once an iteration: the other iterations only
rename what it reads.

    x[s] = …                          x.0
    repeat: 2                         h.0, x.1 = x.0 + …      names first set inside are local to an iteration,
      - h[s] = … x[s] …               h.1, x.2 = x.1 + …      names set before are reassigned
      - x[s] += … h[s] …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Load, Num, loads, rebuild
from einpage.einsum_front.base.collection import garbage_collection_paused
from einpage.einsum_front.base.errors import Span, SpecError, listing
from einpage.einsum_front.elaborate.declare import Declarations, bind_output
from einpage.einsum_front.elaborate.partial_definitions import PartialDefinitions
from einpage.einsum_front.elaborate.resolve import Symbol, SymbolTable
from einpage.einsum_front.elaborate.state_writes import RowWrite, States
from einpage.einsum_front.elaborate.statement import ROWS, StatementResolver
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Output, Program, UnchangedRows, Weight
from einpage.einsum_front.spec.document import BodyItem, Document, OutputEntry, Repeat
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.sizes import Evaluator, Setting, lists_of, override, whole, without_lists

MOST_STATEMENTS = 20_000
"""Statements after unrolling: 48 layers of 128 experts have 19,400, and to fuse and split twice as many lasts more than ten seconds."""


@garbage_collection_paused()
def elaborate(document: Document, settings: Mapping[str, Setting] = {}, most_iterations: int | None = None) -> Program:
    """The program of a spec at its own sizes, or at those of `settings`. Raises SpecError, UsageError for an unknown setting.

    With `most_iterations`, repeats that stand in no other end after so many; what follows them reads what these leave.
    """
    return _Elaborator(document, settings, most_iterations).program()


class _Elaborator:
    """The symbol table and the values defined so far, while statements are elaborated in order."""

    def __init__(self, document: Document, settings: Mapping[str, Setting], most_iterations: int | None) -> None:
        self._document, self._most_iterations = document, most_iterations
        self._source = document.source
        entry_by_name = override((*document.sizes, *document.scalars), without_lists(document.lists, settings))
        evaluator = Evaluator(entry_by_name)
        self._sizes = {e.name: int(evaluator.value(e.name)) for e in document.sizes}
        self._scalars = {e.name: evaluator.value(e.name) for e in document.scalars}
        self._numbers: dict[str, arithmetic.Number] = {**self._sizes, **self._scalars}
        self._lists = lists_of(document.lists, self._numbers, settings)
        axes = Evaluator({e.name: e for e in document.axes}, self._numbers, sizes=entry_by_name)
        self._extents = {Letter(e.name): int(axes.value(e.name)) for e in document.axes}
        self._symbols: dict[str, Symbol] = {}
        self._declarations = Declarations(document, self._numbers, self._lists, self._extents, self._symbols)
        self._pending: dict[str, PartialDefinitions] = {}
        self._states = States(self._source)
        self._definitions: list[tuple[int, Definition]] = []
        self._versions: dict[str, int] = {}
        self._read_by_word: dict[str, Span] = {}
        self._position = 0
        self._place_by_target = {s.name: s.span for s in reversed(tuple(_statements(document.body)))}
        self._local_states = {s.name for r in _repeats(document.body) for s in r.states}
        self._place_by_local = {name: r.span for r in _repeats(document.body) for name, _ in _own_names(r)}
        table = SymbolTable(self._numbers, self._extents, self._symbols, self._why_unset, self._lists)
        self._resolver = StatementResolver(table, self._source, self._states.along)

    def program(self) -> Program:
        """The program of the document. Raises SpecError."""
        document = self._document
        inputs = self._declarations.inputs()
        weights = list(self._declarations.weights(document.weights, ()))
        self._states.start(document.states, self._declarations.states(document.states, ()))
        weights.extend(self._body_of(document.body, ()))
        for name in tuple(self._pending):
            self._close(name, None)
        self._states.end(document.states, self._symbols)
        return Program(
            name=document.name,
            path=document.path,
            sizes=self._sizes,
            scalars=self._scalars,
            extents=self._extents,
            inputs=(*inputs, *self._states.at_start),
            weights=tuple(weights),
            definitions=tuple(self._states.with_unchanged(d) for _, d in sorted(self._definitions, key=lambda pair: pair[0])),
            outputs=tuple(self._output(entry) for entry in document.outputs),
            ignore=document.ignore,
            lists=self._lists,
            states=tuple(self._states.ended),
        )

    def _body_of(self, body: tuple[BodyItem, ...], loop: tuple[int, ...]) -> Iterator[Weight]:
        """Elaborate the statements in order; yields the weights that repeats declare."""
        for item in body:
            if isinstance(item, Repeat):
                yield from self._repeat(item, loop)
            else:
                self._statement(item, loop)

    def _repeat(self, repeat: Repeat, loop: tuple[int, ...]) -> Iterator[Weight]:
        count = self._count_of(repeat)
        if self._position + count * (1 + sum(isinstance(item, Statement) for item in repeat.body)) > MOST_STATEMENTS:
            raise self._too_many(repeat.count.span)
        if self._most_iterations is not None and not loop:
            count = min(count, self._most_iterations)
        let = {e.name: e for e in repeat.let}
        own = _own_names(repeat)
        for n, (word, span) in enumerate(own):
            self._declarations.refuse_used_name(word, span)
            if any(word == before for before, _ in own[:n]):
                raise self._source.error(span, f"`{word}` already names something in this repeat", cure="choose another name")
        outer = frozenset((*self._symbols, *self._pending))
        for i in range(count):
            self._count(repeat.span)
            if repeat.variable is not None:
                self._numbers[repeat.variable] = i
            evaluator = Evaluator(let, self._numbers, self._lists)
            self._numbers.update({name: evaluator.value(name) for name in let})
            yield from self._declarations.weights(repeat.weights, (*loop, i))
            self._states.start(repeat.states, self._declarations.states(repeat.states, (*loop, i)))
            yield from self._body_of(repeat.body, (*loop, i))
            for word in [w for w in self._pending if w not in outer]:
                self._close(word, None)
            self._states.end(repeat.states, self._symbols)
            for word in [w for w in self._symbols if w not in outer]:
                del self._symbols[word]
            for word, _ in own:
                self._numbers.pop(word, None)

    def _count_of(self, repeat: Repeat) -> int:
        number = Evaluator({}, self._numbers, self._lists).number(repeat.count.expr, self._source)
        return whole(number, "the number of iterations", repeat.count, least=0)

    def _statement(self, statement: Statement, loop: tuple[int, ...]) -> None:
        self._count(statement.span)
        self._refuse_target(statement, loop)
        names = self._resolver.names(statement)
        for word, span in names.items():
            if word in self._pending:
                self._close(word, span)
        self._states.read(statement, names)
        resolved = self._resolver.resolved(statement)
        unique_by_word = {word: self._symbols[word].unique for word in resolved.reads}
        assignment = Part(resolved.target, _renamed(resolved.expr, unique_by_word))
        symbol = self._symbols.get(statement.name)
        if symbol is not None and symbol.what == "state":
            self._write_state(statement, assignment, resolved.write, loop)
        elif all(isinstance(i, Axis) for i in resolved.target):
            self._whole_value(statement, assignment, loop)
        else:
            self._partial_value(statement, assignment, loop)

    def _write_state(self, statement: Statement, assignment: Part, write: RowWrite | None, loop: tuple[int, ...]) -> None:
        """The state that the statement writes: all of it, or rows, which are a value of their own, or one that stands already."""
        word, state = statement.name, self._symbols[statement.name]
        letters = tuple(i.letter for i in assignment.target if isinstance(i, Axis))
        shape = tuple(self._extents[letter] for letter in letters)
        is_all = write is None or (write.is_whole and write.letter is not None)
        written = self._copied_value(assignment, to_carry=is_all) or self._define(statement, shape, assignment, loop)
        if write is None or is_all:
            unique = written
        else:
            after = self._resolver.after_write(statement, write, shape)
            words = {word: state.unique, ROWS: written}
            words |= {name: self._symbols[name].unique for name in (load.name for load in loads(write.start))}
            target = tuple(Axis(Letter(letter)) for letter in state.dims)
            unique = self._define(statement, state.shape, Part(target, _renamed(after, words)), loop)
            self._states.rows_written(word, unique, UnchangedRows(state.unique, write.dim, write.least))
        self._symbols[word] = replace(state, unique=unique)
        self._states.written(word, 0 if write is None else write.least, unique)

    def _copied_value(self, assignment: Part, *, to_carry: bool) -> str | None:
        """The value that `assignment` would copy, where there need be no copy.

        What carries a state is a value of its own: no input, no weight, and nothing that carries another one.
        """
        copied = assignment.expr
        if not (isinstance(copied, Load) and copied.indices == assignment.target):
            return None
        is_value = any(s.unique == copied.name and s.what == "value" for s in self._symbols.values())
        return copied.name if is_value and not (to_carry and self._states.carries(copied.name)) else None

    def _define(self, statement: Statement, shape: tuple[int, ...], assignment: Part, loop: tuple[int, ...]) -> str:
        """A new value of the statement's name; its unique name."""
        unique = self._new_name(statement.name)
        self._definitions.append((self._position, Definition(unique, statement.name, shape, (assignment,), loop, statement.span)))
        return unique

    def _partial_value(self, statement: Statement, assignment: Part, loop: tuple[int, ...]) -> None:
        pending = self._pending.get(statement.name)
        if pending is None:
            read = self._read_by_word.get(statement.name)
            pending = PartialDefinitions(statement.name, self._new_name(statement.name), loop, statement.span, read)
            self._pending[statement.name] = pending
        pending.add(assignment, statement.span, self._extents, self._source)
        pending.position = self._position

    def _count(self, span: Span) -> None:
        """One more statement or iteration. Raises SpecError where there are too many."""
        self._position += 1
        if self._position > MOST_STATEMENTS:
            raise self._too_many(span)

    def _too_many(self, span: Span) -> SpecError:
        return self._source.error(span, f"the repeats unroll to more than {MOST_STATEMENTS:,} statements", cure="repeat less often")

    def _whole_value(self, statement: Statement, assignment: Part, loop: tuple[int, ...]) -> None:
        if statement.name in self._pending:
            self._close(statement.name, None)
        letters = tuple(i.letter for i in assignment.target if isinstance(i, Axis))
        shape = tuple(self._extents[letter] for letter in letters)
        self._symbols[statement.name] = Symbol(self._define(statement, shape, assignment, loop), "value", shape, letters)

    def _close(self, word: str, reader: Span | None) -> None:
        """The partial definitions of `word` are complete: from here on it is a value like any other. Raises SpecError."""
        pending = self._pending.pop(word)
        if reader is not None:
            self._read_by_word[word] = reader
        shape = pending.shape(self._extents, self._source, reader)
        definition = Definition(pending.unique, word, shape, tuple(pending.partials), pending.loop, pending.span)
        self._definitions.append((pending.position, definition))
        columns = zip(*(p.target for p in pending.partials), strict=True)
        letters = [next((str(i.letter) for i in column if isinstance(i, Axis)), None) for column in columns]
        dims = tuple(letter or str(extent) for letter, extent in zip(letters, shape, strict=True))
        self._symbols[word] = Symbol(pending.unique, "value", shape, dims)

    def _refuse_target(self, statement: Statement, loop: tuple[int, ...]) -> None:
        word = statement.name
        symbol = self._symbols.get(word)
        if (
            word in self._numbers
            or word in self._extents
            or word in self._lists
            or (symbol is not None and symbol.what not in ("value", "state"))
        ):
            self._declarations.refuse_used_name(word, statement.span)
        if statement.adds and symbol is None and word not in self._pending:
            exists = listing(w for w, k in self._symbols.items() if k.what == "value")
            cure = "set it with `=` first" + (", before the repeat" if loop else "")
            raise self._source.error(statement.span, f"`{word}` is added to before it is set", exists=exists, cure=cure)

    def _new_name(self, base: str) -> str:
        number = self._versions.get(base, 0)
        self._versions[base] = number + 1
        return f"{base}.{number}"

    def _why_unset(self, word: str) -> str | None:
        """Why `word` names no value here, where a statement of the spec sets it."""
        place, local = self._place_by_target.get(word), self._place_by_local.get(word)
        if local is not None and (place is None or word in self._local_states):
            return f"it belongs to the repeat of line {local.line}, and means something only inside it"
        if place is None:
            return None
        if word in self._versions:
            return f"it is set in line {place.line}, inside a repeat: such names are local to an iteration; set it before the repeat too"
        return f"it is first set in line {place.line}; a statement reads only what stands before it"

    def _output(self, entry: OutputEntry) -> Output:
        letters = self._declarations.letters(entry.axes)
        return bind_output(entry, letters, self._extents, self._symbols, self._why_unset, self._source)


def _renamed(e: Expr, unique_by_word: Mapping[str, str]) -> Expr:
    """`e` with its loads renamed."""
    match e:
        case Num() | Axis():
            return e
        case Load():
            indices = e.indices
            if any(not isinstance(i, Num | Axis) for i in indices):
                indices = tuple(_renamed(i, unique_by_word) for i in indices)
            return Load(unique_by_word[e.name], indices, e.span)
        case _:
            return rebuild(e, lambda child: _renamed(child, unique_by_word))


def _statements(body: tuple[BodyItem, ...]) -> Iterator[Statement]:
    for item in body:
        if isinstance(item, Repeat):
            yield from _statements(item.body)
        else:
            yield item


def _repeats(body: tuple[BodyItem, ...]) -> Iterator[Repeat]:
    for item in body:
        if isinstance(item, Repeat):
            yield item
            yield from _repeats(item.body)


def _own_names(repeat: Repeat) -> tuple[tuple[str, Span], ...]:
    """What a repeat declares for its body alone, and where: its variable, its numbers, its weights, its states."""
    return (
        *([(repeat.variable, repeat.span)] if repeat.variable else []),
        *((e.name, e.span) for e in repeat.let),
        *((w.name, w.span) for w in repeat.weights),
        *((s.name, s.span) for s in repeat.states),
    )
