"""Are two nodes ordered? Whether one node reaches another along edges, and of which kind an edge has to be, for the judge."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einpage.einsum_front.base.columns import Int64s
from einpage.memplan.graph.memgraph import EdgeKind, MemGraph


def first_unordered(plan: MemGraph, earlier: Int64s, later: Int64s) -> int | None:
    """The position of the first pair, by (later, earlier), where `earlier` does not reach `later`; None when all are ordered.

    Direct edges are looked up all at once. Other pairs are searched backwards from `later`, no further than `earlier`: exact, and fast
    where nodes are few edges apart.
    """
    if len(earlier) == 0:
        return None
    source, target = plan.edges.source.astype(np.int64), plan.edges.target.astype(np.int64)
    keys, wanted = target * len(plan.nodes) + source, later * len(plan.nodes) + earlier
    at = np.searchsorted(keys, wanted)
    direct = np.zeros(len(wanted), bool)
    direct[at < len(keys)] = keys[at[at < len(keys)]] == wanted[at < len(keys)]
    rest = np.flatnonzero(~direct)
    rest = rest[np.lexsort((earlier[rest], later[rest]))]
    if len(rest) == 0:
        return None
    row = np.searchsorted(target, np.arange(len(plan.nodes) + 1)).tolist()
    sources = source.tolist()
    for position in rest.tolist():
        if not _reaches(sources, row, int(earlier[position]), int(later[position])):
            return int(position)
    return None


def first_of_wrong_kind(plan: MemGraph, earlier: Int64s, later: Int64s) -> int | None:
    """The position of the first edge that is not DATA exactly where it is one of the pairs (earlier, later); None when all are right."""
    if len(plan.edges) == 0:
        return None
    keys = plan.edges.target.astype(np.int64) * len(plan.nodes) + plan.edges.source
    wanted = (later * len(plan.nodes) + earlier)[earlier >= 0]
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    should_be_data = np.zeros(len(keys), bool)
    should_be_data[at[keys[at] == wanted]] = True
    wrong = (plan.edges.kind == EdgeKind.DATA) != should_be_data
    return int(np.argmax(wrong)) if wrong.any() else None


def _reaches(sources: Sequence[int], row: Sequence[int], earlier: int, later: int) -> bool:
    """True where edges lead from `earlier` to `later`; the predecessors of n are sources[row[n]:row[n + 1]]."""
    queue, seen = [later], {later}
    for n in queue:
        for before in sources[row[n] : row[n + 1]]:
            if before == earlier:
                return True
            if before > earlier and before not in seen:
                seen.add(before)
                queue.append(before)
    return False
