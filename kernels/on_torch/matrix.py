"""Products of two loads lowered to matrix products: letters sorted into batch, rows, columns and inner, windows folded to three
dimensions.

In: the tiles of x and y, where the product goes, a region. Out: steps that call torch.mm or bmm on strided windows, in fp32. A window
that cannot be folded (its letters do not lie one stride apart), is not fp32, or is spread over several tiles, is first packed into
scratch.

    q[b,s,k,g] = h[b,s,m] * w[k,g,m]      rows (b,s)  columns (k,g)  inner (m):  [S, M] x [M, N], no copy
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from math import prod

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.kernels.layout.blocks import Region, extents, regions
from einpage.kernels.layout.window import Memory, Op, Tile, Window, scratch_tile

Letters = tuple[Letter, ...]


@dataclass(frozen=True, slots=True)
class Groups:
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
        return self.batch + self.rows + self.columns


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of a product: the tiles that hold it."""

    tiles: tuple[Tile, ...]
    letters: Letters
    """As they lie in memory, outermost first."""
    name: str

    def at(self, region: Region) -> list[Tile]:
        return [t for t in self.tiles if t.intersects(region)]


@dataclass(slots=True)
class Scratch:
    """Scratch buffers asked for so far, by name, and what the last steps left in each."""

    operand: int
    """Where the buffers stand in the job's memory."""
    elements: dict[str, int] = field(default_factory=dict)
    held: dict[str, object] = field(default_factory=dict)

    def buffer(self, name: str, elements: int) -> int:
        """The number of buffer `name`, at least so large."""
        self.elements[name] = max(self.elements.get(name, 0), elements)
        return list(self.elements).index(name)

    def tile(self, name: str, letters: Letters, region: Region) -> Tile:
        size = prod(region[x][1] - region[x][0] for x in letters)
        return scratch_tile(self.operand, self.buffer(name, size), letters, region)

    @property
    def nbytes(self) -> int:
        return 4 * sum(self.elements.values())


def group(x: Factor, y: Factor, inner: Sequence[Letter], out: Tile | None, out_letters: Letters, region: Region) -> Groups:
    """Roles of the letters, in the order that packs the fewest bytes on the given region."""
    in_x, in_y = set(x.letters), set(y.letters)
    kept = [c for c in out_letters if c in in_x | in_y]
    batch = [c for c in kept if c in in_x and c in in_y]
    rows = [c for c in kept if c in in_x and c not in in_y]
    columns = [c for c in kept if c in in_y and c not in in_x]

    def orders(letters: list[Letter], *by: Letters) -> list[Letters]:
        return list(dict.fromkeys((tuple(letters), *(tuple(c for c in other if c in letters) for other in by))))

    inner_orders = list(
        dict.fromkeys(
            tuple(c for c in (*first, *second) if c in set(inner)) for first, second in ((x.letters, y.letters), (y.letters, x.letters))
        )
    )
    inner_orders = [tuple(dict.fromkeys(o)) for o in inner_orders]
    best: tuple[int, Groups] | None = None
    for b, r, c, k in product(orders(batch, x.letters, y.letters), orders(rows, x.letters), orders(columns, y.letters), inner_orders):
        g = Groups(b, r, c, k)
        cost = 0 if out is not None and fold(out, region, (b, r, c)) is not None else _size(region, g.out)
        cost += 0 if direct(x, region, (b, r, k)) is not None else _size(region, b + r + k)
        cost += 0 if direct(y, region, (b, k, c)) is not None else _size(region, b + k + c)
        if best is None or cost < best[0]:
            best = cost, g
    assert best is not None
    return best[1]


def _size(region: Region, letters: Letters) -> int:
    return prod(region[x][1] - region[x][0] for x in letters)


def separate_batch(batch: Letters, region: Region, lies_well: Callable[[Region], bool]) -> int:
    """How many outer batch letters to take one value at a time, so that what is left folds without copies; 0 where it cannot pay."""
    for n in range(len(batch)):
        one = dict(region) | {c: (region[c][0], region[c][0] + 1) for c in batch[:n]}
        if lies_well(one):
            return n if _size(region, batch[:n]) <= 64 else 0
    return 0


def lies_well(factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters]) -> bool:
    """True where the factor's first tile can be multiplied where it lies."""
    tile = factor.tiles[0]
    return tile.dtype is DType.FP32 and fold(tile, clip(tile, region), roles) is not None


