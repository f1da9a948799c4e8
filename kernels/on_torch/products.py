"""Which call computes a matrix product, and what that call allocates: torch.mm, or another library where the machine's figures say that it
is faster.

In: the figures, two windows as BLAS reads them. Out: windows as the other library reads them, or None. Invariant: oneDNN is given whole
packed matrices only; of others it makes copies, or multiplies them a thousand times slower. It has no `out=`: a product is allocated, then
copied. numpy's dot products are those of a matrix that lies row by row with one vector; each is the same whatever other rows there are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from einpage.einsum_front.base.libraries import ONLY_TORCH, Libraries
from einpage.kernels.layout.window import Window

PANEL_COLUMNS, MOST_PANEL_INNER = 64, 1024
"""Of the part of the second matrix that a thread of oneDNN packs at a time, at most."""
PANEL_BESIDE = 8192
"""Bytes a thread allocates beside its panel, at most."""
MOST_DOT = 8192
"""Elements of a dot product: of longer ones numpy's library may have several threads add the parts, as torch's threads are not told."""


@dataclass(frozen=True, slots=True)
class Products:
    """How matrices are multiplied on one machine. Equal values make equal kernels."""

    libraries: Libraries = ONLY_TORCH
    threads: int = 1
    """What torch may use for one kernel."""

    def dots(self, x: Window, y: Window) -> tuple[Window, Window] | None:
        """The matrix [n, inner] and the vector [inner] of a product of one row or one column; None where numpy is not to compute it.

        Both are [1, rows, columns] windows, as matrix_window gives them.
        """
        (batch, rows, inner), columns, least = x.size, y.size[2], self.libraries.dots
        if least is None or batch != 1 or min(rows, columns) != 1 or inner > MOST_DOT or max(rows, columns) * inner < least:
            return None
        if rows == 1:
            matrix = Window(y.operand, y.tile, (columns, inner), (y.stride[2], y.stride[1]), y.offset)
            vector = Window(x.operand, x.tile, (inner,), (x.stride[2],), x.offset)
        else:
            matrix = Window(x.operand, x.tile, (rows, inner), (x.stride[1], x.stride[2]), x.offset)
            vector = Window(y.operand, y.tile, (inner,), (y.stride[1],), y.offset)
        return (matrix, vector) if inner == 1 or matrix.stride[1] == vector.stride[0] == 1 else None

    def windows(self, x: Window, y: Window) -> tuple[Window, Window] | None:
        """x [rows, inner] and y transposed, [columns, inner], as oneDNN reads them; None where torch.mm is to multiply them.

        Both are [1, rows, columns] windows, as matrix_window gives them.
        """
        (batch, rows, inner), columns = x.size, y.size[2]
        if batch != 1 or not self.libraries.onednn.is_faster(rows, inner * columns) or linear() is None:
            return None
        if not _packed(x.size[1:], x.stride[1:]):
            return None
        if _packed(y.size[1:], y.stride[1:]):
            stride = (1, columns)
        elif _packed((columns, inner), (y.stride[2], y.stride[1])):
            stride = (inner, 1)
        else:
            return None
        return (
            Window(x.operand, x.tile, (rows, inner), (inner, 1), x.offset),
            Window(y.operand, y.tile, (columns, inner), stride, y.offset),
        )

    def temporary_bytes(self, rows: int, inner: int, columns: int) -> int:
        """The most that oneDNN allocates for one product, its result among it."""
        return 4 * rows * columns + self.threads * (4 * PANEL_COLUMNS * min(inner, MOST_PANEL_INNER) + PANEL_BESIDE)


ONLY_MM = Products()
"""Every product is torch.mm's."""


def _packed(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether a matrix lies row by row with nothing between; of one row or column no stride matters."""
    (rows, columns), (of_row, of_column) = size, stride
    return (columns == 1 or of_column == 1) and (rows == 1 or of_row == columns)


@cache
def linear() -> Callable[[Tensor, Tensor], Tensor] | None:
    """`x [rows, inner], w [columns, inner] -> x w^T` by oneDNN, in fp32; None where torch was built without it."""
    available: Callable[[], bool] = torch.backends.mkldnn.is_available
    if not available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    call: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    return lambda x, w: call(x, w, None, "none", [], "")
