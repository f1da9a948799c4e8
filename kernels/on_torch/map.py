"""The plain-torch definition of a MapJob: pointwise statements and row reductions.

In: a job. Out: a TorchKernel with an instruction list for each block of the letters that no reduction binds. A block is read in full before
it is written, and a written block is not read again, so a result may overwrite, in place, an operand that is read at the target's own
letters. Blocks end where a clamp of an index becomes idle: most of a shifted operand is then a window. Its Triton twin is on_triton/map.py.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache

from einpage.einsum_front.algebra.expr import Axis, Expr, Letter, Num, Reduce, loads, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import MapJob, Part, results_of
from einpage.kernels.instructions.bind import bind
from einpage.kernels.instructions.compile import compile_instructions
from einpage.kernels.instructions.instruction_list import InstructionList
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.layout.affine import Affine, affine
from einpage.kernels.layout.blocks import SCRATCH_BYTES, extents, fit, regions, whole
from einpage.kernels.layout.clamps import clamp_borders, decided
from einpage.kernels.layout.flags import clear_flag, fit_cache, raise_where_not_finite
from einpage.kernels.layout.window import BoundStep, StridedTile, in_several_tiles, strided_tile, tile_borders


def prepare_map(job: MapJob, limit: int = SCRATCH_BYTES) -> TorchKernel:
    """The blocks of `job`, ready to run; temporaries stay under `limit` bytes where a row does."""
    groups: dict[frozenset[Letter], list[Part]] = defaultdict(list)
    for part in job.parts:
        groups[frozenset(i.letter for i in part.target if isinstance(i, Axis))].append(part)
    steps: list[BoundStep] = []
    peak_bytes = 0
    for parts in groups.values():
        more, nbytes = _group(job, parts, limit)
        steps += more
        peak_bytes = max(peak_bytes, nbytes)
    if job.result.is_checked:
        steps.insert(0, clear_flag(len(job.reads)))
    return TorchKernel(tuple(steps), (), peak_bytes)


def _group(job: MapJob, parts: list[Part], limit: int) -> tuple[list[BoundStep], int]:
    """Steps for parts with the same target letters, and the bytes of their temporaries. One list: what they share is computed once."""
    results = [tile for part in parts if (tile := _result(job, part)) is not None]
    parts = [part for part in parts if _result(job, part) is not None]
    if not parts:
        return [], 0
    region = whole(job.ranges)
    order = _order(job, parts)
    target = frozenset(i.letter for i in parts[0].target if isinstance(i, Axis))
    direct = [target if results_of(job)[p.result].dtype is DType.FP32 else None for p in parts]
    extent = extents(region)

    @lru_cache
    def compiled(expressions: tuple[Expr, ...]) -> InstructionList:
        return compile_instructions(expressions, order, extent, job.reads, direct, computed_first=bool(job.others))

    expressions = tuple(p.expr for p in parts)
    listed = compiled(expressions)
    bound = {letter for p in parts for e in walk(p.expr) if isinstance(e, Reduce) for letter in e.letters}
    free = [x for x in order if x in target and x not in bound]
    several = in_several_tiles(job.reads)
    size = fit({x: extent[x] for x in order}, free, lambda e: listed.peak_bytes(e, several), limit)
    if job.result.is_checked:
        size = fit_cache(size, free, target, job.result.dtype)
    borders = tile_borders(job.reads, (load for e in expressions for load in loads(e)))
    clamped = clamp_borders(expressions, free, region)
    for letter, places in clamped.items():
        borders[letter] |= places
    steps, peak_bytes = [], 0 if clamped else listed.peak_bytes(size, several)
    for block in regions({x: region[x] for x in order}, free, size, borders):
        here = listed
        if clamped:
            here = compiled(tuple(decided(e, block) for e in expressions))
            peak_bytes = max(peak_bytes, here.peak_bytes(extents(block), several))
        written = [t.window(order, block) for t in results]
        steps.append(bind(here, block, job.reads, {}, written))
        if job.result.is_checked:
            steps += map(raise_where_not_finite, written)
    return steps, peak_bytes


def _order(job: MapJob, parts: list[Part]) -> tuple[Letter, ...]:
    """Target letters as they lie in the result, then the bound ones."""
    used = {letter for p in parts for e in (*p.target, p.expr) for letter in _letters(e)}
    target = tuple(dict.fromkeys(i.letter for i in parts[0].target if isinstance(i, Axis)))
    return (*target, *(r.letter for r in job.ranges if r.letter in used and r.letter not in target))


def _letters(e: Expr) -> set[Letter]:
    return {n.letter for n in walk(e) if isinstance(n, Axis)} | {x for n in walk(e) if isinstance(n, Reduce) for x in n.letters}


def _result(job: MapJob, part: Part) -> StridedTile | None:
    """The result as the part's target sees it; None for a part whose number lies outside the tile."""
    view = results_of(job)[part.result]
    box = view.boxes[0]
    indices: list[Affine] = []
    for d, e in enumerate(part.target):
        assert isinstance(e, Axis | Num), "a target index is a letter or a number"
        index = affine(e)
        assert index is not None
        if not index.terms and not box.start[d] <= index.const < box.end[d]:
            return None
        indices.append(index)
    return strided_tile(box, len(job.reads), part.result, view.dtype, indices)
