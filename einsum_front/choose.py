"""Choosing the split: the coarsest under which every task's working set leaves room to prefetch the next.

In: an OpGraph, the budget, the splits a person fixed. Out: splits to try, best first. A task's working set is counted as the planner
counts it (aligned operands + result, 0 for a result that takes over an operand). The op with the largest working set is cut along
the letter that shrinks it most, until all fit the target; at the finest split the largest working set is the smallest budget there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from einpage.einsum_front.dtype import DType
from einpage.einsum_front.expr import Letter
from einpage.einsum_front.grids import Grid, host_grids, templates_of
from einpage.einsum_front.opgraph import FusedOp, GatherOp, OpGraph, op_loads
from einpage.einsum_front.split import accumulator_box, check_pieces, cuts_by_letter, declared_values, sketch
from einpage.einsum_front.taskgraph import Kind, Value
from einpage.einsum_front.template import Template, Tile, result_cuts, tiles
from einpage.einsum_front.tiling import Cuts, most_pieces, own_cuts, tiling_of

ALIGNMENT = 256
"""Bytes; the planner's own figure (memplan.memgraph.ALIGNMENT), checked equal by a test."""

ROOMS = (4, 2, 1)
"""A task should take at most a fourth of the budget, so that its successors' operands can come in while it runs; failing that a
half, failing that all of it."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A split and what it needs."""

    pieces: tuple[tuple[Letter, int], ...]
    """Sorted by letter; letters left whole are absent."""
    largest_bytes: int
    """The largest working set of a task, from a sample of each op's tiles: exact but for ragged corners, never too much."""
    task: str
    """The value whose task that is."""

    @property
    def by_letter(self) -> dict[Letter, int]:
        return dict(self.pieces)


def candidates(opgraph: OpGraph, dtype: DType, budget_bytes: int, fixed: Mapping[Letter, int] | None = None) -> list[Choice]:
    """Splits to try, the best first: the coarsest whose working sets fit a fourth of the budget, then half, then all of it.

    Behind it come the finer ones, and where none fits, the one with the smallest working set, alone. Raises UsageError for a `fixed`
    split that cannot be.
    """
    path = []
    for choice in coarse_to_fine(opgraph, dtype, fixed or {}):
        path.append(choice)
        if choice.largest_bytes * ROOMS[0] <= budget_bytes:
            return [choice]
    for room in ROOMS:
        for i, choice in enumerate(path):
            if choice.largest_bytes * room <= budget_bytes:
                return path[i:]
    return [min(path, key=lambda choice: choice.largest_bytes)]


def coarse_to_fine(opgraph: OpGraph, dtype: DType, fixed: Mapping[Letter, int]) -> Iterator[Choice]:
    """Splits from the coarsest on: each cuts the op whose task is largest along the letter that shrinks it most, while one does."""
    check_pieces(opgraph, fixed)
    most = most_pieces(map(tiling_of, opgraph.ops), opgraph.program.extents)
    sizer = Sizer(opgraph, dtype)
    pieces = dict(fixed)
    now = sizer.measure(pieces)
    yield now
    while (finer := _finer(opgraph, sizer, pieces, fixed, most, now)) is not None:
        pieces, now = finer
        yield now


def _finer(
    opgraph: OpGraph, sizer: Sizer, pieces: Mapping[Letter, int], fixed: Mapping[Letter, int], most: Mapping[Letter, int], now: Choice
) -> tuple[dict[Letter, int], Choice] | None:
    """`pieces` with one more cut of the op that is largest now; None where no cut of it helps."""
    (op,) = (op for op in opgraph.ops if op.value == now.task)
    cuttable = [letter for letter, _ in sizer.templates[op.value][0].tiling.inside]
    found: list[tuple[int, int, Letter, dict[Letter, int]]] = []
    for position, letter in enumerate(cuttable):
        if letter in fixed:
            continue
        have = pieces.get(letter, 1)
        if have == most[letter]:
            continue
        candidate = {**pieces, letter: min(2 * have, most[letter])}
        found.append((sizer.footprint(op, candidate), position, letter, candidate))
    here = sizer.footprint(op, dict(pieces))
    for footprint, _, _, candidate in sorted(found, key=lambda f: f[:2]):
        if footprint < here:
            return candidate, sizer.measure(candidate)
    return None


class Sizer:
    """Working sets of ops under many splits, remembered: layers share templates, and a split touches few of them."""

    def __init__(self, opgraph: OpGraph, dtype: DType) -> None:
        self.opgraph, self.dtype = opgraph, dtype
        self.values: dict[str, Value] = declared_values(opgraph, dtype)
        self.templates = templates_of(opgraph, self.values)
        self.last_reader = {load.name: op.value for op in opgraph.ops for load in op_loads(op)}
        self.known: dict[tuple[object, ...], int] = {}

    def measure(self, pieces: Mapping[Letter, int]) -> Choice:
        """The largest working set under `pieces`, and whose it is."""
        cut = cuts_by_letter(self.opgraph, pieces)
        host = host_grids(self.templates, cut, self.values)
        largest, task = max(((self._footprint(op, cut, host), op.value) for op in self.opgraph.ops), key=lambda f: f[0])
        real = tuple((letter, len(c) - 1) for letter, c in sorted(cut.items()) if len(c) > 2)
        return Choice(real, largest, task)

    def footprint(self, op: FusedOp, pieces: Mapping[Letter, int]) -> int:
        """The largest working set of a task of `op`, in bytes."""
        cut = cuts_by_letter(self.opgraph, pieces)
        return self._footprint(op, cut, host_grids(self.templates, cut, self.values))

    def _footprint(self, op: FusedOp, cut: Mapping[Letter, Cuts], host: Mapping[str, Grid]) -> int:
        template, names = self.templates[op.value]
        grids = tuple(host[n] if n in host else Grid(result_cuts(self.templates[n][0], cut)) for n in names)
        dtypes = tuple(self.values[n].dtype for n in names)
        dying = tuple(self.values[n].kind is Kind.ACTIVATION and self.last_reader[n] == op.value for n in names)
        own = own_cuts(template.tiling, cut)
        key = (template, grids, dtypes, dying, tuple(own[letter] for letter, _ in template.tiling.inside))
        if key not in self.known:
            grid = Grid(result_cuts(template, cut))
            self.known[key] = max(self._task_bytes(template, tile, grids, dtypes, dying, grid) for tile in tiles(template, cut, few=True))
        return self.known[key]

    def _task_bytes(
        self, template: Template, tile: Tile, grids: tuple[Grid, ...], dtypes: tuple[DType, ...], dying: tuple[bool, ...], grid: Grid
    ) -> int:
        s = sketch(template, tile, grids, dtypes, grid.cuts, self.dtype)
        (result,) = s.job.result.boxes
        total = 0 if any(dying[i] for i in s.inplace) else _aligned(result.size * s.job.result.dtype.nbytes)
        if isinstance(template.op, GatherOp):
            return total
        if tile.link > 0:
            box = accumulator_box(template.op, tile.box)
            total += _aligned(box.size * DType.FP32.nbytes)
            if tile.link < tile.links - 1:
                total -= _aligned(result.size * s.job.result.dtype.nbytes)
        for view in s.job.reads[: len(template.slots)]:
            total += sum(_aligned(box.size * view.dtype.nbytes) for box in view.boxes)
        return total


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
