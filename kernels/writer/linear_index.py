"""Addresses along a linear index: letters that lie one behind the other in memory are one term, with no division.

In: a linear index over letters, the last one fastest, and each letter's stride. Out: the terms of the offset. That a block's addresses are
contiguous is then plain to the compiler, which makes wide loads of them.

    row over [s, m], m of 576:   x[s, m]  strides 576, 1  ->  row
                                 w[m]     strides 0, 1    ->  m            (m = row % 576)
                                 y[m, s]  strides 1, 130  ->  s, m * 130   (s = row // 576)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Letter
from einpage.kernels.writer.values import Val


@dataclass(frozen=True, slots=True)
class LinearIndex:
    """The text of an index that runs over several letters, outermost first."""

    text: str
    letters: tuple[tuple[Letter, int], ...]
    """Each with its extent."""
    values: Mapping[Letter, Val]
    """The letters' own variables."""

    def terms(self, stride: Mapping[Letter, int]) -> list[str]:
        """The sum of stride * letter, as few terms as its runs of contiguous letters."""
        return [times(self._index(run), run[0]) for run in self._runs(stride) if run[0]]

    def _runs(self, stride: Mapping[Letter, int]) -> list[tuple[int, int, tuple[Letter, ...]]]:
        """(stride, extent of all faster letters, letters) of each run, the fastest first."""
        runs: list[tuple[int, int, tuple[Letter, ...]]] = []
        below, span = 1, 1
        for letter, extent in reversed(self.letters):
            step = stride.get(letter, 0)
            if extent > 1 and runs and runs[-1][0] * span == step:
                runs[-1] = (runs[-1][0], runs[-1][1], (letter, *runs[-1][2]))
                span *= extent
            elif extent > 1:
                runs.append((step, below, (letter,)))
                span = extent
            below *= extent
        return runs

    def _index(self, run: tuple[int, int, tuple[Letter, ...]]) -> str:
        _, below, letters = run
        if len(letters) == 1:
            return self.values[letters[0]].text
        real = [letter for letter, extent in self.letters if extent > 1]
        index = self.text if below == 1 else f"{self.text} // {below}"
        if letters[0] == real[0]:
            return index if below == 1 else f"({index})"
        span = 1
        for letter, extent in self.letters:
            span *= extent if letter in letters else 1
        return f"({index} % {span})"


def offset(stride: Mapping[Letter, int], letters: Mapping[Letter, Val], linear_indices: Iterable[LinearIndex]) -> list[str]:
    """The terms of sum(stride * letter); the letters of a linear index whose variables are the ones in use here are taken together."""
    rest = dict(stride)
    terms = []
    for index in linear_indices:
        if index.letters and all(letters.get(x) is index.values[x] for x, _ in index.letters):
            terms += index.terms({x: rest.pop(x, 0) for x, _ in index.letters})
    return [*terms, *(times(letters[x].text, c) for x, c in rest.items() if c and letters[x].text != "0")]


def times(text: str, factor: int) -> str:
    """The text of a product."""
    return text if factor == 1 else f"{text} * {factor}"
