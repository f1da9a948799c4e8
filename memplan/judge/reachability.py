"""Are two nodes ordered? Whether paths of edges join pairs of nodes, and of which kind an edge should be, for the judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from einpage.memplan.graph.memgraph import EdgeKind, MemGraph

Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]


def first_unordered(plan: MemGraph, first: Ints, second: Ints) -> int | None:
    """The position of the first pair, by (second, first), that no path of edges joins; None when all are joined.

    Direct edges are looked up all at once; what is left is searched backwards from `second`, no further than `first`: always right, and
    fast where paths are short.
    """
    if len(first) == 0:
        return None
    source, target = plan.edges.source.astype(np.int64), plan.edges.target.astype(np.int64)
    keys, wanted = target * len(plan.nodes) + source, second * len(plan.nodes) + first
    at = np.searchsorted(keys, wanted)
    direct = np.zeros(len(wanted), bool)
    direct[at < len(keys)] = keys[at[at < len(keys)]] == wanted[at < len(keys)]
    rest = np.flatnonzero(~direct)
    rest = rest[np.lexsort((first[rest], second[rest]))]
    if len(rest) == 0:
        return None
    row = np.searchsorted(target, np.arange(len(plan.nodes) + 1)).tolist()
    sources = source.tolist()
    for position in rest.tolist():
        if not _joined(sources, row, int(first[position]), int(second[position])):
            return int(position)
    return None


def first_of_wrong_kind(plan: MemGraph, first: Ints, second: Ints) -> int | None:
    """The position of the first edge that is not DATA exactly where it is one of the pairs (first, second); None when all are right."""
    if len(plan.edges) == 0:
        return None
    keys = plan.edges.target.astype(np.int64) * len(plan.nodes) + plan.edges.source
    wanted = (second * len(plan.nodes) + first)[first >= 0]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    should_be_data = np.zeros(len(keys), bool)
    should_be_data[at[keys[at] == wanted]] = True
    wrong = (plan.edges.kind == EdgeKind.DATA) != should_be_data
    return int(np.argmax(wrong)) if wrong.any() else None


def _joined(sources: Sequence[int], row: Sequence[int], first: int, second: int) -> bool:
    """True where a path leads from `first` to `second`; the predecessors of n are sources[row[n]:row[n + 1]]."""
    queue, seen = [second], {second}
    for n in queue:
        for before in sources[row[n] : row[n + 1]]:
            if before == first:
                return True
            if before > first and before not in seen:
                seen.add(before)
                queue.append(before)
    return False
