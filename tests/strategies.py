"""Generators of the whole test-suite: random task graphs with real jobs, machines, budgets, and small exact data for them.

Each strategy says what it never makes. A graph is built by one function that asks a `Pick` for every decision, so the same builder
serves hypothesis (`task_graphs`, which shrinks) and long seeded sweeps (`random_graph`, which is fast). All data are small integers and
every result is taken modulo 7, so that arithmetic is exact in fp32, fp16 and bf16 and results are equal bit for bit in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from random import Random
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Acc, Axis, Binary, Expr, Letter, Load, Num, Reduce, Reduction
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.units import ALIGNMENT, Nbytes, aligned
from einpage.einsum_front.choose.joined_tasks import joined_tasks
from einpage.einsum_front.graph.job import Box, Contraction, ContractJob, GatherJob, Job, MapJob, Part, Range, View
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Link, Queue, host_links
from einpage.memplan.packing.rectangles import Rectangle
from einpage.memplan.problem.footprint import largest_footprint

Pick = Callable[[int, int], int]
"""pick(low, high) answers an integer with both ends included; low is the simplest answer."""

LETTERS = (Letter("i"), Letter("j"), Letter("k"))
MODULUS = Num(7)

T = TypeVar("T")
Cell = tuple[int, ...]
"""Which piece of each letter's cut a tile is."""


@dataclass(slots=True)
class Made:
    """A value while the graph grows."""

    name: str
    letters: tuple[Letter, ...]
    kind: Kind
    dtype: DType
    tiles: dict[Cell, TensorId] = field(default_factory=dict)


