"""Which call computes a matrix product, and what that call allocates: torch.mm, or another library where the machine's figures say that it
is faster.

In: the figures, two windows as BLAS reads them. Out: windows as the other library reads them, or None. Invariant: oneDNN is given whole
packed matrices only; of others it makes copies, or multiplies them a thousand times slower. It has no `out=`: a product is allocated, then
copied. Our own kernels (on_llvm) multiply rows by a matrix that lies row by row, too, and allocate nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from einpage.einsum_front.base.dtype import Stored
from einpage.einsum_front.base.libraries import MOST_MANY_ROWS, MOST_UNPACKED_ROWS, ONLY_TORCH, Libraries
from einpage.kernels.layout.window import Window
from einpage.kernels.on_llvm.compile import why_not_llvm

PANEL_COLUMNS, MOST_PANEL_INNER = 64, 1024
"""Of the part of the second matrix that a thread of oneDNN packs at a time, at most."""
PANEL_BESIDE = 8192
"""Bytes a thread allocates beside its panel, at most."""
MOST_INNER = 1600
"""Of our own products of more than MOST_MANY_ROWS rows. The ten rows that are multiplied at a time are twice the first cache then; beyond,
libraries that pack them are faster."""


@dataclass(frozen=True, slots=True)
class Products:
    """How matrices are multiplied on one machine. Equal values make equal kernels."""

    libraries: Libraries = ONLY_TORCH
    threads: int = 1
    """What torch may use for one kernel."""

    def by_rows(self, x: Window, y: Window, stored_x: Stored | None = None, stored_y: Stored | None = None) -> ByRows | None:
        """How our own kernels compute a product; None where they are not to.

        Both are [1, rows, columns] windows, as matrix_window gives them. One may be kept as it is stored: the other is of few rows then.
        """
        (batch, rows, inner), columns = x.size, y.size[2]
        stored = stored_x or stored_y
        fewest = rows if stored_y else columns if stored_x else min(rows, columns)
        if batch != 1 or not self._are_our_own(fewest, max(rows, columns), inner, stored) or not compiles():
            return None
        if inner > 1 and not x.stride[2] == y.stride[1] == 1:
            return None
        by_rows = Window(x.operand, x.tile, (rows, inner), (x.stride[1], 1), x.offset)
        by_columns = Window(y.operand, y.tile, (columns, inner), (y.stride[2], 1), y.offset)
        return ByRows(by_columns, by_rows, True, stored) if stored_x or rows != fewest else ByRows(by_rows, by_columns, False, stored)

    def by_columns(self, x: Window, y: Window) -> ByRows | None:
        """As `by_rows`, of few rows and a matrix that lies column by column."""
        (batch, rows, inner), columns = x.size, y.size[2]
        x_turned = Window(x.operand, x.tile, (1, inner, rows), (x.stride[0], x.stride[2], x.stride[1]), x.offset)
        y_turned = Window(y.operand, y.tile, (1, columns, inner), (y.stride[0], y.stride[2], y.stride[1]), y.offset)
        ways = [(x, y, False), (y_turned, x_turned, True)]
        for few, matrix, transposed in ways if rows <= columns else reversed(ways):
            count, elements = few.size[1], inner * matrix.size[2]
            is_ours = count <= MOST_UNPACKED_ROWS and self.libraries.by_columns.is_faster(count, elements) and compiles()
            if batch == 1 and is_ours and (inner == 1 or few.stride[2] == 1) and (matrix.size[2] == 1 or matrix.stride[2] == 1):
                return ByRows(few.flat(), matrix.flat(), transposed)
        return None

    def _are_our_own(self, rows: int, columns: int, inner: int, stored: Stored | None) -> bool:
        if stored is not None:
            return rows <= MOST_UNPACKED_ROWS
        return self.libraries.compiled.is_faster(rows, columns * inner) and (rows <= MOST_MANY_ROWS or inner <= MOST_INNER)

    def windows(self, x: Window, y: Window) -> tuple[Window, Window] | None:
        """x [rows, inner] as it lies, and y transposed, [columns, inner], as oneDNN reads it; None where torch.mm is to multiply them.

        Both are [1, rows, columns] windows, as matrix_window gives them. An x that is not packed is to be copied first: that takes a small
        part of what the product takes.
        """
        (batch, rows, inner), columns = x.size, y.size[2]
        if batch != 1 or not self.libraries.onednn.is_faster(rows, inner * columns) or linear() is None:
            return None
        if is_packed(y.size[1:], y.stride[1:]):
            stride = (1, columns)
        elif is_packed((columns, inner), (y.stride[2], y.stride[1])):
            stride = (inner, 1)
        else:
            return None
        as_rows = Window(x.operand, x.tile, (rows, inner), (inner, 1), x.offset) if is_packed(x.size[1:], x.stride[1:]) else x.flat()
        return as_rows, Window(y.operand, y.tile, (columns, inner), stride, y.offset)

    def temporary_bytes(self, rows: int, inner: int, columns: int) -> int:
        """The most that oneDNN allocates for one product, its result among it."""
        return 4 * rows * columns + self.threads * (4 * PANEL_COLUMNS * min(inner, MOST_PANEL_INNER) + PANEL_BESIDE)


@dataclass(frozen=True, slots=True)
class ByRows:
    """A product as our own kernels compute it."""

    rows: Window
    """[r, inner], the elements of a row side by side; not more rows than `matrix` has, unless that is stored."""
    matrix: Window
    """[n, inner], likewise; where it lies column by column, [inner, n], the elements of a row side by side."""
    transposed: bool
    """Whether `rows` are the columns of the product, and not its rows."""
    stored: Stored | None = None
    """How the matrix is stored, where that is not as fp32 numbers."""


ONLY_MM = Products()
"""Every product is torch.mm's."""


def is_packed(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
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
