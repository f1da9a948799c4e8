"""A packed copy of a box that several tiles hold together."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from einpage.einsum_front.graph.job import Box, View
from einpage.kernels.layout.affine import row_major
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE
from einpage.kernels.layout.window import JobBuffers, Window


def assemble(view: View, operand: int, box: Box, holes: bool = False) -> Callable[[JobBuffers], Tensor]:
    """What copies `box` from the tiles of `view` into a new packed tensor; with `holes` the tiles need not cover all of it."""
    copies = []
    covered = 0
    for j, b in enumerate(view.boxes):
        if b.intersects(box):
            inner = Box(tuple(map(max, b.start, box.start)), tuple(map(min, b.end, box.end)))
            covered += inner.size
            source = Window(operand, j, inner.shape, row_major(b.shape), _offset(b, inner.start))
            copies.append((source, inner.shape, row_major(box.shape), _offset(box, inner.start)))
    assert holes or covered == box.size, f"the tiles of {view.name} hold {covered} of the {box.size} elements of {box}"
    dtype, shape = TORCH_DTYPE[view.dtype], box.shape

    def assembled(buffers: JobBuffers) -> Tensor:
        out = torch.empty(shape, dtype=dtype)
        for window, size, stride, offset in copies:
            out.as_strided(size, stride, offset).copy_(window.of(buffers))
        return out

    return assembled


def _offset(box: Box, at: tuple[int, ...]) -> int:
    return sum((a - b) * step for a, b, step in zip(at, box.start, row_major(box.shape), strict=True))
