"""A linear programme under construction, and its solution with a bound that is proved.

In: columns and rows in blocks, as arrays. Out: values, and a lower bound on the minimum. The bound is computed here from the solver's
multipliers (weak duality over the columns' ranges), so it holds whatever tolerances the solver worked with.

scipy is imported where a programme is solved and nowhere else: planning works without it, and starts without its half second.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from math import inf
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from einpage.einsum_front.base.columns import Floats, Int64s

INTERIOR_POINT_FROM = 20_000
"""Columns from which on the interior point method beats the dual simplex on slot LPs."""

Indices = Int64s


class Unsolved(Exception):
    """The solver gave no solution: out of time, or out of numbers."""


def has_solver() -> bool:
    """Whether scipy is installed. Does not import it."""
    return find_spec("scipy") is not None


@dataclass(frozen=True, slots=True, eq=False)
class Solution:
    values: Floats
    """[column]"""
    bound: float
    """No values within the rows and ranges have a lower cost."""


class _Entries:
    """Rows of one sense: sum of coefficient * column  (= or <=)  right side."""

    def __init__(self) -> None:
        self.right: list[Floats] = []
        self.count = 0
        self.entries: list[tuple[Indices, Indices, Floats]] = []

    def add(self, right: Floats) -> Indices:
        self.right.append(right)
        self.count += len(right)
        return np.arange(self.count - len(right), self.count)

    def matrix(self, columns: int) -> tuple[Any, Floats]:
        from scipy.sparse import csc_array

        row, column, value = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        return csc_array((value, (row, column)), shape=(self.count, columns)), np.concatenate(self.right)


class Lp:
    """Minimise cost over columns within ranges, subject to rows. Every range is finite: the bound rests on them."""

    def __init__(self) -> None:
        self.low: list[Floats] = []
        self.high: list[Floats] = []
        self.cost: list[Floats] = []
        self.columns = 0
        self.equal, self.at_most = _Entries(), _Entries()

    def add(self, high: ArrayLike, cost: ArrayLike = 0.0, low: ArrayLike = 0.0) -> Indices:
        """A block of columns, as long as `high`."""
        top = np.atleast_1d(np.asarray(high, np.float64))
        self.high.append(top)
        self.low.append(np.broadcast_to(np.asarray(low, np.float64), top.shape))
        self.cost.append(np.broadcast_to(np.asarray(cost, np.float64), top.shape))
        self.columns += len(top)
        return np.arange(self.columns - len(top), self.columns)

    def rows_equal(self, right: ArrayLike, *terms: tuple[ArrayLike, ArrayLike, ArrayLike]) -> None:
        """A block of rows, as long as `right`. A term is (positions in the block, columns, coefficients)."""
        self._rows(self.equal, right, terms)

    def rows_at_most(self, right: ArrayLike, *terms: tuple[ArrayLike, ArrayLike, ArrayLike]) -> None:
        """As `rows_equal`, with <=."""
        self._rows(self.at_most, right, terms)

    def _rows(self, rows: _Entries, right: ArrayLike, terms: tuple[tuple[ArrayLike, ArrayLike, ArrayLike], ...]) -> None:
        numbers = rows.add(np.atleast_1d(np.asarray(right, np.float64)))
        for position, column, value in terms:
            at, col, val = np.broadcast_arrays(np.asarray(position, np.int64), np.asarray(column, np.int64), np.asarray(value, np.float64))
            rows.entries.append((numbers[at.ravel()], col.ravel(), val.ravel()))

    def solve(self, time_limit_s: float | None = None) -> Solution:
        """Raises Unsolved; ImportError without scipy."""
        from scipy.optimize import linprog

        low, high, cost = np.concatenate(self.low), np.concatenate(self.high), np.concatenate(self.cost)
        a_eq, b_eq = self.equal.matrix(self.columns)
        a_ub, b_ub = self.at_most.matrix(self.columns)
        method = "highs-ds" if self.columns < INTERIOR_POINT_FROM else "highs-ipm"
        options = {} if time_limit_s in (None, inf) else {"time_limit": time_limit_s}
        found = linprog(cost, a_ub, b_ub, a_eq, b_eq, np.stack([low, high], 1), method=method, options=options)
        if found.status != 0:
            raise Unsolved(found.message)
        y_eq, y_ub = found.eqlin.marginals, np.minimum(found.ineqlin.marginals, 0.0)
        reduced = cost - a_eq.T @ y_eq - a_ub.T @ y_ub
        bound = b_eq @ y_eq + b_ub @ y_ub + np.where(reduced > 0, reduced * low, reduced * high).sum()
        return Solution(found.x, float(bound))

    def solve_integer(
        self, whole: Indices, time_limit_s: float = inf, relative_gap: float = 1e-6, most_nodes: int | None = None
    ) -> Solution:
        """With the columns `whole` integers. The best found in time and `most_nodes`, and the solver's bound on what none can beat.

        Raises Unsolved; ImportError without scipy.
        """
        from scipy import optimize

        low, high, cost = np.concatenate(self.low), np.concatenate(self.high), np.concatenate(self.cost)
        a_eq, b_eq = self.equal.matrix(self.columns)
        a_ub, b_ub = self.at_most.matrix(self.columns)
        integrality = np.zeros(self.columns)
        integrality[whole] = 1
        rows = [optimize.LinearConstraint(a_eq, b_eq, b_eq), optimize.LinearConstraint(a_ub, -np.inf, b_ub)]
        options: dict[str, float] = {"mip_rel_gap": relative_gap}
        options |= {} if time_limit_s == inf else {"time_limit": time_limit_s}
        options |= {} if most_nodes is None else {"node_limit": most_nodes}
        found = optimize.milp(cost, integrality=integrality, bounds=optimize.Bounds(low, high), constraints=rows, options=options)
        if found.x is None or found.mip_dual_bound is None:
            raise Unsolved(found.message)
        return Solution(found.x, float(found.mip_dual_bound))
