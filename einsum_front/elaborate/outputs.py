"""Outputs: each declared output as the value that its name has at the end of the spec.

In: the entries of the document and the symbols after the last statement. Out: the Program's outputs, whose axes have the value's shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.errors import SpecError, did_you_mean, listing
from einpage.einsum_front.elaborate.resolve import Symbol
from einpage.einsum_front.graph.program import Output
from einpage.einsum_front.spec.document import OutputEntry
from einpage.einsum_front.spec.source import SourceFile


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
