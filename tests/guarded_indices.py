"""Random indices under conditions, `where(s + t >= 1, x[s + t - 1], 0.5)`, provable and not, with a loop over every letter as the oracle.

Conditions and indices are text that Python understands as the spec language does. Never makes: data in either, `min`, `max`, `abs`,
products of letters, more than two letters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document

S, T = 9, 5
"""Extents of the letters s and t."""
SPEC = """\
einpage: 1
name: guarded
sizes: {{seq: 9, taps: 5, model: 4, rows: {rows}}}
axes: {{b: 2, s: seq, t: taps, i: model, u: 3, r: rows}}
inputs:
  x: {{axes: r}}
  p: {{axes: b s i}}
  bias: {{axes: s}}
  g: {{axes: i}}
  pad: {{axes: b, dtype: int32}}
body:
{body}
outputs: {{y: {{axes: {axes}}}}}
"""


def program_of(*statements: str, axes: str, rows: int = S) -> Program:
    """The program of statements over these inputs that set `y`."""
    body = "\n".join(f"  - {statement}" for statement in statements)
    return elaborate(read_document(SPEC.format(body=body, axes=axes, rows=rows), "guarded.yaml"))


def points() -> Iterator[dict[str, int]]:
    return ({"s": s, "t": t} for s, t in product(range(S), range(T)))


@dataclass(frozen=True)
class Guarded:
    """`where(condition, x[index], other)`, or its arms exchanged."""

    condition: str
    index: str
    rows: int
    exchanged: bool = False

    def program(self, through: bool = False) -> Program:
        """Reads the input, or, `through` a value that holds the same, one that lies in tiles. Raises SpecError."""
        name = "h" if through else "x"
        arms = f"0.5, {name}[{self.index}]" if self.exchanged else f"{name}[{self.index}], 0.5"
        statement = f"y[s,t] = where({self.condition}, {arms})"
        return program_of(*(["h[r] = x[r] + 0"] if through else []), statement, axes="s t", rows=self.rows)

    def reads(self, at: dict[str, int]) -> bool:
        """Whether the element counts. Conditions and indices are Python as well."""
        return bool(eval(self.condition, {}, at)) != self.exchanged

    def at(self, at: dict[str, int]) -> int:
        return int(eval(self.index, {}, at))

    def outside(self) -> list[dict[str, int]]:
        """Where an element counts that is none."""
        return [at for at in points() if self.reads(at) and not 0 <= self.at(at) < self.rows]

    def data(self, program: Program) -> dict[str, NDArray[Any]]:
        """Every input; of `x` NaN in all that nothing which counts reads."""
        data = {i.name: np.zeros(i.shape, np.float32) for i in program.inputs}
        data["x"][:] = np.nan
        for at in points():
            if self.reads(at):
                data["x"][self.at(at)] = 1.0 + self.at(at)
        return data

    def want(self) -> list[float]:
        """y, row-major."""
        return [1.0 + self.at(at) if self.reads(at) else 0.5 for at in points()]


def forms() -> st.SearchStrategy[str]:
    """`2*s + t - 1`, sometimes divided. Coefficients of both signs, and 0."""

    def form(a: int, b: int, c: int, more: str) -> str:
        return f"({a}*s + {b}*t + {c}){more}"

    small = st.integers(-2, 2)
    return st.builds(form, small, small, st.integers(-6, 6), st.sampled_from(["", "", "", "", " // 2", " % 3", " // 3 - 1"]))


def conditions() -> st.SearchStrategy[str]:
    """Comparisons of forms and numbers, joined and negated."""
    leaf = st.builds(
        lambda x, op, y: f"{x} {op} {y}",
        forms(),
        st.sampled_from(["<", "<=", ">", ">=", ">=", "<=", "==", "!="]),
        st.one_of(st.integers(-4, 8).map(str), forms()),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda x, y: f"({x}) and ({y})", inner, inner),
            st.builds(lambda x, y: f"({x}) or ({y})", inner, inner),
            inner.map(lambda x: f"not ({x})"),
        ),
        max_leaves=4,
    )


@st.composite
def near_misses(draw: st.DrawFn) -> Guarded:
    """The bounds of the index itself, each perhaps off by one: as often provable as not."""
    index, rows = draw(forms()), draw(st.integers(1, 14))
    low, high = draw(st.sampled_from([0, 0, 0, 1, -1])), rows + draw(st.sampled_from([0, 0, 0, 1, -1]))
    below, above = f"{index} >= {low}", f"{index} < {high}"
    if draw(st.booleans()):
        return Guarded(f"not ({below}) or not ({above})", index, rows, True)
    return Guarded(f"{above} and {below}", index, rows)


ANY = st.one_of(near_misses(), st.builds(Guarded, conditions(), forms(), st.integers(1, 20), st.booleans()))