@dataclass(slots=True)
class Builder:
    """A task graph under construction. Every value over the same letters is cut at the same places."""

    pick: Pick
    dtype: DType
    workspaces: bool
    cuts: dict[Letter, tuple[Range, ...]] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def choose(self, options: list[T]) -> T:
        return options[self.pick(0, len(options) - 1)]

    def cut(self, letter: Letter, largest: int, most_pieces: int) -> None:
        extent = self.pick(1, largest)
        pieces = self.pick(1, min(most_pieces, extent))
        stops = [extent * (p + 1) // pieces for p in range(pieces)]
        self.cuts[letter] = tuple(Range(letter, a, b) for a, b in zip([0, *stops], stops, strict=False))

    def extent(self, letter: Letter) -> int:
        return self.cuts[letter][-1].end

    def box(self, letters: tuple[Letter, ...], cell: Cell, stacked: bool = False) -> Box:
        ranges = [self.cuts[x][c] for x, c in zip(letters, cell, strict=True)]
        front = [Range(Letter("_"), 0, 1)] if stacked else []
        return Box(tuple(r.start for r in front + ranges), tuple(r.end for r in front + ranges))

    def cells(self, letters: tuple[Letter, ...]) -> list[Cell]:
        return list(product(*(range(len(self.cuts[x])) for x in letters)))

    def value(self, prefix: str, letters: tuple[Letter, ...], kind: Kind, dtype: DType, stacked: bool = False) -> Made:
        """A new value with all its tiles; `stacked` puts a dimension of extent 1 in front (accumulators)."""
        name = f"{prefix}{len(self.values)}"
        shape = (1,) * stacked + tuple(self.extent(x) for x in letters)
        self.values.append(Value(name, name, shape, dtype, kind))
        made = Made(name, letters, kind, dtype)
        for cell in self.cells(letters):
            box = self.box(letters, cell, stacked)
            text = ",".join(f"{a}:{b}" for a, b in zip(box.start, box.end, strict=True))
            made.tiles[cell] = TensorId(len(self.tensors))
            self.tensors.append(Tensor(made.tiles[cell], f"{name}[{text}]", name, box, dtype, kind))
        return made

    def operand(self, made: Made, fixed: dict[Letter, int]) -> tuple[TensorId, ...]:
        """The tiles of `made` that agree with `fixed`; letters not in it keep all their pieces."""
        return tuple(t for cell, t in made.tiles.items() if all(fixed.get(x, c) == c for x, c in zip(made.letters, cell, strict=True)))

    def view(self, name: str, operand: tuple[TensorId, ...]) -> View:
        first = self.tensors[operand[0]]
        return View(name, first.dtype, tuple(self.tensors[t].box for t in operand))

    def task(
        self, operands: list[tuple[TensorId, ...]], result: TensorId, job: Job, flops: int, inplace: tuple[TensorId, ...], workspace: int
    ) -> None:
        reads = dict.fromkeys(t for operand in operands for t in operand)
        own = self.tensors[result].nbytes
        touched = own if isinstance(job, GatherJob) else own + sum(self.tensors[t].nbytes for t in reads)
        takeable = tuple(t for t in dict.fromkeys(inplace) if self.tensors[t].nbytes == own)
        task_id, op_id, gathers = TaskId(len(self.tasks)), OpId(len(self.ops)), isinstance(job, GatherJob)
        name = f"{self.tensors[result].name}#{task_id}"
        figures = (flops, Nbytes(touched), Nbytes(workspace))
        self.tasks.append(Task(task_id, name, op_id, tuple(operands), result, takeable, *figures, job, gathers))

    def op(self, name: str, kind: str, flops: int, operands: list[Made], result: Made) -> None:
        values = [result] if kind == "gather" else list({m.name: m for m in [*operands, result]}.values())
        nbytes = sum(self.tensors[t].nbytes for m in values for t in m.tiles.values())
        self.ops.append(Op(OpId(len(self.ops)), name, kind, flops, Nbytes(nbytes), "made by a strategy"))

    def workspace(self) -> int:
        return self.choose([0, 0, 0, 4, 256, 1000]) if self.workspaces else 0


def _axes(letters: tuple[Letter, ...]) -> tuple[Expr, ...]:
    return tuple(Axis(x) for x in letters)


def _load(made: Made, name: str | None = None) -> Load:
    return Load(name or made.name, _axes(made.letters))


def _letters(b: Builder, least: int = 1) -> tuple[Letter, ...]:
    return b.choose([x for n in range(least, 3) for x in [(*p,) for p in product(LETTERS, repeat=n)] if len(set(x)) == n])


def _some_value(b: Builder, fits: Callable[[Made], bool], letters: tuple[Letter, ...]) -> Made:
    """A value that fits, old (read again, near or far) or a new weight or input over `letters`."""
    old = [m for m in reversed(b.made) if m.dtype is b.dtype and fits(m)]
    if old and b.pick(0, 3) < 3:
        return b.choose(old)
    kind = b.choose([Kind.WEIGHT, Kind.WEIGHT, Kind.INPUT])
    b.made.append(b.value("w" if kind is Kind.WEIGHT else "x", letters, kind, b.dtype))
    return b.made[-1]


def _add_map(b: Builder, given: tuple[Made, ...] = ()) -> None:
    """result[T] = (a op b op c) % 7, each over letters of T, or over one more letter that is summed; of `given`, where there are some."""
    target = given[0].letters if given else _letters(b)
    terms: list[tuple[Made, Expr, str]] = []
    for n in range(len(given) or b.pick(1, 3)):
        made = given[n] if given else _some_value(b, lambda m: len(set(m.letters) - set(target)) <= 1, target)
        twice = n > 0 and made.name == terms[-1][0].name and b.pick(0, 1) == 1
        name = f"{made.name}_again{n}" if twice else made.name
        extra = tuple(x for x in made.letters if x not in target)
        term: Expr = _load(made, name)
        terms.append((made, Reduce(Reduction.SUM, extra, term) if extra else term, name))
    expr = terms[0][1]
    for _, term, _ in terms[1:]:
        expr = Binary(b.choose(["+", "-", "*"]), expr, term)
    if b.pick(0, 1):
        expr = Binary("*", expr, Num(3))
    expr = Binary("%", expr, MODULUS)
    sources = {name: made for made, _, name in terms}
    result = b.value("v", target, Kind.ACTIVATION, b.dtype)
    workspace = b.workspace()
    flops_per_element = sum(prod(b.extent(x) for x in m.letters if x not in target) + 1 for m in sources.values())
    for cell, tile in result.tiles.items():
        fixed = dict(zip(target, cell, strict=True))
        operands = [b.operand(m, fixed) for m in sources.values()]
        reduced = sorted({x for m in sources.values() for x in m.letters} - set(target))
        ranges = (*(b.cuts[x][fixed[x]] for x in target), *(Range(x, 0, b.extent(x)) for x in reduced))
        views = tuple(b.view(name, operand) for name, operand in zip(sources, operands, strict=True))
        job = MapJob(ranges, views, b.view(result.name, (tile,)), (Part(_axes(target), expr),))
        inplace = tuple(o[0] for m, o in zip(sources.values(), operands, strict=True) if m.letters == target)
        b.task(operands, tile, job, flops_per_element * b.tensors[tile].box.size, inplace, workspace)
    b.op(result.name, "map", flops_per_element * prod(b.extent(x) for x in target), list(sources.values()), result)
    b.made.append(result)


def _add_update(b: Builder) -> None:
    """Two maps of one value and others over the same letters, and one of what they make: pointwise tasks that may be one."""
    target = _letters(b)
    gradient = _some_value(b, lambda m: m.letters == target, target)
    for _ in range(2):
        _add_map(b, (_some_value(b, lambda m: m.letters == target, target), gradient))
    _add_map(b, (_some_value(b, lambda m: m.letters == target, target), *b.made[-2:]))


def _add_contract(b: Builder) -> None:
    """result[p(,q)] = (sum over r of x[p,r] * y[r(,q)] + addend[p(,q)]) % 7, in one task a tile or in a chain over r."""
    p, r, q = b.choose([(*x,) for x in product(LETTERS, repeat=3) if len(set(x)) == 3])
    x = _some_value(b, lambda m: set(m.letters) == {p, r}, (p, r))
    y = _some_value(b, lambda m: r in m.letters and p not in m.letters, b.choose([(r, q), (q, r), (r,)]))
    target = (p, q) if q in y.letters else (p,)
    if b.pick(0, 1):
        target = target[::-1]
    addend = _some_value(b, lambda m: m.letters == target and m not in (x, y), target) if b.pick(0, 1) else None
    steps = [(n,) for n in range(len(b.cuts[r]))] if b.pick(0, 1) else [tuple(range(len(b.cuts[r])))]
    stages = [b.value("acc", target, Kind.ACTIVATION, DType.FP32, stacked=True) for _ in steps[1:]]
    stages.append(b.value("v", target, Kind.ACTIVATION, b.dtype))
    workspace = b.workspace()
    pairs = [(n, c) for n in range(len(steps)) for c in stages[0].tiles]
    for n, cell in sorted(pairs, key=lambda pair: pair[1]) if b.pick(0, 1) else pairs:
        _add_contract_step(b, x, y, addend, r, target, steps[n], stages[n - 1] if n else None, stages[n], cell, workspace)
    extents = prod(b.extent(z) for z in {*x.letters, *y.letters})
    b.op(stages[-1].name, "contract", 2 * extents, [x, y, *([addend] if addend else [])], stages[-1])
    b.made.append(stages[-1])


def _add_contract_step(
    b: Builder, x: Made, y: Made, addend: Made | None, r: Letter, target: tuple[Letter, ...], pieces: tuple[int, ...],
    before: Made | None, after: Made, cell: Cell, workspace: int,
) -> None:  # fmt: skip
    """One job of a chain: it sums over `pieces` of the cut of `r`, onto `before` if there is one."""
    last = after.dtype is b.dtype and not after.name.startswith("acc")
    fixed = dict(zip(target, cell, strict=True))
    read = {m.name: [t for n in pieces for t in b.operand(m, {**fixed, r: n})] for m in (x, y)}
    inplace: list[TensorId] = []
    epilogue: Expr = Acc(0)
    if last:
        if addend is not None:
            read.setdefault(addend.name, list(b.operand(addend, fixed)))
            inplace += read[addend.name] if addend.name not in (x.name, y.name) else []
            epilogue = Binary("+", Acc(0), _load(addend))
        epilogue = Binary("%", epilogue, MODULUS)
    carry = None
    if before is not None:
        carry = len(read)
        read["carry"] = [before.tiles[cell]]
        inplace.append(before.tiles[cell])
    operands = [tuple(tiles) for tiles in read.values()]
    views = tuple(b.view(name, tiles) for name, tiles in zip(read, operands, strict=True))
    span = Range(r, b.cuts[r][pieces[0]].start, b.cuts[r][pieces[-1]].end)
    ranges = (*(b.cuts[z][fixed[z]] for z in target), span)
    contraction = Contraction(_load(x), _load(y), (r,))
    job = ContractJob(ranges, views, b.view(after.name, (after.tiles[cell],)), (contraction,), target, epilogue, carry, last)
    b.task(operands, after.tiles[cell], job, 2 * prod(z.extent for z in ranges), tuple(inplace), workspace)


def _add_gather(b: Builder) -> None:
    """result[p,q] = table[rows[p], q]: the table a weight over (r, q), the rows an int32 input over (p,)."""
    p, r, q = b.choose([(*x,) for x in product(LETTERS, repeat=3) if len(set(x)) == 3])
    tables = [m for m in b.made if m.kind is Kind.WEIGHT and m.letters == (r, q)]
    if not tables:
        b.made.append(b.value("w", (r, q), Kind.WEIGHT, b.dtype))
        tables = [b.made[-1]]
    indices = [m for m in b.made if m.dtype is DType.INT32 and m.letters == (p,)]
    if not indices:
        b.made.append(b.value("rows", (p,), Kind.INPUT, DType.INT32))
        indices = [b.made[-1]]
    table, rows = b.choose(tables), b.choose(indices)
    result = b.value("v", (p, q), Kind.ACTIVATION, b.dtype)
    load = Load(table.name, (_load(rows), Axis(q)))
    for cell, tile in result.tiles.items():
        fixed = {p: cell[0], q: cell[1]}
        operands = [b.operand(table, {q: cell[1]}), b.operand(rows, fixed)]
        views = tuple(b.view(m.name, operand) for m, operand in zip((table, rows), operands, strict=True))
        job = GatherJob((b.cuts[p][cell[0]], b.cuts[q][cell[1]]), views, b.view(result.name, (tile,)), (p, q), load)
        b.task(operands, tile, job, 0, (), 0)
    b.op(result.name, "gather", 0, [], result)
    b.made.append(result)


def build_graph(
    pick: Pick, dtype: DType, most_ops: int, largest_extent: int, most_pieces: int, workspaces: bool, joined: bool = False
) -> TaskGraph:  # fmt: skip
    """A valid TaskGraph out of the decisions of `pick`. See `task_graphs` for what it never makes."""
    b = Builder(pick, dtype, workspaces)
    for letter in LETTERS:
        b.cut(letter, largest_extent, most_pieces)
    for _ in range(pick(1, most_ops)):
        b.choose([_add_map, _add_map, _add_contract, _add_contract, _add_gather, *([_add_update] if joined else [])])(b)
    read = {t for task in b.tasks for t in task.reads()}
    written = [m for m in b.made if m.kind is Kind.ACTIVATION]
    unread = [m for m in written if not read & set(m.tiles.values())]
    outputs = {m.name for m in unread if m is written[-1] or pick(0, 3)} | {b.choose(written).name}
    graph = TaskGraph(
        name="made",
        dtype=dtype,
        split=tuple((x, len(b.cuts[x])) for x in sorted(b.cuts) if len(b.cuts[x]) > 1),
        values=tuple(replace(v, kind=Kind.OUTPUT) if v.name in outputs else v for v in b.values),
        tensors=tuple(replace(t, kind=Kind.OUTPUT) if t.value in outputs else t for t in b.tensors),
        tasks=tuple(b.tasks),
        ops=tuple(b.ops),
        outputs=tuple((f"out_{name}", name) for name in sorted(outputs)),
    )
    graph.verify()
    if joined:
        graph = joined_tasks(graph)
        graph.verify()
    return graph


@st.composite
def task_graphs(
    draw: st.DrawFn, *, most_ops: int = 8, largest_extent: int = 24, most_pieces: int = 3, workspaces: bool = True,
    dtypes: tuple[DType, ...] = (DType.FP32, DType.FP16), joined: bool = False,
) -> TaskGraph:  # fmt: skip
    """Valid TaskGraphs with real jobs: maps (adds, products, scales, summed rows), matrix products with and without addend, in one task
    or in chains over fp32 accumulators, host gathers; operands of one and of several tiles, values read again far away, the same tensor
    in two operands of a task, outputs that are read later, results that nobody reads, workspaces, in-place candidates; where `joined`,
    tasks with several results.

    Never makes: attention; scalars or more than two letters; empty ranges; partial definitions; softmax, max or mean; index
    expressions other than axes (except a gather's); several contractions in one job; batch letters in a contraction; constants or
    state; an output that is a weight or an input; a value whose tiles are cut unlike another's; sizes above a few KiB a tile.
    """
    dtype = draw(st.sampled_from(dtypes))
    return build_graph(lambda low, high: draw(st.integers(low, high)), dtype, most_ops, largest_extent, most_pieces, workspaces, joined)


def random_graph(
    seed: int, *, most_ops: int = 8, largest_extent: int = 24, most_pieces: int = 3, workspaces: bool = True, dtype: DType = DType.FP32,
    joined: bool = False,
) -> TaskGraph:  # fmt: skip
    """The same graphs as `task_graphs`, from a seed: for sweeps of thousands. Never makes what that never makes; never shrinks."""
    return build_graph(Random(seed).randint, dtype, most_ops, largest_extent, most_pieces, workspaces, joined)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Machines whose compute, links and latencies each may be the bottleneck.

    Never makes: zero rates; latencies above a second; a host smaller than 1 GiB; machines without fp32, bf16 or fp16.
    """
    rate = st.sampled_from([1e6, 1e7, 1e8, 1e9, 1e10])
    latency = st.sampled_from([0.0, 1e-6, 1e-5, 1e-3])
    flops = draw(rate)
    return Machine(
        name="made", device_bytes=2**30, host_bytes=2 ** draw(st.integers(30, 40)),
        flops_per_s=((DType.FP32, flops), (DType.BF16, 2 * flops), (DType.FP16, 2 * flops)),
        device_bytes_per_s=draw(rate), links=host_links(draw(rate), draw(rate), draw(latency)),
        launch_latency_s=draw(latency), about="made by a strategy",
    )  # fmt: skip


def a_machine(**figures: Any) -> Machine:
    """One ordinary machine; `figures` as for `changed`."""
    rates = ((DType.FP32, 1e9), (DType.BF16, 2e9), (DType.FP16, 2e9))
    return changed(Machine("plain", 2**30, 2**36, rates, 1e9, host_links(1e8, 1e8, 1e-5), 1e-5), **figures)


def changed(machine: Machine, **figures: Any) -> Machine:
    """`machine` with other figures, named as in a profile: `h2d_bytes_per_s` and `copy_latency_s` are those of its links."""
    for queue in (Queue.H2D, Queue.D2H):
        link = machine.link(queue)
        rate = figures.pop(f"{queue.name}_bytes_per_s", link.bytes_per_s)
        machine = machine.with_links(Link(queue, rate, figures.get("copy_latency_s", link.latency_s)))
    figures.pop("copy_latency_s", None)
    return replace(machine, **figures)


alignments = st.sampled_from((ALIGNMENT, 1))
"""What kernels want, and what traces get. Never makes: any other."""


def budgets(graph: TaskGraph, alignment: int = ALIGNMENT) -> st.SearchStrategy[Nbytes]:
    """Budgets under which a plan of `graph` exists, from the smallest there is up to all tensors at once.

    Never makes: a budget that is too small, or one that is not a multiple of the alignment.
    """
    _, least = largest_footprint(graph, alignment)
    everything = sum(aligned(t.nbytes, alignment) for t in graph.tensors) + max(aligned(t.workspace_bytes, alignment) for t in graph.tasks)
    most = max(everything, least)
    tight = st.integers(0, 8).map(lambda n: Nbytes(least + n * alignment))
    return tight | st.integers(least // alignment, most // alignment).map(lambda n: Nbytes(n * alignment))


def data(graph: TaskGraph, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Exact small data for every weight and input of `graph`, by value name: integers -3..3 in fp32; for a gather, valid rows in int32."""
    rng = np.random.default_rng(seed)
    rows_by_indices: dict[str, int] = {}
    shape_by_value = {v.name: v.shape for v in graph.values}
    for task in graph.tasks:
        if isinstance(task.job, GatherJob):
            table, indices = (graph.tensors[operand[0]].value for operand in task.operands)
            rows_by_indices[indices] = min(shape_by_value[table][0], rows_by_indices.get(indices, 2**31))
    out: dict[str, NDArray[Any]] = {}
    for value in graph.values:
        if value.kind not in (Kind.WEIGHT, Kind.INPUT):
            continue
        if value.dtype is DType.INT32:
            out[value.name] = rng.integers(0, rows_by_indices[value.name], value.shape).astype(np.int32)
        else:
            out[value.name] = rng.integers(-3, 4, value.shape).astype(np.float32)
    return out


@st.composite
def rectangles(draw: st.DrawFn, most: int = 9) -> list[Rectangle]:
    """2 to `most` rectangles over 8 instants. Never one without bytes or with an empty interval."""
    intervals = st.tuples(st.integers(0, 7), st.integers(0, 7)).map(sorted)
    drawn = draw(st.lists(st.tuples(intervals, st.integers(1, 9)), min_size=2, max_size=most))
    return [Rectangle(a, b + 1, nbytes) for (a, b), nbytes in drawn]
