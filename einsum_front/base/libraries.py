"""Which library computes which matrix products: figures of a machine, measured. What is nobody else's is torch.mm's.

A product's shape class is how many rows its first matrix has. In each class oneDNN is faster from some size of the second matrix on (a
call costs it more, an element less), or never. Few rows are multiplied by kernels that are compiled for the processor at hand, which read
the matrix once and as fast as memory gives it: from some size on that is faster than either, or never.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST_FEW_ROWS = 15
"""Up to so many rows a product takes about as long as its second matrix takes to be read; beyond, arithmetic decides."""
MOST_MANY_ROWS = 127
"""Up to so many rows a call's own cost tells, too; beyond, hardly."""


@dataclass(frozen=True, slots=True)
class OneDnn:
    """By shape class, how many elements the second matrix has at least where oneDNN is faster; None: it never is."""

    one_row: int | None = None
    few_rows: int | None = None
    """Of 2 to MOST_FEW_ROWS rows."""
    many_rows: int | None = None
    """Of up to MOST_MANY_ROWS rows."""
    most_rows: int | None = None

    def is_faster(self, rows: int, elements: int) -> bool:
        """Whether oneDNN multiplies a matrix of `rows` rows by one of `elements` elements faster."""
        ends = ((1, self.one_row), (MOST_FEW_ROWS, self.few_rows), (MOST_MANY_ROWS, self.many_rows))
        least = next((least for most, least in ends if rows <= most), self.most_rows)
        return least is not None and elements >= least


NO_ONEDNN = OneDnn()
"""Every product is another's."""
ALL_ONEDNN = OneDnn(0, 0, 0, 0)
"""Every product is oneDNN's that it can do and our own kernels do not."""


MOST_COMPILED_ROWS = 16
"""What our own kernels keep sums of."""


@dataclass(frozen=True, slots=True)
class CompiledRows:
    """By shape class, how many elements the second matrix has at least where our own kernels are faster; None: they never are."""

    one_row: int | None = None
    few_rows: int | None = None
    """Of 2 to 8 rows."""
    more_rows: int | None = None
    """Of up to MOST_COMPILED_ROWS rows."""

    def are_faster(self, rows: int, elements: int) -> bool:
        """Whether they multiply a matrix of `rows` rows by one of `elements` elements faster."""
        ends = ((1, self.one_row), (8, self.few_rows), (MOST_COMPILED_ROWS, self.more_rows))
        least = next((least for most, least in ends if rows <= most), None)
        return least is not None and elements >= least


NO_COMPILED_ROWS = CompiledRows()
"""Every product is another's."""
ALL_COMPILED_ROWS = CompiledRows(0, 0, 0)
"""Every product is our own kernels' that they can do."""


@dataclass(frozen=True, slots=True)
class Libraries:
    """What is not torch.mm's."""

    onednn: OneDnn = NO_ONEDNN
    compiled: CompiledRows = NO_COMPILED_ROWS
    """Comes before oneDNN."""


ONLY_TORCH = Libraries()
"""Every product is torch.mm's."""