def clip(tile: Tile, region: Region) -> dict[Letter, tuple[int, int]]:
    """The share of `region` that `tile` holds, for loads by bare letters."""
    part = dict(region)
    for a, lo, hi in tile.bounds:
        if len(a.terms) == 1 and a.terms[0][1] == 1:
            letter = a.terms[0][0]
            part[letter] = (max(part[letter][0], lo - a.const), min(part[letter][1], hi - a.const))
    return part


def direct(factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters]) -> Window | None:
    """The factor as a [batch, rows, columns] matrix that BLAS can read where it lies, or None."""
    found = factor.at(region)
    if len(found) != 1 or found[0].dtype is not DType.FP32 or not found[0].contains(region):
        return None
    return fold(found[0], region, roles)


def fold(tile: Tile, region: Region, roles: tuple[Letters, Letters, Letters]) -> Window | None:
    """`tile` over `region` with each role folded into one dimension, or None where strides do not allow it."""
    folded = [_fold_role(tile, region, letters) for letters in roles]
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


def _fold_role(tile: Tile, region: Region, letters: Letters) -> tuple[int, int] | None:
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


def multiply(
    x: Factor,
    y: Factor,
    out: Window,
    groups: Groups,
    region: Region,
    inner_size: Mapping[Letter, int],
    scratch: Scratch,
    init: Window | None = None,
) -> Iterator[Op]:
    """Steps for out[batch, rows, columns] = (init +) sum over inner of x * y. `init` may lie where `out` does.

    Inner letters are cut where tiles end and by `inner_size`; the pieces are added in order.
    """
    borders: dict[Letter, set[int]] = {c: set() for c in groups.inner}
    for factor in (x, y):
        if len(factor.tiles) > 1:
            for tile in factor.tiles:
                for a, lo, _ in tile.bounds:
                    for letter, _ in a.terms:
                        if letter in borders and len(a.terms) == 1:
                            borders[letter].add(lo - a.const)
    for piece in regions(region, groups.inner, inner_size, borders):
        x_window, x_ops = _matrix(x, piece, (groups.batch, groups.rows, groups.inner), "x", scratch)
        y_window, y_ops = _matrix(y, piece, (groups.batch, groups.inner, groups.columns), "y", scratch)
        yield from x_ops
        yield from y_ops
        yield _product(x_window, y_window, out, init)
        init = out


def _matrix(
    factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters], name: str, scratch: Scratch
) -> tuple[Window, list[Op]]:
    """The factor as a matrix, and the steps that pack it where it must be packed."""
    window = direct(factor, region, roles)
    if window is not None:
        return window, []
    batch, first, second = roles
    inner_first = bool(factor.letters) and factor.letters[-1] in first
    packed = batch + (second + first if inner_first else first + second)
    tile = scratch.tile(name, packed, region)
    window = fold(tile, region, roles)
    assert window is not None
    key = (tuple((t.operand, t.tile, t.origin, tuple(t.stride.items())) for t in factor.tiles), packed, tuple(region[x] for x in packed))
    if scratch.held.get(name) == key:
        return window, []
    scratch.held[name] = key
    copies = [_copy(source.window(packed, part), tile.window(packed, part)) for source, part in _parts(factor, region)]
    return window, copies


def _parts(factor: Factor, region: Region) -> Iterator[tuple[Tile, Region]]:
    """The tiles that hold `region` together, each with its share."""
    covered = 0
    for tile in factor.at(region):
        part = clip(tile, region)
        covered += prod(extents(part).values())
        yield tile, part
    assert covered == prod(extents(region).values()), f"the tiles of {factor.name} do not hold {dict(region)}"


@lru_cache(maxsize=4096)
def _copy(given: Window, taken: Window) -> Op:
    def copy(memory: Memory) -> None:
        taken.of(memory).copy_(given.of(memory))

    return copy


@lru_cache(maxsize=4096)  # jobs of other tiles and other layers have the same few steps
def _product(x: Window, y: Window, out: Window, init: Window | None) -> Op:
    fresh: Callable[..., Tensor] = torch.bmm
    onto: Callable[..., Tensor] = torch.baddbmm
    if x.size[0] == 1:
        fresh, onto = torch.mm, torch.addmm
        x, y, out, init = _flat(x), _flat(y), _flat(out), None if init is None else _flat(init)
    if init is None:

        def multiply_into(memory: Memory) -> None:
            fresh(x.of(memory), y.of(memory), out=out.of(memory))

        return multiply_into
    start = init

    def multiply_onto(memory: Memory) -> None:
        target = out.of(memory)
        onto(target if start == out else start.of(memory), x.of(memory), y.of(memory), out=target)

    return multiply_onto


def _flat(w: Window) -> Window:
    return Window(w.operand, w.tile, w.size[1:], w.stride[1:], w.offset)
