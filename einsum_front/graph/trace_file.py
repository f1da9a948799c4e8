"""An access trace as a TaskGraph: which bytes each op reads and writes, in which order and for how long, but not what is computed.

In: JSON, gzipped or not: `tensors`, rows [bytes, host copy at the start, must end on the host, kind], and `ops`, rows [name, input ids,
output ids, microseconds] in a valid order. Out: a TaskGraph whose tensors are opaque bytes and whose tasks have no job.

A task of a trace writes one tensor. Of an op with several outputs, those that are never used again are workspace; where several are used,
the op is a sequence of tasks, the first of which takes its whole time. Each reads what the op reads and what those before it wrote, and has
the rest as workspace, so that each needs exactly the op's bytes:

    op  [x] -> [a, b, c], 5 us, c never used       task 0  x    -> a, workspace b + c, 5 us
                                                   task 1  x, a -> b, workspace c,     0 us
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import opened_to_read
from einpage.einsum_front.base.json_text import JsonError, JsonTooLarge, parsed
from einpage.einsum_front.base.units import Nbytes, format_bytes, shown
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.taskgraph import Kind, Op, OpId, Task, TaskGraph, TaskId, Tensor, TensorId, Value

TENSOR_FIELDS = ["bytes", "host_copy_at_start", "must_end_on_host", "kind"]
OP_FIELDS = ["name", "inputs", "outputs", "duration_us"]
GZIP = b"\x1f\x8b"
"""The first two bytes of a gzipped file."""
MOST_BYTES = 32 << 20
"""Of a trace's JSON, unpacked: a quarter of a million ops."""
MOST_ROWS = 1 << 18
"""Of tensors, and of ops."""
MOST_TENSOR_BYTES = 2**48
"""Larger tensors are refused: no machine holds one."""
MOST_TOTAL_BYTES = 2**62
"""Of all tensors, so that sums of their sizes stay inside 64 bits."""
MOST_MICROS = 1e15
"""Of an op: thirty years."""


@dataclass(frozen=True, slots=True)
class _TensorRow:
    """A row of `tensors`."""

    nbytes: int
    starts_on_host: bool
    must_end_on_host: bool
    kind_name: str

    @property
    def kind(self) -> Kind:
        if self.starts_on_host:
            return Kind.WEIGHT if self.kind_name == "w" else Kind.INPUT
        return Kind.OUTPUT if self.must_end_on_host else Kind.ACTIVATION


@dataclass(frozen=True, slots=True)
class _OpRow:
    """A row of `ops`."""

    name: str
    inputs: tuple[int, ...]
    """Each once; tensors of no bytes are left out, here and below."""
    outputs: tuple[int, ...]
    seconds: float


def read_trace(path: str | Path) -> TaskGraph:
    """The graph of a trace file. Tensors without bytes are left out, and so are those that are workspace.

    Raises UsageError, with the row and the cure, for a file that is no such trace: a missing key, an unknown id, a negative size, a
    tensor that is read before it is written, written twice, or never written though it must end on the host.
    """
    where = str(path)
    raw = _json(Path(path))
    rows = tuple(_tensor_row(where, i, row) for i, row in enumerate(_list(where, raw, "tensors", TENSOR_FIELDS)))
    ops = tuple(_op_row(where, i, op, rows) for i, op in enumerate(_list(where, raw, "ops", OP_FIELDS)))
    if sum(row.nbytes for row in rows) > MOST_TOTAL_BYTES:
        _refuse(where, "tensors", "their sizes add up to more bytes than 64 bits count", "give each its own size in bytes")
    _check_flow(where, rows, ops)
    name = raw.get("name", Path(path).name.removesuffix(".gz").removesuffix(".json"))
    graph = _graph(str(name), rows, ops)
    graph.verify()
    return graph


def _refuse(where: str, place: str, wrong: str, cure: str) -> NoReturn:
    raise UsageError(f"{where}: {place}: {wrong}; {cure}")


