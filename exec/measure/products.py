"""Which matrix products other libraries compute faster than torch.mm on this machine.

In: the number of torch threads, set before. Out: Libraries: by shape class, the second matrix from which on another library saves most.
Each runs as jobs do, with what it copies and allocates, on weights that take turns so that none is still in a cache. It takes turns with
torch.mm, and the median of the turns' ratios counts: whoever else uses the machine delays both alike. Half a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from math import log, prod
from statistics import median
from time import perf_counter

import torch

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Letter, Load
from einpage.einsum_front.base.dtype import BlockFormat, DType, Stored
from einpage.einsum_front.base.libraries import ALWAYS, MOST_UNPACKED_ROWS, ONLY_TORCH, FasterFrom, Libraries
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import Box, Contraction, ContractJob, MapJob, Part, Range, View
from einpage.exec.device.arena import MappedArena
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.multiply.products import Products, compiles, linear
from einpage.kernels.prepare import prepare
from einpage.memplan.graph.memgraph import Extent, Offset

ROWS = {"one_row": 1, "few_rows": 5, "more_rows": 12, "many_rows": 64, "most_rows": 256}
"""What each shape class is measured with."""
INNER = 512
COLUMNS = (128, 512, 1024, 2048)
WEIGHT_BYTES = 48 << 20
"""What the weights of one size take together: more than caches hold, as those of a model do."""
TURNS = 15
"""Of both libraries; fewer, but LEAST_TURNS, once they have lasted MOST_S."""
LEAST_TURNS = 3
MOST_S = 0.1
CALLS_S = 5e-4
"""How long one library is called without the other, at least."""
UNPACK_TURNS = 5
CLEARLY = 0.97
"""Of torch.mm's time: what a library must stay under at a size to speak for itself, so that profiles do not differ by noise."""
BY_ONEDNN, BY_COMPILED = Libraries(ALWAYS), Libraries(compiled=ALWAYS, by_columns=ALWAYS)


def measured_libraries() -> Libraries:
    """The shape classes and sizes at which another library than torch is faster."""
    memory = _all_weights()
    onednn, compiled, by_columns = dict[str, int | None](), dict[str, int | None](), dict[str, int | None]()
    for name, rows in ROWS.items():
        by_onednn = _saved(BY_ONEDNN, rows, memory) if linear() is not None else NOTHING
        by_compiled = _saved(BY_COMPILED, rows, memory) if compiles() else NOTHING
        onednn[name] = by_onednn.least_elements
        compiled[name] = by_compiled.least_elements if by_compiled.share > by_onednn.share else None
        if rows <= MOST_UNPACKED_ROWS and compiles():
            by_columns[name] = _saved(BY_COMPILED, rows, memory, by_columns=True).least_elements
    return Libraries(FasterFrom(**onednn), FasterFrom(**compiled), FasterFrom(**by_columns))


def strided_factor(libraries: Libraries, rows: int) -> float:
    """How many times longer a product of so many rows takes where the larger operand is a part of wider rows, which oneDNN does not read
    (AtRows.strided)."""
    elements = INNER * COLUMNS[-1]
    if libraries.compiled.is_faster(rows, elements) or not libraries.onednn.is_faster(rows, elements):
        return 1.0
    return 1 / _by_library(BY_ONEDNN, rows, COLUMNS[-1], _all_weights())


