"""Second stage: a Program becomes a TaskGraph whose largest working set fits the budget.

    Program ── fuse ──► OpGraph ── choose a split, coarsest first ──► pieces by letter ── split ──► TaskGraph

In: a Program and a budget in bytes; letters whose pieces are given are not chosen. Out: Built, the fused operations and their tasks. Raises
DoesNotFit where even the finest split needs more than the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import format_bytes
from einpage.einsum_front.choose.best_first import coarsened, smallest_first
from einpage.einsum_front.choose.coarsest_first import candidates
from einpage.einsum_front.fuse.fuse import fuse, without_fusions
from einpage.einsum_front.fuse.show import render, summary
from einpage.einsum_front.graph.opgraph import OpGraph
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.tile.split import split
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.errors import DoesNotFit, Misfit
from einpage.memplan.problem.footprint import largest_footprint


@dataclass(frozen=True, slots=True)
class Built:
    """The fused operations of a program, and the tasks that a split makes of them."""

    opgraph: OpGraph
    graph: TaskGraph

    def facts(self) -> dict[str, object]:
        """What `einpage show --json` prints."""
        task, nbytes = largest_footprint(self.graph)
        return {**summary(self.opgraph, self.graph), "largest_working_set_bytes": nbytes, "largest_task": self.graph.tasks[task].name}

    def text(self) -> str:
        """The same for a person."""
        task, nbytes = largest_footprint(self.graph)
        largest = f"largest working set  {format_bytes(nbytes)} ({nbytes:,} bytes): task {self.graph.tasks[task].name}"
        return f"{render(self.opgraph, self.graph)}\n\n{largest}"


def build_graph(program: Program, request: PlanRequest) -> Built:
    """Fuse (all but `no_fuse`), choose a split for the budget (letters in `pieces` are fixed), and split.

    Raises DoesNotFit where the smallest working set is larger than the budget, UsageError for an unknown output or fusion
    or an impossible split.
    """
    dtype, budget_bytes, pieces = request.dtype, request.budget_bytes, request.pieces
    opgraph = fuse(program, request.outputs, without_fusions(request.no_fuse))
    for choice in candidates(opgraph, dtype, budget_bytes, pieces):
        found = Built(opgraph, split(opgraph, choice.by_letter, dtype))
        if largest_footprint(found.graph)[1] <= budget_bytes:
            return found
    found, at_least = smallest(opgraph, dtype, budget_bytes, pieces)
    if largest_footprint(found.graph)[1] > budget_bytes:
        raise DoesNotFit(_too_small(found.graph, budget_bytes, at_least))
    return found


def split_as_told(
    program: Program, dtype: DType, pieces: Mapping[Letter, int], outputs: Sequence[str] = (), no_fuse: Sequence[str] = ()
) -> Built:
    """Fuse, and split the letters of `pieces` as they say and no other. Raises UsageError as build_graph."""
    opgraph = fuse(program, outputs, without_fusions(no_fuse))
    return Built(opgraph, split(opgraph, pieces, dtype))


def smallest(opgraph: OpGraph, dtype: DType, enough: int, pieces: Mapping[Letter, int] | None = None) -> tuple[Built, int]:
    """Split so that the largest working set is as small as any split allows (letters in `pieces` are fixed), or no more than `enough`
    bytes; and what any split needs at least, which is less than that only where the search was too long to end.

    A choice states its working set from a sample of tasks, so the graphs themselves are counted while one may still be smaller.
    """
    best: tuple[int, Built] | None = None
    for choice, at_least in smallest_first(opgraph, dtype, pieces):
        if best is not None and at_least >= best[0]:
            break
        limit = max(choice.largest_bytes, enough)
        for tried in (coarsened(opgraph, dtype, choice, limit, pieces), choice):
            found = Built(opgraph, split(opgraph, tried.by_letter, dtype))
            nbytes = largest_footprint(found.graph)[1]
            if best is None or nbytes < best[0]:
                best = nbytes, found
            if nbytes <= limit:
                return found, min(at_least, nbytes)
    assert best is not None, "there is always a split to try"
    return best[1], best[0]


def _too_small(graph: TaskGraph, budget_bytes: int, at_least: int) -> Misfit:
    task, nbytes = largest_footprint(graph)
    return Misfit(
        task=graph.tasks[task].name,
        place="device",
        wanted=nbytes,
        free=budget_bytes,
        largest_hole=budget_bytes,
        budget=budget_bytes,
        pinned=(),
        smallest_budget=nbytes,
        at_least=at_least,
    )
