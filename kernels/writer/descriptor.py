"""Which factors of a matrix product are plain matrices: letters joined to one index, and what the GPU's copy engine (TMA) can read.

In: a load, the letters along its two sides. Out: runs of letters that one index can stand for; a descriptor, or None where the factor
lies in several tiles, its letters do not join, or its rows do not start at multiples of 16 bytes. The same of a result, to be written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import Expr, Letter, Load
from einpage.einsum_front.graph.job import View
from einpage.kernels.layout.affine import Affine, address, affine
from einpage.kernels.writer.launch import RESULT, Descriptor
from einpage.kernels.writer.writer import Writer

ALIGNED = 16
"""Bytes that a matrix and each of its rows start at a multiple of."""


def joined(w: Writer, letters: Sequence[Letter], strides: Sequence[Mapping[Letter, int]]) -> list[tuple[Letter, ...]]:
    """`letters` in runs that one index can stand for: in every address the outer letter moves as far as all of the inner one.

    The last letter of a run carries its index, the others are 0. Letters of extent 1 join the first run.
    """
    extent = {x: w.range_by_letter[x].extent for x in letters}
    longer = [x for x in letters if extent[x] > 1] or list(letters[-1:])
    out: list[list[Letter]] = []
    for letter in longer:
        if out and all(s.get(out[-1][-1], 0) == s.get(letter, 0) * extent[letter] for s in strides):
            out[-1].append(letter)
        else:
            out.append([letter])
    if out:
        out[0][:0] = [x for x in letters if x not in longer]
    return [tuple(run) for run in out]


def descriptor_of(
    w: Writer, load: Load, letters: Sequence[Letter], inner: Sequence[tuple[Letter, ...]], lanes: int, steps: int
) -> tuple[Descriptor, bool] | None:
    """The factor as a matrix read in blocks of `lanes` of `letters` by `steps` of `inner`, and whether `letters` are contiguous."""
    operand, indices = w.operand_by_name[load.name], w.affine_indices(load)
    view = w.reads[operand]
    met = [j for j, box in enumerate(view.boxes) if w.meets(box, indices)]
    if len(met) != 1 or len(inner) != 1:
        return None
    return _matrix(w, operand, met[0], view, indices, letters, inner[0], (lanes, steps))


def result_descriptor(
    w: Writer, target: Sequence[Expr], rows: Sequence[Letter], columns: Sequence[Letter], block: tuple[int, int]
) -> Descriptor | None:
    """The result, `target` its indices, as a matrix written in blocks; None where the engine cannot, or its columns are not contiguous."""
    indices = [affine(i) for i in target]
    runs = joined(w, columns, [dict(address(w.result.boxes[0], indices).terms)])
    found = _matrix(w, RESULT, 0, w.result, indices, rows, runs[0], block) if len(runs) == 1 else None
    return None if found is None or found[1] else found[0]


def _matrix(
    w: Writer,
    operand: int,
    tile: int,
    view: View,
    indices: Sequence[Affine | None],
    letters: Sequence[Letter],
    inner: tuple[Letter, ...],
    lanes_by_steps: tuple[int, int],
) -> tuple[Descriptor, bool] | None:
    """`letters` by `inner`, an index that stands for a run of letters; and whether `letters` are contiguous."""
    box = view.boxes[tile]
    strides = {x: c for x, c in address(box, indices).terms if w.range_by_letter[x].extent > 1}
    runs = joined(w, letters, [strides])
    if len(runs) != 1 or not set(strides) <= {*letters, *inner}:
        return None
    across, along = strides.get(runs[0][-1], 0), strides.get(inner[-1], 0)
    extents = tuple(prod(w.range_by_letter[x].extent for x in run) for run in (runs[0], inner))
    transposed = across == 1
    stride, within_row = (along, across) if transposed else (across, along)
    offset = w.lowest_reached(box, indices)
    if within_row != 1 or stride <= 1 or any(n * view.dtype.nbytes % ALIGNED for n in (offset, stride)):
        return None
    shape, block = (extents[0], extents[1]), lanes_by_steps
    if transposed:
        shape, block = (shape[1], shape[0]), (block[1], block[0])
    return Descriptor(operand, tile, offset, shape, (stride, 1), block), transposed
