"""A lower bound that needs only the first iterations of a repeat: hundreds of layers need not be written out to be refused.

In: a document, settings and what is asked for. Out: bytes that some task needs under every split, and the value it computes; or None.
Iterations that do not ask for their number differ in what surrounds them. Where several in a row have the same tasks, all of them needed,
so have those that follow, up to the last few: what one of them needs, the program needs that has them all. What stands after the repeat
is not looked at, so the bound may be lower than that of the whole program, and is never higher.

    iteration   0   1   2   3   4   5   6   7   (8 … 1999)
    looked at           2 = 3 = 4 = 5 = 6
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from einpage.einsum_front.algebra.expr import Expr, Name, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.choose.lower_bound import LowerBounds
from einpage.einsum_front.choose.working_set import Pattern, WorkingSets
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.document import BodyItem, Document, Repeat
from einpage.einsum_front.spec.sizes import Evaluator, Setting
from einpage.einsum_front.tile.tiling import MOST_PIECES

FIRST = 8
"""So many iterations are elaborated. Fusions reach from an iteration to its neighbours, so those in the middle see no end."""
MANY = 4000
"""Definitions that are elaborated and fused in a second: of no more than these the smallest budget itself is found."""


def least_of_first_iterations(
    document: Document, settings: Mapping[str, Setting], dtype: DType, outputs: Sequence[str], options: FuseOptions
) -> tuple[Nbytes, str] | None:
    """A lower bound of the largest working set of every split, and the value that is computed; None where this proves nothing.

    Raises SpecError, UsageError, which the whole program would raise too.
    """
    repeats = [item for item in document.body if isinstance(item, Repeat)]
    if document.states or not repeats or any(map(_asks_for_its_number, repeats)):
        return None
    program = elaborate(document, settings, FIRST)
    count = Evaluator({}, {**program.sizes, **program.scalars}, program.lists).number(repeats[0].count.expr, document.source)
    if count <= 2 * FIRST or count / FIRST * len(program.definitions) <= MANY:
        return None
    working_sets = WorkingSets(fuse(program, outputs, options), dtype)
    steady = _steady(program, working_sets)
    most = {letter: max(1, min(extent, MOST_PIECES)) for letter, extent in program.extents.items()}
    bounds = LowerBounds(working_sets, most)
    every_split = {letter: (1, top) for letter, top in most.items()}
    found = [(bounds.of(pattern, every_split), value) for value, pattern in steady]
    largest = max((nbytes for nbytes, _ in found), default=0)
    return next(((Nbytes(nbytes), value) for nbytes, value in found if nbytes == largest), None)


def _asks_for_its_number(repeat: Repeat) -> bool:
    """Whether a statement in it differs from one iteration to the next in more than the values it reads."""
    own = {repeat.variable, *(entry.name for entry in repeat.let)}
    return any(isinstance(node, Name) and node.word in own for e in _expressions(repeat.body) for node in walk(e))


def _expressions(body: Sequence[BodyItem]) -> Iterator[Expr]:
    for item in body:
        if isinstance(item, Repeat):
            yield from (item.count.expr, *(entry.expr for entry in item.let))
            yield from _expressions(item.body)
        else:
            yield from (*item.indices, item.expr)


def _steady(program: Program, working_sets: WorkingSets) -> list[tuple[str, Pattern]]:
    """Of an iteration of the first repeat, what its ops define and their patterns, where its neighbours have the same and all of every
    value is needed; else nothing."""
    iteration_by_value: dict[str, int] = {}
    last = 0
    for definition in program.definitions:
        if definition.loop:
            if definition.loop[0] < last:
                break  # the next repeat
            last = definition.loop[0]
            iteration_by_value[definition.name] = last
    ops: dict[int, list[tuple[str, Pattern]]] = {i: [] for i in range(FIRST)}
    for value, pattern in working_sets.pattern_by_value.items():
        i = iteration_by_value.get(value.partition("~")[0])  # `q.3~0` is a part of `q.3`
        if i is not None:
            ops[i].append((value, pattern))
    middle = [[pattern for _, pattern in ops[i]] for i in range(2, FIRST - 1)]
    alike = all(patterns == middle[0] for patterns in middle)
    return ops[2] if alike and all(pattern.is_whole for pattern in middle[0]) else []
