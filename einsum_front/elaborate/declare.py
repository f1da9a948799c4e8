"""Inputs, weights and outputs: what a spec declares, at the sizes of this run and, in a repeat, once an iteration.

In: entries of the document. Out: the Program's inputs and weights, and a Symbol for each, which statements may read; after the last
statement, the Program's outputs, whose axes have the shape of the value that their name has then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Expr, Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span, SpecError, did_you_mean, listing
from einpage.einsum_front.base.interval import UNBOUNDED, Interval
from einpage.einsum_front.elaborate.resolve import Symbol
from einpage.einsum_front.graph.program import Input, Output, Source, Weight
from einpage.einsum_front.spec.document import Axes, Document, InputEntry, OutputEntry, SourceName, StateEntry, WeightEntry
from einpage.einsum_front.spec.sizes import Entry, Evaluator, Lists
from einpage.einsum_front.spec.source import SourceFile


class Declarations:
    """Declares into `symbols`; reads `numbers` as they are at the time (repeat variables change)."""

    def __init__(
        self,
        document: Document,
        numbers: Mapping[str, arithmetic.Number],
        lists: Lists,
        extents: Mapping[Letter, int],
        symbols: dict[str, Symbol],
    ) -> None:
        self._document = document
        self._source = document.source
        self._numbers = numbers
        self._lists = lists
        self._extents = extents
        self._symbols = symbols
        self._used: set[str] = set()
        self._tied: set[str] = set()
        self._groups_by_source: dict[int, tuple[tuple[int, ...], ...]] = {}
        self._span_by_name = {entry.name: entry.span for entry in (*document.sizes, *document.scalars, *document.axes)}
        self._span_by_name |= {entry.name: entry.span for entry in document.lists}

    def refuse_used_name(self, word: str, span: Span) -> None:
        """Raises SpecError where `word` already names something."""
        if word in self._span_by_name or word in self._numbers or word in self._symbols:
            first = self._span_by_name.get(word)
            place = f", in line {first.line}" if first else ""
            raise self._source.error(span, f"`{word}` already names {self._meaning(word)}{place}", cure="choose another name")

    def _meaning(self, word: str) -> str:
        if word in self._symbols:
            return f"a {self._symbols[word].what}".replace("a input", "an input")
        return "an axis" if word in self._extents else "a list" if word in self._lists else "a size or a number"

    def letters(self, axes: Axes) -> tuple[Letter, ...]:
        """The letters of a declaration, each an axis. Raises SpecError."""
        pairs = self._pairs(axes)
        for letter, span in pairs:
            if letter not in self._extents:
                raise self._unknown_axis(letter, span)
        return tuple(letter for letter, _ in pairs)

    def _pairs(self, axes: Axes) -> list[tuple[Letter, Span]]:
        return [pair for group in axes.groups for pair in group.letters]

    def inputs(self) -> tuple[Input, ...]:
        """The inputs, declared. Raises SpecError."""
        return tuple(self._input(entry) for entry in self._document.inputs)

    def _input(self, entry: InputEntry) -> Input:
        self.refuse_used_name(entry.name, entry.span)
        letters = self.letters(entry.axes)
        shape = tuple(self._extents[letter] for letter in letters)
        default = None
        if entry.default is not None:
            default = Evaluator({}, self._numbers, self._lists).number(entry.default.expr, self._source)
            is_whole = isfinite(default) and default == int(default)
            if not isfinite(default) or (entry.dtype is not None and not entry.dtype.is_float and not is_whole):
                expected = "a finite number" if entry.dtype is None or entry.dtype.is_float else "a whole number"
                raise self._source.error(entry.default.span, f"the default of `{entry.name}` is {default}", expected=expected)
            dtype = entry.dtype or DType.FP32
            if dtype.is_exceeded_by(default):
                message = f"the default of `{entry.name}` is {default:g}, beyond {dtype.value}"
                raise self._source.error(entry.default.span, message, expected=f"a number that {dtype.value} holds")
        is_integer = entry.dtype is not None and not entry.dtype.is_float
        limits = None if entry.range is None else self._limits(entry, entry.range, default)
        values = None if not is_integer else UNBOUNDED if limits is None else Interval(*limits)
        self._symbols[entry.name] = Symbol(entry.name, "input", shape, letters, values)
        self._span_by_name[entry.name] = entry.span
        return Input(entry.name, letters, shape, entry.dtype, default, entry.span, limits)

    def _limits(self, entry: InputEntry, ends: tuple[Entry, Entry], default: arithmetic.Number | None) -> tuple[int, int]:
        """The ends of an input's range. Raises SpecError where they are no whole numbers in order, or leave out the default."""
        if entry.dtype is None or entry.dtype.is_float:
            cure = f"declare `{entry.name}` as dtype int32 or int64, or leave the range out"
            raise self._source.error(ends[0].span, f"a range for `{entry.name}`, which is not of whole numbers", cure=cure)
        low, high = (self._end(entry.name, end) for end in ends)
        if low > high:
            raise self._source.error(
                ends[0].span, f"the range of `{entry.name}` is {low} .. {high}, which is empty", expected="LOW .. HIGH"
            )
        if default is not None and not low <= default <= high:
            assert entry.default is not None
            message = f"the default of `{entry.name}` is {default}, outside its range {low} .. {high}"
            raise self._source.error(entry.default.span, message, expected=f"a whole number from {low} to {high}")
        return low, high

    def _end(self, name: str, end: Entry) -> int:
        found = Evaluator({}, self._numbers, self._lists).number(end.expr, self._source, exact=True)
        if not isfinite(found) or found != int(found):
            raise self._source.error(end.span, f"an end of the range of `{name}` is {found}", expected="a whole number")
        return int(found)

    def states(self, entries: tuple[StateEntry, ...], loop: tuple[int, ...]) -> list[Input]:
        """What the states of one iteration (or, with no loop, of the whole model) are at the start, declared. Raises SpecError."""
        found = []
        for entry in entries:
            self.refuse_used_name(entry.name, entry.span)
            letters = self.letters(entry.axes)
            twice = [pair for at, pair in enumerate(self._pairs(entry.axes)) if pair[0] in letters[:at]]
            if twice:
                message, cure = f"`{twice[0][0]}` stands twice in the axes of `{entry.name}`", "declare a second letter of this extent"
                raise self._source.error(twice[0][1], message, cure=cure)
            if entry.along is not None and entry.along[0] not in letters:
                letter, span = entry.along
                message = f"`{letter}` is no axis of the state `{entry.name}`"
                raise self._source.error(span, message, expected=f"one of {listing(f'`{x}`' for x in letters)}")
            shape = tuple(self._extents[letter] for letter in letters)
            unique = self._unique(entry.name, loop)
            self._symbols[entry.name] = Symbol(unique, "state", shape, letters)
            found.append(Input(unique, letters, shape, None, 0.0, entry.span))
        return found

    def weights(self, entries: tuple[WeightEntry, ...], loop: tuple[int, ...]) -> list[Weight]:
        """The weights of one iteration (or, with no loop, of the whole model), declared. Raises SpecError."""
        self._tied.update(e.name for e in entries if e.fallback is not None)
        for entry in entries:
            self.refuse_used_name(entry.name, entry.span)
            letters = self.letters(entry.axes)
            shape = tuple(self._extents[letter] for letter in letters)
            self._symbols[entry.name] = Symbol(self._unique(entry.name, loop), "weight", shape, letters)
        return [self._weight(entry) for entry in entries]

    def _weight(self, entry: WeightEntry) -> Weight:
        symbol = self._symbols[entry.name]
        letters = tuple(map(Letter, symbol.dims))
        sources = tuple(Source(self._template(s), self._groups(entry, s), s.plus) for s in entry.sources)
        return Weight(symbol.unique, entry.name, letters, symbol.shape, sources, self._fallback(entry), entry.span, None, entry.start)

    def _unique(self, base: str, loop: tuple[int, ...]) -> str:
        name = f"{base}@{'.'.join(map(str, loop))}" if loop else base
        unique, again = name, 2
        while unique in self._used:  # two repeats, one after the other, may use one word
            unique, again = f"{name}#{again}", again + 1
        self._used.add(unique)
        return unique

    def _groups(self, entry: WeightEntry, source: SourceName) -> tuple[tuple[int, ...], ...]:
        """The positions of the weight's letters that make up each checkpoint dimension."""
        if id(source) not in self._groups_by_source:
            axes = source.axes or entry.axes
            free = list(enumerate(letter for group in entry.axes.groups for letter, _ in group.letters))
            groups = tuple(tuple(self._claim(free, *pair, entry) for pair in group.letters) for group in axes.groups)
            if free:
                message = f"these axes leave out {listing(f'`{letter}`' for _, letter in free)} of `{entry.name}`"
                raise self._source.error(axes.span, message, expected="every letter of the weight, once")
            self._groups_by_source[id(source)] = groups
        return self._groups_by_source[id(source)]

    def _claim(self, free: list[tuple[int, Letter]], letter: Letter, span: Span, entry: WeightEntry) -> int:
        """The first position of `letter` in `free`, which loses it. Raises SpecError where there is none."""
        found = next((pair for pair in free if pair[1] == letter), None)
        if found is None:
            exists = listing(left for _, left in free)
            raise self._source.error(span, f"`{letter}` is not one of the letters left for `{entry.name}`", exists=exists)
        free.remove(found)
        return found[0]

    def _template(self, source: SourceName) -> str:
        return "".join(piece if isinstance(piece, str) else str(self._braced(piece, source.span)) for piece in source.parts)

    def _braced(self, e: Expr, span: Span) -> int:
        found = Evaluator({}, self._numbers, self._lists).number(e, self._source)
        if not isinstance(found, int):
            raise self._source.error(e.span, f"`{found}` in a checkpoint's name", expected="a whole number")
        return found

    def _fallback(self, entry: WeightEntry) -> str | None:
        """The unique name of the `or:` weight. Raises SpecError where it is none, has another shape or leads back here."""
        if entry.fallback is None:
            return None
        word, span = entry.fallback.word, entry.fallback.span
        weights = {name: k for name, k in self._symbols.items() if k.what == "weight"}
        if word not in weights:
            raise self._source.error(span, f"unknown weight `{word}`", exists=listing(weights), cure=did_you_mean(word, weights))
        if word in self._tied:
            raise self._source.error(span, f"`{word}` cannot stand in for `{entry.name}`", expected="a weight without an `or:` of its own")
        own, other = self._symbols[entry.name].shape, weights[word].shape
        if own != other:
            raise self._source.error(span, f"`{word}` has shape {other}, `{entry.name}` has {own}", expected="a weight of the same shape")
        return weights[word].unique

    def _unknown_axis(self, letter: Letter, span: Span) -> SpecError:
        return self._source.error(
            span,
            f"unknown axis `{letter}`",
            exists=listing(self._extents),
            cure=did_you_mean(letter, self._extents) or "declare it under `axes:`",
        )


