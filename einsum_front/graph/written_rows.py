"""A map that puts rows into a value at a place that data give, and leaves the rest as it was: how a state is written row by row.

In: a MapJob. Out: what it writes where, or None where it is another map. To recognise it is worth much: all it has to do is to copy some
rows, where its expression asks every element of the value whether it is one of them.

    where(t >= at[b] and t < at[b] + 4, p[b, max(min(t - at[b], 3), 0), d], c[b,t,d])      4 rows of p from at[b] on, into c along t
"""

from __future__ import annotations

from dataclasses import dataclass

from einpage.einsum_front.algebra.expr import Axis, Binary, Call, Expr, Letter, Load, Num, free_letters
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import MapJob


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """`count` rows of the value that `rows` reads, into that which `before` reads, from `start + shift` on."""

    along: Letter
    """Which letter of the target counts the rows of `before`."""
    start: Load
    """Indexed by letters of the target and numbers."""
    shift: int
    count: int
    rows: Load
    """Indexed by letters of the target and numbers, but for `counted`."""
    counted: int | None
    """Which of its indices counts the rows; None where it is one row that none counts."""
    before: Load
    """Indexed as the target is."""


def written_rows(job: MapJob) -> WrittenRows | None:
    """What `job` writes, if that is rows and nothing else, and each of its operands lies in one tile of the result's dtype."""
    if len(job.parts) != 1:
        return None
    (part,) = job.parts
    match part.expr:
        case Call("where", (Binary("and", Binary(">=", Axis(t), start), Binary("<", Axis(u), end)), Load() as rows, Load() as before)):
            placed, count = _place(start), _count(start, end)
        case _:
            return None
    letters = [i.letter for i in part.target if isinstance(i, Axis)]
    if t != u or placed is None or count is None or before.indices != part.target or len(set(letters)) != len(letters) != 0:
        return None
    first, shift = placed
    if not all(isinstance(i, Axis | Num) for i in first.indices) or t in free_letters(first):
        return None
    counting = [n for n, i in enumerate(rows.indices) if not isinstance(i, Axis | Num)]
    if any(not _counts(rows.indices[n], Binary("-", Axis(t), start), count) for n in counting) or len(counting) > 1:
        return None
    others = {i.letter for i in rows.indices if isinstance(i, Axis)}
    if t in others or not (others | free_letters(first)) <= set(letters) or (count > 1 and not counting):
        return None
    view_by_name = {view.name: view for view in job.reads}
    of_start, of_rows, of_before = (view_by_name[load.name] for load in (first, rows, before))
    if any(len(view.boxes) > 1 for view in (of_start, of_rows, of_before)):
        return None
    if of_start.dtype is not DType.INT32 or {of_rows.dtype, of_before.dtype} != {job.result.dtype}:
        return None
    return WrittenRows(t, first, shift, count, rows, counting[0] if counting else None, before)


def _place(start: Expr) -> tuple[Load, int] | None:
    match start:
        case Load():
            return start, 0
        case Binary("+", Load() as load, Num(n)) | Binary("+", Num(n), Load() as load) if float(n).is_integer():
            return load, int(n)
    return None


def _count(start: Expr, end: Expr) -> int | None:
    match end:
        case Binary("+", x, Num(n)) if x == start and float(n).is_integer() and n >= 1:
            return int(n)
    return None


def _counts(index: Expr, row: Expr, count: int) -> bool:
    """Whether `index` is `row` wherever that is from 0 to count - 1."""
    match index:
        case Call("min", (x, Num(n))):
            return n >= count - 1 and _counts(x, row, count)
        case Call("max", (x, Num(n))):
            return n <= 0 and _counts(x, row, count)
    return index == row
