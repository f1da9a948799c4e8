"""The plain-torch definition of a MapJob: pointwise statements and row reductions.

In: a job. Out: a program of tapes, one for each block of the letters that no reduction binds. A block is read in full before it is written,
and a written block is not read again, so the result may take over the bytes of an operand that is read at the target's own letters.
"""

from __future__ import annotations

from collections import defaultdict

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Num, Reduce, loads, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import MapJob, Part
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_tape
from einpage.kernels.instructions.torch_kernel import Program
from einpage.kernels.layout.affine import Affine, affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, extents, fit, regions, whole
from einpage.kernels.layout.window import Op, Tile, cuts, tile_of


def map_program(job: MapJob, limit: int = SCRATCH_BYTES) -> Program:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a row does."""
    groups: dict[frozenset[Letter], list[Part]] = defaultdict(list)
    for part in job.parts:
        groups[frozenset(i.letter for i in part.target if isinstance(i, Axis))].append(part)
    ops: list[Op] = []
    peak = 0
    for parts in groups.values():
        more, bytes_ = _group(job, parts, limit)
        ops += more
        peak = max(peak, bytes_)
    return Program(tuple(ops), (), peak)


def _group(job: MapJob, parts: list[Part], limit: int) -> tuple[list[Op], int]:
    """Parts with the same target letters: one tape, so that what they share is computed once."""
    results = [tile for part in parts if (tile := _result(job, part)) is not None]
    parts = [part for part in parts if _result(job, part) is not None]
    if not parts:
        return [], 0
    region = whole(job.ranges)
    order = _order(job, parts)
    target = frozenset(i.letter for i in parts[0].target if isinstance(i, Axis))
    direct = target if job.result.dtype is DType.FP32 else None
    row = extents(region)
    tape = compile_tape([p.expr for p in parts], order, row, job.reads, [direct] * len(parts))
    bound = {letter for p in parts for e in walk(p.expr) if isinstance(e, Reduce) for letter in e.letters}
    free = [x for x in order if x in target and x not in bound]
    split = frozenset(i for i, view in enumerate(job.reads) if len(view.boxes) > 1)
    size = fit({x: row[x] for x in order}, free, lambda e: tape.peak_bytes(e, split), limit)
    borders: dict[Letter, set[int]] = defaultdict(set)
    for e in {load for p in parts for load in loads(p.expr)}:
        view = next(v for v in job.reads if v.name == e.name)
        for letter, places in cuts(view, e).items():
            borders[letter] |= places
    ops = []
    for block in regions({x: region[x] for x in order}, free, size, borders):
        ops.append(bind(tape, block, job.reads, {}, [t.window(order, block) for t in results]))
    return ops, tape.peak_bytes(size, split)


def _order(job: MapJob, parts: list[Part]) -> tuple[Letter, ...]:
    """Target letters as they lie in the result, then the bound ones."""
    used = {letter for p in parts for e in (*p.target, p.expr) for letter in _letters(e)}
    first = [i.letter for i in parts[0].target if isinstance(i, Axis)]
    return (*dict.fromkeys(first), *(r.letter for r in job.ranges if r.letter in used and r.letter not in first))


def _letters(e: Expr) -> set[Letter]:
    return {n.letter for n in walk(e) if isinstance(n, Axis)} | {x for n in walk(e) if isinstance(n, Reduce) for x in n.letters}


def _result(job: MapJob, part: Part) -> Tile | None:
    """The result as the part's target sees it; None for a part whose number lies outside the tile."""
    box = job.result.boxes[0]
    dims: list[Affine] = []
    for d, index in enumerate(part.target):
        assert isinstance(index, Axis | Num), "a target index is a letter or a number"
        form = affine(index)
        assert form is not None
        if not form.terms and not box.start[d] <= form.const < box.end[d]:
            return None
        dims.append(form)
    return tile_of(box, len(job.reads), 0, job.result.dtype, dims)