def bind_output(
    entry: OutputEntry,
    letters: tuple[Letter, ...],
    extents: Mapping[Letter, int],
    symbols: Mapping[str, Symbol],
    why_unset: Callable[[str], str | None],
    source: SourceFile,
) -> Output:
    """The output of `entry`, whose axes are `letters`. Raises SpecError where nothing sets it or its shape is another."""
    symbol = symbols.get(entry.name)
    if symbol is None:
        raise _unknown(entry, symbols, why_unset, source)
    if symbol.what == "state":
        value = f"last_{entry.name}"
        indices = f"[{','.join(symbol.dims)}]" if symbol.dims else ""
        cure = f"set a value, `{value}{indices} = {entry.name}{indices}`, and put that out: `{value}`"
        raise source.error(entry.span, f"the output `{entry.name}` is a state, which is handed to the next run", cure=cure)
    shape = tuple(extents[letter] for letter in letters)
    if shape != symbol.shape:
        pairs = enumerate(zip(symbol.shape, shape, strict=False))
        if short := [at for at, (own, axis) in pairs if own < axis and symbol.dims[at].isdecimal()]:
            raise _uncovered(entry, symbol, letters, short[0], extents, source)
        message = f"the output `{entry.name}` has axes of extents {shape}, but the {symbol.what} has shape {symbol.shape}"
        own = " ".join(symbol.dims) or '""'
        raise source.error(entry.axes.span, message, expected=f"`{own}`")
    return Output(entry.name, symbol.unique, letters, shape)


def _uncovered(
    entry: OutputEntry, symbol: Symbol, letters: tuple[Letter, ...], short: int, extents: Mapping[Letter, int], source: SourceFile
) -> SpecError:
    """For an output with fewer partial definitions along dimension `short` than its axes ask for."""
    never = [str(symbol.shape[at]) if at == short else letter for at, letter in enumerate(letters)]
    missing, extent = f"{entry.name}[{','.join(never)}]", extents[letters[short]]
    message = f"the partial definitions of `{entry.name}` do not cover the output: `{missing}` is never set"
    expected = f"partial definitions for `{letters[short]}` from 0 to {extent - 1}"
    return source.error(entry.axes.span, message, expected=expected, cure=f"add `{missing} = …`")


def _unknown(entry: OutputEntry, symbols: Mapping[str, Symbol], why_unset: Callable[[str], str | None], source: SourceFile) -> SpecError:
    why = why_unset(entry.name)
    if why is not None:
        return source.error(entry.span, f"the output `{entry.name}` is not set at the end", cure=why)
    values = [name for name, symbol in symbols.items() if symbol.what == "value"]
    cure = did_you_mean(entry.name, values)
    return source.error(entry.span, f"no statement sets the output `{entry.name}`", exists=listing(values), cure=cure)
