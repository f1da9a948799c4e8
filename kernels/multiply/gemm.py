"""Products of two loads as steps that call torch.mm or bmm, oneDNN, or our own kernels, on strided windows, in fp32.

In: the factors, their roles, where the product goes, a region. Out: steps. A factor that BLAS cannot read where it lies is packed into
scratch first, once for all steps in a row that read the same of it. Of a factor that is kept as it is stored, blocks are unpacked in
registers where our own kernels multiply, else into scratch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from math import prod

import torch
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter, Region
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.libraries import MOST_UNPACKED_ROWS
from einpage.kernels.layout.blocks import extents, regions
from einpage.kernels.layout.window import BoundCall, BoundStep, JobBuffers, StridedTile, Window, scratch_tile
from einpage.kernels.multiply.matrix import Factor, Letters, Roles, clip, factor_window, matrix_window, stored_window
from einpage.kernels.multiply.products import ONLY_MM, ByRows, Products, is_packed, linear
from einpage.kernels.multiply.unpack_steps import NUMBERS_OF, unpacked
from einpage.kernels.on_llvm.column_products import column_products
from einpage.kernels.on_llvm.matrix_products import matrix_products
from einpage.kernels.on_llvm.row_products import row_products

SCRATCH_ALIGNMENT = 64
"""Elements: buffers that lie one behind the other begin where torch would let them begin."""


@dataclass(slots=True)
class Scratch:
    """The scratch buffers of a job by name: how many fp32 elements each needs, and what it contains after the steps so far."""

    operand: int
    """Where they stand among the job's buffers."""
    products: Products = ONLY_MM
    """How the job multiplies."""
    product_bytes: int = 0
    """The most that one of its products allocates for itself."""
    left_to_torch: int = 0
    """How many products go to torch.mm, which the figures of the machine call slower or which no other library multiplies as they lie."""
    elements: dict[str, int] = field(default_factory=dict)
    content: dict[str, object] = field(default_factory=dict)
    owner: str = ""
    """Of the product whose factors are packed, where several take turns: each has buffers of its own."""

    def buffer(self, name: str, elements: int) -> int:
        """The number of buffer `name`, at least so large."""
        self.elements[name] = max(self.elements.get(name, 0), -(-elements // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT)
        return list(self.elements).index(name)

    def tile(self, name: str, letters: Letters, region: Region) -> StridedTile:
        """Buffer `name` as a packed tile of `region`, row-major in the order of `letters`; the buffer grows where it is too small."""
        size = prod(region[x][1] - region[x][0] for x in letters)
        return scratch_tile(self.operand, self.buffer(name, size), letters, region)

    @property
    def unpacks(self) -> bool:
        """Whether numbers of stored weights lie in one of the buffers."""
        return any(name.startswith(NUMBERS_OF) for name in self.elements)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, 4 an element, and of what a product allocates."""
        return 4 * sum(self.elements.values()) + self.product_bytes


def multiply(
    x: Factor,
    y: Factor,
    out: Window,
    roles: Roles,
    region: Region,
    inner_size: Mapping[Letter, int],
    scratch: Scratch,
    init: Window | None = None,
) -> Iterator[BoundStep]:
    """Steps for out[batch, rows, columns] = (init +) sum over inner of x * y. `init` may lie where `out` does.

    Inner letters are split where tiles end and by `inner_size`; the parts are added in order.
    """
    borders: dict[Letter, set[int]] = {c: set() for c in roles.inner}
    for factor in (x, y):
        if len(factor.tiles) > 1:
            for tile in factor.tiles:
                for a, lo, _ in tile.bounds:
                    for letter, _ in a.terms:
                        if letter in borders and len(a.terms) == 1:
                            borders[letter].add(lo - a.const)
    for part in regions(region, roles.inner, inner_size, borders):
        yield from _product_of_part(x, y, out, roles, part, scratch, init)
        init = out


def _product_of_part(
    x: Factor, y: Factor, out: Window, roles: Roles, part: Region, scratch: Scratch, init: Window | None
) -> Iterator[BoundStep]:
    """As `multiply`, of inner letters that are in one part."""
    for matrix, few in ((y, x), (x, y)):
        of_matrix, of_few = (roles.of_y, roles.of_x) if matrix is y else (roles.of_x, roles.of_y)
        window, stored = stored_window(matrix, part, of_matrix)
        if window is not None and stored is not None and stored_window(few, part, of_few)[1] is None:
            few_window, steps = _matrix(few, part, of_few, f"{scratch.owner}{'x' if few is x else 'y'}", scratch)
            pair = (few_window, window) if matrix is y else (window, few_window)
            if (product := scratch.products.by_rows(*pair, *((None, stored) if matrix is y else (stored, None)))) is not None:
                yield from steps
                yield _product_by_rows(product, out.flat(), None if init is None else init.flat())
                return
    x_window, x_steps = _matrix(x, part, roles.of_x, f"{scratch.owner}x", scratch)
    y_window, y_steps = _matrix(y, part, roles.of_y, f"{scratch.owner}y", scratch)
    yield from x_steps
    yield from y_steps
    yield from _product_steps(x_window, y_window, out, init, scratch)


def _matrix(
    factor: Factor, region: Region, roles: tuple[Letters, Letters, Letters], name: str, scratch: Scratch
) -> tuple[Window, list[BoundStep]]:
    """The factor as a matrix, and the steps that unpack it and pack it where it must be."""
    factor, steps = unpacked(factor, region, name, scratch)
    window = factor_window(factor, region, roles)
    if window is not None:
        return window, steps
    batch, first, second = roles
    inner_first = bool(factor.letters) and factor.letters[-1] in first
    packed = batch + (second + first if inner_first else first + second)
    tile = scratch.tile(name, packed, region)
    window = matrix_window(tile, region, roles)
    assert window is not None
    content = (
        tuple((t.operand, t.tile, t.origin, tuple(t.stride.items())) for t in factor.tiles),
        packed,
        tuple(region[x] for x in packed),
    )
    if scratch.content.get(name) == content:
        return window, steps
    scratch.content[name] = content
    copies = [_copy(source.window(packed, part), tile.window(packed, part)) for source, part in _shares(factor, region)]
    return window, [*steps, *copies]


def _shares(factor: Factor, region: Region) -> Iterator[tuple[StridedTile, Region]]:
    """The tiles that hold `region` together, each with its share."""
    covered = 0
    for tile in factor.at(region):
        part = clip(tile, region)
        covered += prod(extents(part).values())
        yield tile, part
    assert covered == prod(extents(region).values()), f"the tiles of {factor.name} do not hold {dict(region)}"


@lru_cache(maxsize=4096)
def _copy(source: Window, target: Window) -> BoundStep:
    return lambda buffers: partial(target.of(buffers).copy_, source.of(buffers))


def _product_steps(x: Window, y: Window, out: Window, init: Window | None, scratch: Scratch) -> Iterator[BoundStep]:
    """One product by the library that is faster at it; what that allocates is noted in `scratch`."""
    by_rows = scratch.products.by_rows(x, y)
    if by_rows is not None:
        yield _product_by_rows(by_rows, out.flat(), None if init is None else init.flat())
        return
    by_columns = scratch.products.by_columns(x, y)
    if by_columns is not None:
        side_by_side = out.stride[1 if by_columns.transposed else 2] == 1 and (init is None or init.stride == out.stride)
        if side_by_side or by_columns.matrix.size[1] == 1:
            yield _product_by_columns(by_columns, out.flat(), None if init is None else init.flat())
            return
    windows = scratch.products.windows(x, y)
    if windows is None:
        scratch.left_to_torch += 1
        yield _product(x, y, out, init)
        return
    rows, matrix = windows
    if not is_packed(rows.size, rows.stride):
        rows, copies = _packed_rows(rows, scratch)
        yield from copies
    count, inner = rows.size
    scratch.product_bytes = max(scratch.product_bytes, scratch.products.temporary_bytes(count, inner, matrix.size[0]))
    yield _onednn_product(rows, matrix, out.flat(), None if init is None else init.flat())


def _packed_rows(rows: Window, scratch: Scratch) -> tuple[Window, list[BoundStep]]:
    """A matrix that is a part of wider rows, packed, and the step that packs it: none where the step before has done so."""
    name = f"{scratch.owner}rows"
    packed = Window(scratch.operand, scratch.buffer(name, prod(rows.size)), rows.size, (rows.size[1], 1), 0)
    if scratch.content.get(name) == rows and rows.operand != scratch.operand:  # what is in scratch changes from step to step
        return packed, []
    scratch.content[name] = rows
    return packed, [_copy(rows, packed)]


@lru_cache(maxsize=4096)
def _product_by_rows(product: ByRows, out: Window, init: Window | None) -> BoundStep:
    (rows, inner), columns = product.rows.size, product.matrix.size[0]
    layout = DType.FP32 if product.stored is None else product.stored.format
    bytes_of = (product.stored or DType.FP32).bytes_of
    few, adds = rows <= MOST_UNPACKED_ROWS, init is not None
    kernel = row_products(layout, rows, inner, adds) if few else matrix_products(rows, adds)
    sizes = (columns, inner) if few else (columns, inner, rows)
    of_row, of_column = (1, 0) if product.transposed else (0, 1)

    def multiply_into(buffers: JobBuffers) -> BoundCall:
        x, target = product.rows.of(buffers), out.of(buffers)
        matrix = buffers[product.matrix.operand][product.matrix.tile]
        addend = target if init is None or init == out else init.of(buffers)
        first = matrix.data_ptr() + bytes_of(product.matrix.offset)
        numbers = (
            *(x.data_ptr(), product.rows.stride[0], first, bytes_of(product.matrix.stride[0])),
            *(addend.data_ptr(), addend.stride(of_row), addend.stride(of_column)),
            *(target.data_ptr(), target.stride(of_row), target.stride(of_column), *sizes),
        )
        kept = x, matrix, target, addend  # addresses are of these
        return lambda: (kernel(*numbers), kept)

    return multiply_into


@lru_cache(maxsize=4096)
def _product_by_columns(product: ByRows, out: Window, init: Window | None) -> BoundStep:
    (rows, inner), columns = product.rows.size, product.matrix.size[1]
    kernel, of_row = column_products(rows, init is not None), 1 if product.transposed else 0

    def multiply_into(buffers: JobBuffers) -> BoundCall:
        x, matrix, target = product.rows.of(buffers), product.matrix.of(buffers), out.of(buffers)
        addend = target if init is None or init == out else init.of(buffers)
        numbers = (
            *(x.data_ptr(), product.rows.stride[0], matrix.data_ptr(), DType.FP32.bytes_of(product.matrix.stride[0])),
            *(addend.data_ptr(), addend.stride(of_row), target.data_ptr(), target.stride(of_row), columns, inner),
        )
        kept = x, matrix, target, addend  # addresses are of these
        return lambda: (kernel(*numbers), kept)

    return multiply_into


@lru_cache(maxsize=4096)
def _onednn_product(x: Window, w: Window, out: Window, init: Window | None) -> BoundStep:
    multiply_packed = linear()
    assert multiply_packed is not None
    call = multiply_packed

    def multiply_into(buffers: JobBuffers) -> BoundCall:
        first, second, target = x.of(buffers), w.of(buffers), out.of(buffers)
        if init is None:
            return lambda: target.copy_(call(first, second))
        addend = target if init == out else init.of(buffers)
        return lambda: torch.add(addend, call(first, second), out=target)

    return multiply_into


@lru_cache(maxsize=4096)  # jobs of other tiles and other layers have the same few steps
def _product(x: Window, y: Window, out: Window, init: Window | None) -> BoundStep:
    fresh: Callable[..., Tensor] = torch.bmm
    onto: Callable[..., Tensor] = torch.baddbmm
    if x.size[0] == 1:
        fresh, onto = torch.mm, torch.addmm
        x, y, out, init = x.flat(), y.flat(), out.flat(), None if init is None else init.flat()

    def multiply_into(buffers: JobBuffers) -> BoundCall:
        target = out.of(buffers)
        if init is None:
            return partial(fresh, x.of(buffers), y.of(buffers), out=target)
        return partial(onto, target if init == out else init.of(buffers), x.of(buffers), y.of(buffers), out=target)

    return multiply_into