def _all_weights() -> torch.Tensor:
    """Flat, on the pages that a device's arena has."""
    memory = MappedArena(WEIGHT_BYTES, touch=True).view(Extent(Offset(0), Nbytes(WEIGHT_BYTES)), (WEIGHT_BYTES // 4,), DType.FP32)
    return memory.fill_(1.0)


def unpack_seconds(libraries: Libraries) -> float:
    """What it takes to unpack a number of a stored weight before it is multiplied: by how much a product of so many rows that blocks are
    unpacked first takes longer than one of fp32 numbers, for each number of the matrix."""
    rows, columns = ROWS["many_rows"], COLUMNS[-1]
    job = product_job(rows, INNER, columns, DType.FP32)
    x, w = job.reads
    type = Stored(BlockFormat.Q4_1, 1, DType.FP32)
    stored = replace(job, reads=(x, replace(w, element_type=type)))
    out, seconds = torch.empty(rows, columns), list[float]()
    for of, matrix in ((job, torch.ones(columns, INNER)), (stored, torch.zeros(type.bytes_of(columns * INNER), dtype=torch.uint8))):
        kernel = prepare(of, products=Products(libraries, torch.get_num_threads()))
        assert isinstance(kernel, TorchKernel)
        call = kernel.bind(((torch.ones(rows, INNER),), (matrix,)), out, torch.empty(sum(kernel.scratch)))
        call()
        seconds.append(min(_timed(call) for _ in range(UNPACK_TURNS)))
    return max(0.0, seconds[1] - seconds[0]) / (columns * INNER)


def _timed(call: Callable[[], object]) -> float:
    began = perf_counter()
    call()
    return perf_counter() - began


@dataclass(frozen=True, slots=True)
class _Saved:
    """What a library saves over all sizes, each weighing the same, as a logarithm, where it multiplies by matrices from `least_elements`
    on; None and 0 where it saves nothing from any size on."""

    least_elements: int | None
    share: float


NOTHING = _Saved(None, 0.0)


def _saved(libraries: Libraries, rows: int, memory: torch.Tensor, *, by_columns: bool = False) -> _Saved:
    """The most that `libraries` save. A size that noise decides wrongly costs little: the sizes beside it are heard too."""
    most, saved = NOTHING, 0.0
    for columns in reversed(COLUMNS):
        saved += log(CLEARLY / _by_library(libraries, rows, columns, memory, by_columns=by_columns))
        if saved > most.share:
            most = _Saved(INNER * columns, saved)
    return most


def _by_library(libraries: Libraries, rows: int, columns: int, memory: torch.Tensor, *, by_columns: bool = False) -> float:
    """What a product takes by `libraries`, of what it takes by torch.mm."""
    job = product_job(rows, INNER, columns, DType.FP32, by_columns=by_columns)
    return _share(_TimedProduct(job, libraries), _TimedProduct(job, ONLY_TORCH), memory)


@dataclass(frozen=True, slots=True)
class _TimedProduct:
    """A product and how it is computed."""

    job: ContractJob
    libraries: Libraries

    def calls(self, memory: torch.Tensor, turn: Iterator[int]) -> Callable[[], float]:
        """What computes it for a while, and gives the mean seconds of a call. `turn` says which of the weights in `memory` is next: where
        two share it, neither multiplies what the other has just read."""
        kernel = prepare(self.job, products=Products(self.libraries, torch.get_num_threads()))
        assert isinstance(kernel, TorchKernel)
        of_x, of_w, of_out = (view.boxes[0].shape for view in (*self.job.reads, self.job.result))
        x, out, scratch = torch.ones(of_x), torch.empty(of_out), torch.empty(sum(kernel.scratch))
        bound = [kernel.bind(((x,), (weight,)), out, scratch) for weight in _weights(memory, prod(of_w)).view(-1, *of_w)]

        def call() -> float:
            began, count = perf_counter(), 0
            while (passed := perf_counter() - began) < CALLS_S or count == 0:
                bound[next(turn)]()
                count += 1
            return passed / count

        return call


def _weights(memory: torch.Tensor, elements: int) -> torch.Tensor:
    """As many as lie in flat `memory`, [weight, elements]."""
    return memory[: memory.numel() // elements * elements].view(-1, elements)


def _share(one: _TimedProduct, other: _TimedProduct, memory: torch.Tensor) -> float:
    """What `one` takes of what `other` takes; their weights are as large."""
    turn = cycle(range(len(_weights(memory, prod(one.job.reads[1].boxes[0].shape)))))
    by_one, by_other = one.calls(memory, turn), other.calls(memory, turn)
    by_other()
    by_one()  # the first calls make their views
    shares: list[float] = []
    began = perf_counter()
    while len(shares) < TURNS and (len(shares) < LEAST_TURNS or perf_counter() - began <= MOST_S):
        shares.append(by_one() / by_other())
    return median(shares)


def product_job(rows: int, inner: int, columns: int, dtype: DType, *, by_columns: bool = False) -> ContractJob:
    """y[r,c] = x[r,k] * w[c,k]: a projection, its weight as checkpoints hold it; `by_columns`, as some do: w[k,c]."""
    r, k, c = Letter("r"), Letter("k"), Letter("c")
    ranges = (Range(r, 0, rows), Range(k, 0, inner), Range(c, 0, columns))
    w_letters, w_shape = ((k, c), (inner, columns)) if by_columns else ((c, k), (columns, inner))
    x, w = Load("x", (Axis(r), Axis(k))), Load("w", tuple(map(Axis, w_letters)))
    reads = (whole_view("x", (rows, inner), dtype), whole_view("w", w_shape, dtype))
    return ContractJob(ranges, reads, whole_view("y", (rows, columns), dtype), (Contraction(x, w, (k,)),), (r, c), Acc(0), None, True)


def whole_view(name: str, shape: tuple[int, ...], dtype: DType) -> View:
    """A value of `shape` in one tile."""
    return View(name, dtype, (Box((0,) * len(shape), shape),))


def pointwise_job(extent: int) -> MapJob:
    """y[k] = x[k] + x[k] * x[k]."""
    k = Letter("k")
    x = Load("x", (Axis(k),))
    part = Part((Axis(k),), Binary("+", x, Binary("*", x, x)))
    return MapJob((Range(k, 0, extent),), (whole_view("x", (extent,), DType.FP32),), whole_view("y", (extent,), DType.FP32), (part,))
