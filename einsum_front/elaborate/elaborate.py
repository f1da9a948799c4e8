"""A Document to a Program: sizes become numbers, repeats unroll, every value is set once, every sum is written out.

In: a Document and settings that override its sizes and scalars. Out: a Program. A statement is checked once for each
different meaning it has (the repeat variables and the shapes it sees), not once an iteration: the other iterations only
rename what it reads.

    x[s] = …                          x.0
    repeat: 2                         h.0, x.1 = x.0 + …      names first set inside are local to an iteration,
      - h[s] = … x[s] …               h.1, x.2 = x.1 + …      names set before are carried on
      - x[s] += … h[s] …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from einpage.einsum_front.algebra import arithmetic as fold
from einpage.einsum_front.algebra.expr import Axis, Binary, Expr, Letter, Load, Name, Num, rebuild, walk
from einpage.einsum_front.base.errors import Span, SpecError, did_you_mean, listing
from einpage.einsum_front.elaborate.declare import Declarations
from einpage.einsum_front.elaborate.implicit_sums import with_sums
from einpage.einsum_front.elaborate.partial_definitions import Pending
from einpage.einsum_front.elaborate.resolve import Known, Names, resolve
from einpage.einsum_front.graph.job import Part
from einpage.einsum_front.graph.program import Definition, Output, Program, Weight
from einpage.einsum_front.spec.document import BodyItem, Document, OutputEntry, Repeat
from einpage.einsum_front.spec.parse import Statement
from einpage.einsum_front.spec.sizes import Evaluator, override, whole

MOST_STATEMENTS = 50_000
"""Statements after unrolling: a repeat far longer than any model is a mistake."""


def elaborate(document: Document, settings: Mapping[str, int | float | str] = {}) -> Program:
    """The program of a spec at its own sizes, or at those of `settings`. Raises SpecError, UsageError for an unknown setting."""
    return _Elaborator(document, settings).program()


@dataclass(frozen=True, slots=True)
class _Meaning:
    """A statement resolved: the target's indices, the expression (loads by the spec's words) and the words it reads."""

    target: tuple[Expr, ...]
    expr: Expr
    reads: tuple[str, ...]


class _Elaborator:
    def __init__(self, document: Document, settings: Mapping[str, int | float | str]) -> None:
        self._document = document
        self._source = document.source
        entry_by_name = override((*document.sizes, *document.scalars), settings)
        evaluator = Evaluator(entry_by_name)
        self._sizes = {e.name: int(evaluator.value(e.name)) for e in document.sizes}
        self._scalars = {e.name: evaluator.value(e.name) for e in document.scalars}
        self._numbers: dict[str, fold.Number] = {**self._sizes, **self._scalars}
        axes = Evaluator({e.name: e for e in document.axes}, self._numbers)
        self._extents = {Letter(e.name): int(axes.value(e.name)) for e in document.axes}
        self._known: dict[str, Known] = {}
        self._declarations = Declarations(document, self._numbers, self._extents, self._known)
        self._pending: dict[str, Pending] = {}
        self._definitions: list[tuple[int, Definition]] = []
        self._count: dict[str, int] = {}
        self._read_by_word: dict[str, Span] = {}
        self._clock = 0
        self._words_by_statement: dict[int, dict[str, Span]] = {}
        self._meaning_by_key: dict[tuple[object, ...], _Meaning] = {}
        self._place_by_target = {s.name: s.span for s in reversed(tuple(_statements(document.body)))}
        self._names = Names(self._numbers, self._extents, self._known, self._why_unset)

    def program(self) -> Program:
        document = self._document
        inputs = self._declarations.inputs()
        weights = list(self._declarations.weights(document.weights, ()))
        weights.extend(self._body_of(document.body, ()))
        for name in tuple(self._pending):
            self._close(name, None)
        return Program(
            name=document.name,
            path=document.path,
            sizes=self._sizes,
            scalars=self._scalars,
            extents=self._extents,
            inputs=inputs,
            weights=tuple(weights),
            definitions=tuple(d for _, d in sorted(self._definitions, key=lambda pair: pair[0])),
            outputs=self._outputs(),
            ignore=document.ignore,
        )

    def _body_of(self, body: tuple[BodyItem, ...], loop: tuple[int, ...]) -> Iterator[Weight]:
        """Run the statements in order; gives the weights that repeats declare."""
        for item in body:
            if isinstance(item, Repeat):
                yield from self._repeat(item, loop)
            else:
                self._statement(item, loop)

    def _repeat(self, repeat: Repeat, loop: tuple[int, ...]) -> Iterator[Weight]:
        count = self._count_of(repeat)
        let = {e.name: e for e in repeat.let}
        own = (*([repeat.variable] if repeat.variable else []), *let, *(w.name for w in repeat.weights))
        for word in own:
            self._declarations.refuse_taken(word, repeat.span)
            if own.count(word) > 1:
                raise self._source.error(repeat.span, f"`{word}` already names something in this repeat", cure="choose another name")
        outer = frozenset((*self._known, *self._pending))
        for i in range(count):
            self._tick(repeat.span)
            if repeat.variable is not None:
                self._numbers[repeat.variable] = i
            evaluator = Evaluator(let, self._numbers)
            self._numbers.update({name: evaluator.value(name) for name in let})
            yield from self._declarations.weights(repeat.weights, (*loop, i))
            yield from self._body_of(repeat.body, (*loop, i))
            for word in [w for w in self._pending if w not in outer]:
                self._close(word, None)
            for word in [w for w in self._known if w not in outer]:
                del self._known[word]
            for word in own:
                self._numbers.pop(word, None)

    def _count_of(self, repeat: Repeat) -> int:
        number = Evaluator({}, self._numbers).number(repeat.count.expr, self._source)
        return whole(number, "the number of iterations", repeat.count, least=0)

    def _statement(self, statement: Statement, loop: tuple[int, ...]) -> None:
        self._tick(statement.span)
        self._refuse_target(statement)
        words = self._words(statement)
        for word, span in words.items():
            if word in self._pending:
                self._close(word, span)
        meaning = self._meaning(statement, tuple(words))
        unique_by_word = {word: self._known[word].unique for word in meaning.reads}
        part = Part(meaning.target, _renamed(meaning.expr, unique_by_word))
        if all(isinstance(i, Axis) for i in meaning.target):
            self._whole_value(statement, part, loop)
        else:
            pending = self._pending.get(statement.name)
            if pending is None:
                read = self._read_by_word.get(statement.name)
                pending = Pending(statement.name, self._new_name(statement.name), loop, statement.span, read)
                self._pending[statement.name] = pending
            pending.add(part, statement.span, self._extents, self._source)
            pending.clock = self._clock

    def _tick(self, span: Span) -> None:
        self._clock += 1
        if self._clock > MOST_STATEMENTS:
            raise self._source.error(span, f"the repeats unroll to more than {MOST_STATEMENTS:,} statements", cure="repeat less often")

    def _whole_value(self, statement: Statement, part: Part, loop: tuple[int, ...]) -> None:
        if statement.name in self._pending:
            self._close(statement.name, None)
        letters = tuple(i.letter for i in part.target if isinstance(i, Axis))
        shape = tuple(self._extents[letter] for letter in letters)
        unique = self._new_name(statement.name)
        definition = Definition(unique, statement.name, shape, (part,), loop, statement.span)
        self._definitions.append((self._clock, definition))
        self._known[statement.name] = Known(unique, "value", shape, letters, False)

    def _close(self, word: str, reader: Span | None) -> None:
        """The parts of `word` are all there: from here on it is a value like any other."""
        pending = self._pending.pop(word)
        if reader is not None:
            self._read_by_word[word] = reader
        shape = pending.shape(self._extents, self._source, reader)
        definition = Definition(pending.unique, word, shape, tuple(pending.parts), pending.loop, pending.span)
        self._definitions.append((pending.clock, definition))
        columns = zip(*(p.target for p in pending.parts), strict=True)
        letters = [next((str(i.letter) for i in column if isinstance(i, Axis)), None) for column in columns]
        dims = tuple(letter or str(extent) for letter, extent in zip(letters, shape, strict=True))
        self._known[word] = Known(pending.unique, "value", shape, dims, False)

    def _meaning(self, statement: Statement, words: tuple[str, ...]) -> _Meaning:
        seen = tuple((w, repr(self._numbers.get(w)), (k.shape, k.is_integer) if (k := self._known.get(w)) else None) for w in words)
        key = (id(statement), seen)
        if key not in self._meaning_by_key:
            target = self._target(statement)
            letters = tuple(i.letter for i in target if isinstance(i, Axis))
            written = statement.expr
            if statement.adds:
                written = Binary("+", Load(statement.name, statement.indices, statement.span), written, statement.span)
            expr = with_sums(resolve(written, self._names, self._source), letters, self._source)
            reads = tuple(dict.fromkeys(n.name for n in walk(expr) if isinstance(n, Load)))
            self._meaning_by_key[key] = _Meaning(target, expr, reads)
        return self._meaning_by_key[key]

    def _target(self, statement: Statement) -> tuple[Expr, ...]:
        """The target's indices as axes and numbers. Raises SpecError."""
        target = tuple(resolve(i, self._names, self._source) for i in statement.indices)
        letters: list[Letter] = []
        for written, index in zip(statement.indices, target, strict=True):
            if isinstance(index, Axis):
                if index.letter in letters:
                    raise self._source.error(
                        index.span, f"`{index.letter}` stands twice on the target", cure="declare a second letter of this extent"
                    )
                letters.append(index.letter)
            elif not isinstance(index, Num):
                message = "arithmetic in a target's index is reserved and not yet implemented"
                raise self._source.error(written.span, message, expected="an axis letter or a whole number")
            elif not isinstance(index.value, int) or index.value < 0:
                raise self._source.error(written.span, f"the index {index.value} on a target", expected="a whole number from 0")
        if statement.adds and len(letters) < len(target):
            cure = "write the parts with `=`, as a new value"
            raise self._source.error(statement.span, "`+=` on a part of a value", expected="axis letters only", cure=cure)
        return target

    def _refuse_target(self, statement: Statement) -> None:
        word = statement.name
        known = self._known.get(word)
        if word in self._numbers or word in self._extents or (known is not None and known.what != "value"):
            self._declarations.refuse_taken(word, statement.span)
        if statement.adds and known is None and word not in self._pending:
            exists = listing(w for w, k in self._known.items() if k.what == "value")
            raise self._source.error(statement.span, f"`{word}` is added to before it is set", exists=exists, cure="set it with `=` first")

    def _new_name(self, base: str) -> str:
        number = self._count.get(base, 0)
        self._count[base] = number + 1
        return f"{base}.{number}"

    def _words(self, statement: Statement) -> dict[str, Span]:
        """Every word the statement uses, and where first."""
        if id(statement) not in self._words_by_statement:
            words: dict[str, Span] = {statement.name: statement.span} if statement.adds else {}
            for e in (statement.expr, *statement.indices):
                for node in walk(e):
                    if isinstance(node, Name | Load):
                        words.setdefault(node.word if isinstance(node, Name) else node.name, node.span)
            self._words_by_statement[id(statement)] = words
        return self._words_by_statement[id(statement)]

    def _why_unset(self, word: str) -> str | None:
        place = self._place_by_target.get(word)
        if place is None:
            return None
        if word in self._count:
            return f"it is set in line {place.line}, inside a repeat: such names are local to an iteration; set it before the repeat too"
        return f"it is first set in line {place.line}; a statement reads only what stands before it"

    def _outputs(self) -> tuple[Output, ...]:
        return tuple(self._output(entry) for entry in self._document.outputs)

    def _output(self, entry: OutputEntry) -> Output:
        letters = self._declarations.letters(entry.axes)
        known = self._known.get(entry.name)
        if known is None:
            raise self._unknown_output(entry)
        shape = tuple(self._extents[letter] for letter in letters)
        if shape != known.shape:
            if short := [
                at for at, (own, axis) in enumerate(zip(known.shape, shape, strict=False)) if own < axis and known.dims[at].isdecimal()
            ]:
                raise self._uncovered(entry, known, letters, short)
            message = f"the output `{entry.name}` has axes of extents {shape}, but the {known.what} has shape {known.shape}"
            own = " ".join(known.dims) or '""'
            raise self._source.error(entry.axes.span, message, expected=f"`{own}`")
        return Output(entry.name, known.unique, letters, shape)

    def _uncovered(self, entry: OutputEntry, known: Known, letters: tuple[Letter, ...], short: list[int]) -> SpecError:
        """The output has fewer parts in the dimensions `short` than its axes ask for."""
        never = [str(known.shape[at]) if at == short[0] else letter for at, letter in enumerate(letters)]
        missing, extent = f"{entry.name}[{','.join(never)}]", self._extents[letters[short[0]]]
        message = f"the parts of `{entry.name}` do not cover the output: `{missing}` is never set"
        expected = f"parts for `{letters[short[0]]}` from 0 to {extent - 1}"
        return self._source.error(entry.axes.span, message, expected=expected, cure=f"add `{missing} = …`")

    def _unknown_output(self, entry: OutputEntry) -> SpecError:
        why = self._why_unset(entry.name)
        if why is not None:
            return self._source.error(entry.span, f"the output `{entry.name}` is not set at the end", cure=why)
        values = [w for w, k in self._known.items() if k.what == "value"]
        return self._source.error(
            entry.span, f"no statement sets the output `{entry.name}`", exists=listing(values), cure=did_you_mean(entry.name, values)
        )


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
