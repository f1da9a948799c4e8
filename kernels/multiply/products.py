"""Which call computes a matrix product, and what that call allocates: torch.mm, or another library where the machine's figures say that it
is faster.

In: the figures, two windows as BLAS reads them. Out: windows as the other library reads them, or None. Invariant: oneDNN is given whole
packed matrices only; of others it makes copies, or multiplies them a thousand times slower. It has no `out=`: a product is allocated, then
copied. Our own kernels (on_llvm/row_products.py) multiply few rows by a matrix that lies row by row, and allocate nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from einpage.einsum_front.base.dtype import Stored
from einpage.einsum_front.base.libraries import ALL_COMPILED_ROWS, ONLY_TORCH, Libraries
from einpage.kernels.layout.window import Window
from einpage.kernels.on_llvm.compile import why_not_llvm

PANEL_COLUMNS, MOST_PANEL_INNER = 64, 1024
"""Of the part of the second matrix that a thread of oneDNN packs at a time, at most."""
PANEL_BESIDE = 8192
"""Bytes a thread allocates beside its panel, at most."""


@dataclass(frozen=True, slots=True)
class Products:
    """How matrices are multiplied on one machine. Equal values make equal kernels."""

    libraries: Libraries = ONLY_TORCH
    threads: int = 1
    """What torch may use for one kernel."""

    def few_rows(self, x: Window, y: Window, stored_x: Stored | None = None, stored_y: Stored | None = None) -> FewRows | None:
        """How our own kernels compute a product of few rows or few columns; None where they are not to.

        Both are [1, rows, columns] windows, as matrix_window gives them. One may be kept as it is stored: the other is of few then.
        """
        (batch, rows, inner), columns = x.size, y.size[2]
        stored = stored_x or stored_y
        fewest = rows if stored_y else columns if stored_x else min(rows, columns)
        chosen = self.libraries.compiled if stored is None else ALL_COMPILED_ROWS
        if batch != 1 or not chosen.are_faster(fewest, max(rows, columns) * inner) or not compiles():
            return None
        if inner > 1 and not x.stride[2] == y.stride[1] == 1:
            return None
        by_rows = Window(x.operand, x.tile, (rows, inner), (x.stride[1], 1), x.offset)
        by_columns = Window(y.operand, y.tile, (columns, inner), (y.stride[2], 1), y.offset)
        return FewRows(by_columns, by_rows, True, stored) if stored_x or rows != fewest else FewRows(by_rows, by_columns, False, stored)

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


@dataclass(frozen=True, slots=True)
class FewRows:
    """A product as our own kernels compute it."""

    few: Window
    """[r, inner], the elements of a row side by side."""
    matrix: Window
    """[n, inner], likewise."""
    transposed: bool
    """Whether `few` are the columns of the product, and not its rows."""
    stored: Stored | None = None
    """How the matrix is stored, where that is not as fp32 numbers."""


ONLY_MM = Products()
"""Every product is torch.mm's."""


def _packed(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether a matrix lies row by row with nothing between; of one row or column no stride matters."""
    (rows, columns), (of_row, of_column) = size, stride
    return (columns == 1 or of_column == 1) and (rows == 1 or of_row == columns)


def compiles() -> bool:
    """Whether our own kernels can be had on this machine."""
    return why_not_llvm() is None


@cache
def linear() -> Callable[[Tensor, Tensor], Tensor] | None:
    """`x [rows, inner], w [columns, inner] -> x w^T` by oneDNN, in fp32; None where torch was built without it."""
    available: Callable[[], bool] = torch.backends.mkldnn.is_available
    if not available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return None
    call: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    return lambda x, w: call(x, w, None, "none", [], "")