def _json(path: Path) -> dict[str, object]:
    wanted = "give an access trace, .json or .json.gz"
    try:
        with opened_to_read(path, MOST_BYTES) as file:
            zipped = file.peek(2)[:2] == GZIP
            with gzip.open(file) if zipped else file as unpacked:
                data = unpacked.read(MOST_BYTES + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UsageError(f"{path}: truncated or not JSON: {error}; {wanted}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"trace {path} cannot be read: {getattr(error, 'strerror', None) or error}; {wanted}") from error
    if len(data) > MOST_BYTES:
        raise UsageError(
            f"{path}: more than {format_bytes(MOST_BYTES)} of JSON{' when unpacked' if zipped else ''}, which no trace has; {wanted}"
        )
    try:
        raw = parsed(data)
    except JsonTooLarge as error:
        raise UsageError(f"{path}: {error}, which no trace takes; {wanted}") from error
    except JsonError as error:
        raise UsageError(f"{path}: truncated or not JSON: {error}; {wanted}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: a trace is a mapping with `tensors` and `ops`, this is {type(raw).__name__}")
    return raw


def _list(where: str, raw: dict[str, object], key: str, fields: list[str]) -> list[object]:
    """The rows under `key`; where the file names its columns, they must be ours."""
    shape = f"a list of rows [{', '.join(fields)}]"
    if key not in raw:
        _refuse(where, key, "missing", f"a trace has {shape} there")
    found = raw[key]
    if not isinstance(found, list):
        _refuse(where, key, f"{type(found).__name__}, not a list", f"write {shape}")
    if len(found) > MOST_ROWS:
        _refuse(where, key, f"{len(found)} rows", f"there may be {MOST_ROWS}")
    columns = f"{key[:-1]}_fields"
    if raw.get(columns, fields) != fields:
        _refuse(where, columns, shown(raw[columns]), f"columns are {fields}, in this order")
    return found


def _place(i: int, name: str) -> str:
    return f"ops[{i}] ({name if len(name) <= 60 else shown(name)})"


def _is_count(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= 0


def _tensor_row(where: str, i: int, row: object) -> _TensorRow:
    place, cure = f"tensors[{i}]", f"write [{', '.join(TENSOR_FIELDS)}], as in [4096, 1, 0, 'w']"
    if not isinstance(row, list) or len(row) != len(TENSOR_FIELDS):
        _refuse(where, place, f"{shown(row)} is not a row of {len(TENSOR_FIELDS)}", cure)
    nbytes, starts_on_host, must_end_on_host, kind = row
    if not _is_count(nbytes):
        _refuse(where, place, f"{shown(nbytes)} is not a number of bytes", cure)
    if nbytes > MOST_TENSOR_BYTES:
        _refuse(where, place, f"{shown(nbytes)} is more bytes than any machine has", cure)
    if not all(isinstance(flag, int) and flag in (0, 1) for flag in (starts_on_host, must_end_on_host)):
        _refuse(where, place, f"{shown(starts_on_host)}, {shown(must_end_on_host)} are not two of 0 and 1", cure)
    if not isinstance(kind, str):
        _refuse(where, place, f"kind {shown(kind)} is not a text", cure)
    return _TensorRow(nbytes, bool(starts_on_host), bool(must_end_on_host), kind)


def _op_row(where: str, i: int, op: object, rows: tuple[_TensorRow, ...]) -> _OpRow:
    place, cure = f"ops[{i}]", f"write [{', '.join(OP_FIELDS)}], as in ['Relu', [3], [4], 12.5]"
    if not isinstance(op, list) or len(op) != len(OP_FIELDS):
        _refuse(where, place, f"{shown(op)} is not a row of {len(OP_FIELDS)}", cure)
    name, inputs, outputs, micros = op
    if not isinstance(name, str):
        _refuse(where, place, f"name {shown(name)} is not a text", cure)
    place = _place(i, name)
    for ids in (inputs, outputs):
        if not isinstance(ids, list):
            _refuse(where, place, f"{shown(ids)} is not a list of tensor ids", cure)
        for t in ids:
            if not _is_count(t) or t >= len(rows):
                _refuse(where, place, f"unknown tensor id {shown(t)}", f"ids are positions in `tensors`, 0 to {len(rows) - 1}")
    if isinstance(micros, bool) or not isinstance(micros, int | float) or not 0 <= micros <= MOST_MICROS:
        _refuse(where, place, f"{shown(micros)} is not a duration in microseconds, at most {MOST_MICROS:g}", cure)
    nonempty = [tuple(t for t in dict.fromkeys(ids) if rows[t].nbytes) for ids in (inputs, outputs)]
    if len(nonempty[1]) < sum(1 for t in outputs if rows[t].nbytes):
        _refuse(where, place, "names an output twice", "each tensor is written once")
    if not nonempty[1]:
        _refuse(where, place, "writes no bytes", "give it an output of at least one byte")
    return _OpRow(name, nonempty[0], nonempty[1], micros / 1e6)


def _check_flow(where: str, rows: tuple[_TensorRow, ...], ops: tuple[_OpRow, ...]) -> None:
    """Raises UsageError unless each tensor is written once, before it is read."""
    defined = {t for t, row in enumerate(rows) if row.starts_on_host}
    for i, op in enumerate(ops):
        place = _place(i, op.name)
        for t in op.inputs:
            if t not in defined:
                _refuse(where, place, f"reads tensor {t}, which nothing has written", "put its writer first, or give it a host copy")
        for t in op.outputs:
            if t in defined:
                has = "has a host copy" if rows[t].starts_on_host else "is written already"
                _refuse(where, place, f"writes tensor {t}, which {has}", "give each version of a tensor its own id")
        defined.update(op.outputs)
    for t, row in enumerate(rows):
        if row.must_end_on_host and row.nbytes and t not in defined:
            _refuse(where, f"tensors[{t}]", "must end on the host, and nothing writes it", "give it a writer or a host copy")


def _graph(name: str, rows: tuple[_TensorRow, ...], ops: tuple[_OpRow, ...]) -> TaskGraph:
    read = {t for op in ops for t in op.inputs}
    results = tuple(_results(op, rows, read) for op in ops)
    tensor_rows = {t for t, row in enumerate(rows) if row.starts_on_host and row.nbytes}.union(*results)
    id_by_row = {t: TensorId(i) for i, t in enumerate(sorted(tensor_rows))}
    tensors = tuple(_tensor(i, t, rows[t]) for t, i in id_by_row.items())
    uses = Counter(op.name for op in ops)
    names = tuple(op.name if uses[op.name] == 1 else f"{op.name}#{i}" for i, op in enumerate(ops))
    return TaskGraph(
        name=name,
        dtype=DType.BYTE,
        split=(),
        values=tuple(Value(t.name, t.name, t.shape, t.dtype, t.kind) for t in tensors),
        tensors=tensors,
        tasks=tuple(_tasks(rows, ops, names, results, id_by_row)),
        ops=tuple(
            Op(OpId(i), op_name, "traced", 0, _bytes(rows, (*op.inputs, *op.outputs)), "", op.seconds)
            for i, (op, op_name) in enumerate(zip(ops, names, strict=True))
        ),
        outputs=tuple((t.name, t.name) for t in tensors if t.kind is Kind.OUTPUT),
    )


def _results(op: _OpRow, rows: tuple[_TensorRow, ...], read: set[int]) -> tuple[int, ...]:
    """The outputs that are tensors of the graph: those that are used, or else the first, for a task has a result."""
    return tuple(t for t in op.outputs if t in read or rows[t].must_end_on_host) or op.outputs[:1]


def _tensor(i: TensorId, row_id: int, row: _TensorRow) -> Tensor:
    name = f"{row.kind_name}.{row_id}"
    return Tensor(i, name, name, Box((0,), (row.nbytes,)), DType.BYTE, row.kind)


def _tasks(
    rows: tuple[_TensorRow, ...],
    ops: tuple[_OpRow, ...],
    names: tuple[str, ...],
    results: tuple[tuple[int, ...], ...],
    id_by_row: dict[int, TensorId],
) -> Iterator[Task]:
    """The sequence of tasks of each op, as in the drawing above."""
    count = 0
    for i, op in enumerate(ops):
        for n, result in enumerate(results[i]):
            reads = (*op.inputs, *results[i][:n])
            yield Task(
                id=TaskId(count),
                name=names[i] if n == 0 else f"{names[i]}:{n}",
                op=OpId(i),
                operands=tuple((id_by_row[t],) for t in reads),
                result=id_by_row[result],
                inplace=(),
                flops=0,
                bytes_touched=_bytes(rows, (*reads, result)),
                workspace_bytes=Nbytes(_bytes(rows, op.outputs) - _bytes(rows, results[i][: n + 1])),
                job=None,
                gathers=False,
                seconds=op.seconds if n == 0 else 0.0,
            )
            count += 1


def _bytes(rows: tuple[_TensorRow, ...], ids: tuple[int, ...]) -> Nbytes:
    return Nbytes(sum(rows[t].nbytes for t in ids))
