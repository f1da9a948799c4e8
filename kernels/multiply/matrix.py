"""The letters of a product sorted into batch, rows, columns and inner, and factors seen as the matrices that BLAS reads.

In: the tiles of x and y, where the product goes, a region. Out: `Roles`; three-dimensional windows, or None where a factor must be packed
first: its letters do not lie one stride apart, it is not fp32, or it is spread over several tiles. What is kept as it is
stored lies as the fp32 numbers that its blocks are unpacked into.

    q[b,s,k,g] = h[b,s,m] * w[k,g,m]      rows (b,s)  columns (k,g)  inner (m):  [S, M] x [M, N], no copy
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from einpage.einsum_front.algebra.expr import Axis, Letter, Load, Num, Region
from einpage.einsum_front.base.dtype import DType, Stored
from einpage.einsum_front.graph.job import View
from einpage.kernels.layout.window import StridedTile, Window, affine_indices, strided_tiles

Letters = tuple[Letter, ...]
MOST_BATCHES = 64
"""Products that a batch may be split into so that none of them is packed: packing then costs less than launching them."""


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of each letter of a product, each group in the order in which it is laid out."""

    batch: Letters
    """In x, y and the product."""
    rows: Letters
    """In x and the product."""
    columns: Letters
    """In y and the product."""
    inner: Letters
    """Summed."""

    @property
    def out(self) -> Letters:
        """All letters of the product, in its order."""
        return self.batch + self.rows + self.columns

    @property
    def of_x(self) -> tuple[Letters, Letters, Letters]:
        """The groups of x as a matrix: (batch, rows, columns)."""
        return self.batch, self.rows, self.inner

    @property
    def of_y(self) -> tuple[Letters, Letters, Letters]:
        """The groups of y as a matrix: (batch, rows, columns)."""
        return self.batch, self.inner, self.columns

    @property
    def of_out(self) -> tuple[Letters, Letters, Letters]:
        """The groups of the product as a matrix: (batch, rows, columns)."""
        return self.batch, self.rows, self.columns


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of a product: the tiles that hold it."""

    tiles: tuple[StridedTile, ...]
    letters: Letters
    """As they lie in memory, outermost first."""
    name: str

    def at(self, region: Region) -> list[StridedTile]:
        """The tiles that have elements in `region`."""
        return [t for t in self.tiles if t.intersects(region)]


def factor_of(load: Load, reads: Sequence[View]) -> Factor:
    """A load of a product, indexed by letters and numbers, as one side of it."""
    operand = next(i for i, v in enumerate(reads) if v.name == load.name)
    assert all(isinstance(i, Axis | Num) for i in load.indices), "a product's loads are indexed by letters and numbers"
    indices = affine_indices(load)
    assert indices is not None
    letters = tuple(dict.fromkeys(i.letter for i in load.indices if isinstance(i, Axis)))
    return Factor(strided_tiles(reads[operand], operand, indices), letters, load.name)


def assign_roles(x: Factor, y: Factor, inner: Sequence[Letter], out: StridedTile | None, out_letters: Letters, region: Region) -> Roles:
    """Roles of the letters, in the order that packs the fewest bytes on the given region."""
    in_x, in_y = set(x.letters), set(y.letters)
    batch = [c for c in out_letters if c in in_x and c in in_y]
    rows = [c for c in out_letters if c in in_x and c not in in_y]
    columns = [c for c in out_letters if c in in_y and c not in in_x]

    def orders(letters: list[Letter], *by: Letters) -> list[Letters]:
        return list(dict.fromkeys((tuple(letters), *(tuple(c for c in other if c in letters) for other in by))))

    inner_orders = [tuple(dict.fromkeys(c for c in both if c in inner)) for both in (x.letters + y.letters, y.letters + x.letters)]
    best: tuple[int, Roles] | None = None
    for b, r, c, k in product(
        orders(batch, x.letters, y.letters), orders(rows, x.letters), orders(columns, y.letters), dict.fromkeys(inner_orders)
    ):
        roles = Roles(b, r, c, k)
        cost = 0 if out is not None and matrix_window(out, region, roles.of_out) is not None else _size(region, roles.out)
        cost += 0 if factor_window(x, region, roles.of_x) is not None else _size(region, b + r + k)
        cost += 0 if factor_window(y, region, roles.of_y) is not None else _size(region, b + k + c)
        if best is None or cost < best[0]:
            best = cost, roles
    assert best is not None
    return best[1]


def _size(region: Region, letters: Letters) -> int:
    return prod(region[x][1] - region[x][0] for x in letters)


def letters_one_by_one(batch: Letters, region: Region, needs_no_copy: Callable[[Region], bool]) -> Letters:
    """The outer batch letters to take one value at a time so that what is left needs no copy; none where that cannot pay."""
    for n in range(len(batch)):
        one = dict(region) | {c: (region[c][0], region[c][0] + 1) for c in batch[:n]}
        if needs_no_copy(one):
            return batch[:n] if _size(region, batch[:n]) <= MOST_BATCHES else ()
    return ()


def needs_no_copy(factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters]) -> bool:
    """True where BLAS can read the factor's first tile where it lies."""
    tile = factor.tiles[0]
    return is_read_as_fp32(tile) and matrix_window(tile, clip(tile, region), roles) is not None


