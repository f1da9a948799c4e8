"""Which factors of a matrix product are plain matrices: letters joined to one index, and what the GPU's copy engine (TMA) can read.

In: a load, the letters along its two sides. Out: runs of letters that one index can stand for; a descriptor, or None where the factor
lies in several tiles, its letters do not join, or its rows do not start at multiples of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from einpage.einsum_front.algebra.expr import Letter, Load
from einpage.kernels.layout.affine import address
from einpage.kernels.writer.launch import Descriptor
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
    box = view.boxes[met[0]]
    strides = {x: c for x, c in address(box, indices).terms if w.range_by_letter[x].extent > 1}
    runs = joined(w, letters, [strides])
    if len(runs) != 1 or not set(strides) <= {*letters, *inner[0]}:
        return None
    across, along = strides.get(runs[0][-1], 0), strides.get(inner[0][-1], 0)
    extents = tuple(prod(w.range_by_letter[x].extent for x in run) for run in (runs[0], inner[0]))
    transposed = across == 1
    stride, within_row = (along, across) if transposed else (across, along)
    offset = w.lowest_reached(box, indices)
    if within_row != 1 or stride <= 1 or any(n * view.dtype.nbytes % ALIGNED for n in (offset, stride)):
        return None
    shape, block = (extents[0], extents[1]), (lanes, steps)
    if transposed:
        shape, block = (shape[1], shape[0]), (block[1], block[0])
    return Descriptor(operand, met[0], offset, shape, stride, block), transposed
