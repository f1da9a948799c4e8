"""Random indices under conditions over letters and integer inputs, `where(s >= pad[b], x[s - pad[b]], 7)`, with a loop in Python as oracle.

In: a random generator. Out: a statement, its inputs, what it gives by numpy and a Python `if` for each element: a condition that fails
keeps what it guards from being looked at. Never makes: floats (their own tests do), products of two letters or inputs, more than one sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document

BATCH = 3
_SPEC = """\
einpage: 1
name: guarded
sizes: {{n: {n}, seq: {s}, taps: {k}, batch: 3}}
axes: {{b: batch, s: seq, k: taps, i: n}}
inputs:
  x: {{axes: i}}
  pad: {{axes: b, dtype: int32{ranges[0]}}}
  at: {{axes: b, dtype: int64{ranges[1]}}}
body:
{body}
outputs: {{y: {{axes: b s k}}}}
"""


@dataclass(frozen=True)
class Written:
    """An expression twice: as the spec language and as Python have it."""

    spec: str
    python: str

    @staticmethod
    def same(text: str) -> Written:
        """What both write alike."""
        return Written(text, text)

    @staticmethod
    def join(form: str, *parts: Written) -> Written:
        """`form` with its holes filled, in both."""
        return Written(form.format(*(p.spec for p in parts)), form.format(*(p.python for p in parts)))

    @staticmethod
    def where(condition: Written, then: Written, other: Written) -> Written:
        """A choice, of which Python looks at one side alone."""
        spec = f"where({condition.spec}, {then.spec}, {other.spec})"
        return Written(spec, f"(({then.python}) if ({condition.python}) else ({other.python}))")


class Outside(Exception):
    """An element that counts has an index outside."""


class _Row:
    """A vector that refuses an index outside."""

    def __init__(self, values: NDArray[Any]) -> None:
        self._values = values

    def __getitem__(self, at: int) -> Any:
        if not 0 <= at < len(self._values):
            raise Outside
        return self._values[at].item()


@dataclass(frozen=True)
class GuardedByData:
    """A statement over letters b, s, k and two integer inputs."""

    e: Written
    n: int
    s: int
    k: int
    ranges: tuple[tuple[int, int] | None, tuple[int, int] | None]

    def program(self, through: bool = False) -> Program:
        """Reads the input x or, `through` a value that holds the same, one that lies in tiles. Raises SpecError."""
        ranges = tuple("" if r is None else f", range: {r[0]} .. {r[1]}" for r in self.ranges)
        text = self.e.spec.replace("x[", "h[") if through else self.e.spec
        body = ("  - h[i] = x[i] + 0\n" if through else "") + f"  - y[b,s,k] = {text}"
        return elaborate(read_document(_SPEC.format(n=self.n, s=self.s, k=self.k, ranges=ranges, body=body), "guarded.yaml"))

    def data(self, rng: Random) -> dict[str, NDArray[Any]]:
        """Inputs within their ranges; without one, mostly small numbers."""

        def some(limits: tuple[int, int] | None) -> list[int]:
            low, high = limits or (-4, 9)
            return [rng.choice((low, high, rng.randint(low, high), rng.randint(low, high))) for _ in range(BATCH)]

        return {
            "x": np.arange(1, self.n + 1, dtype=np.float32),
            "pad": np.array(some(self.ranges[0]), np.int32),
            "at": np.array(some(self.ranges[1]), np.int64),
        }

    def want(self, data: dict[str, NDArray[Any]]) -> list[float]:
        """y, row-major. Raises Outside."""
        names = {name: _Row(values) for name, values in data.items()}
        code = compile(self.e.python, "statement", "eval")
        every = product(range(BATCH), range(self.s), range(self.k))
        return [float(eval(code, {"n": self.n, **names, "b": b, "s": s, "k": k})) for b, s, k in every]


_TERMS = (
    "s", "k", "2*s", "s + k", "s - k", "k - s", "2*s - k", "s % 3", "s // 2", "(s + k) // 2", "(s*3 + 1) % 5", "abs(s - k)", "min(s, k)",
    "max(s, k)", "-s", "s - 2*k", "min(s - k, 3)", "max(k - 2, s - 1)", "abs(s - 2) - k", "pad[b]", "at[b]", "s - pad[b]", "pad[b] - s",
    "at[b] - 1 - k", "at[b] + pad[b]", "at[b] - pad[b]", "2*pad[b]", "s - 2*at[b]", "at[b] // 2", "pad[b] % 3", "min(at[b], s)",
    "max(s - pad[b], 0)", "abs(at[b] - s)", "max(min(at[b], n), k)", "s*pad[b]", "min(at[b], pad[b])", "at[b] + s // 2",
)  # fmt: skip


def _term(rng: Random) -> Written:
    if rng.random() < 0.1:
        return Written.where(_condition(rng, 2), _term(rng), Written.same(str(rng.randint(0, 3))))
    return Written.same(f"{rng.choice(_TERMS)} + {rng.randint(0, 3)}" if rng.random() < 0.5 else rng.choice(_TERMS))


def _condition(rng: Random, depth: int = 0) -> Written:
    way = rng.random()
    if depth < 2 and way < 0.45:
        form = "({}) and ({})" if way < 0.2 else "({}) or ({})" if way < 0.35 else "not ({})"
        return Written.join(form, *(_condition(rng, depth + 1) for _ in range(form.count("{}"))))
    if way < 0.52:
        return Written.join("{} == 1", Written.where(_condition(rng, depth + 1), Written.same("1"), Written.same("0")))
    op = rng.choice(("<", "<=", ">", ">=", "==", "!="))
    return Written.join(f"{{}} {op} {{}}", _term(rng), _term(rng) if rng.random() < 0.4 else Written.same(str(rng.randint(-2, 8))))


def _around(rng: Random, i: Written) -> Written:
    """The bounds of an index itself, perhaps off by one, perhaps with more."""
    form = rng.choice((
        "{0} >= 0 and {0} < n", "not ({0} < 0 or {0} >= n)", "{0} > -1 and ({0} <= n - 1 and {1})", "0 <= {0} and {0} < n or {1}",
        "{0} >= 0 and ({1} or n > 2) and n > {0}", "{0} >= 1 and n > {0}", "{0} >= -1 and n > {0}", "{0} >= 0 and {0} <= n",
        "min({0}, n - 1 - ({0})) >= 0", "max(-({0}), {0} - n + 1) <= 0", "{0} >= 0", "{0} < n", "abs(2*({0}) - n + 1) < n",
    ))  # fmt: skip
    return Written.join(form, i, _condition(rng, 1))


def random_case(rng: Random) -> GuardedByData:
    """As often inside as not."""
    i = Written.join("{} + 0", _term(rng))
    condition = _around(rng, i) if rng.random() < 0.7 else _condition(rng)
    read, constant = Written.join("x[{}]", i), Written.same("7")
    match rng.randrange(6):
        case 0 | 1:
            e = Written.where(condition, read, constant)
        case 2:
            e = Written.where(Written.join("not ({})", condition), constant, read)
        case 3:
            e = Written.where(_condition(rng), Written.where(condition, read, constant), Written.same("x[k % n]"))
        case 4:
            e = Written.where(Written.join("{} == 1", Written.where(condition, Written.same("1"), Written.same("0"))), read, constant)
        case _:
            e = Written.join("{} + s", Written.where(condition, Written.join("x[{}] * 2", i), constant))

    def limits() -> tuple[int, int] | None:
        low, high = sorted((rng.randint(-3, 4), rng.randint(0, 9)))
        return (low, high) if rng.random() < 0.7 else None

    return GuardedByData(e, rng.randint(3, 8), rng.randint(2, 8), rng.randint(1, 4), (limits(), limits()))