def clip(tile: StridedTile, region: Region) -> dict[Letter, tuple[int, int]]:
    """The share of `region` that `tile` holds, for loads by bare letters."""
    part = dict(region)
    for a, lo, hi in tile.bounds:
        if len(a.terms) == 1 and a.terms[0][1] == 1:
            letter = a.terms[0][0]
            part[letter] = (max(part[letter][0], lo - a.const), min(part[letter][1], hi - a.const))
    return part


def is_read_as_fp32(tile: StridedTile) -> bool:
    """Whether it is fp32 numbers, or blocks that are unpacked into such."""
    return tile.dtype is DType.FP32 or isinstance(tile.dtype, Stored)


def factor_window(factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters]) -> Window | None:
    """The factor as a [batch, rows, columns] matrix that BLAS can read where it lies, or None."""
    found = factor.at(region)
    if len(found) != 1 or not is_read_as_fp32(found[0]) or not found[0].contains(region):
        return None
    return matrix_window(found[0], region, roles)


def stored_window(factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters]) -> tuple[Window | None, Stored | None]:
    """The factor as a matrix of numbers in blocks, and how they are stored; None where they are not, or not as our kernels read them."""
    found = factor.at(region)
    stored = found[0].dtype if found else None
    if not isinstance(stored, Stored):
        return None, None
    window = factor_window(factor, region, roles)
    if window is None or stored.dtype is not DType.FP32:
        return None, stored
    (_, rows, columns), (_, of_row, of_column) = window.size, window.stride
    inner, step = (columns, of_row) if of_column == 1 else (rows, of_column)
    whole = not any(n % stored.format.elements for n in (window.offset, inner, step))
    return window if whole else None, stored


def matrix_window(tile: StridedTile, region: Region, roles: tuple[Letters, Letters, Letters]) -> Window | None:
    """`tile` over `region` with each role folded into one dimension, or None where strides do not allow it."""
    folded = [joined(tile, region, letters) for letters in roles]
    if any(f is None for f in folded):
        return None
    (b, sb), (r, sr), (c, sc) = (f for f in folded if f is not None)
    if c == 1:
        sc = 1
    if r == 1:
        sr = c if sc == 1 else 1
    if b > 1 and sb == 0:
        return None
    if not ((sc == 1 and sr >= c) or (sr == 1 and sc >= r)):
        return None
    return Window(tile.operand, tile.tile, (b, r, c), (sb, sr, sc), tile.offset(region))


def joined(tile: StridedTile, region: Region, letters: Letters) -> tuple[int, int] | None:
    """(size, stride) of letters that one dimension can stand for; None where they do not lie one stride apart."""
    size, stride = 1, 0
    for letter in reversed(letters):
        extent = region[letter][1] - region[letter][0]
        if extent == 1:
            continue
        step = tile.stride.get(letter, 0)
        if size == 1:
            size, stride = extent, step
        elif step == stride * size:
            size *= extent
        else:
            return None
    return size, stride
