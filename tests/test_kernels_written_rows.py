"""Maps that write rows of a state: recognised for what they are, right wherever the rows go, and nothing but rows written in place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.algebra.expr import Expr, Num
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.job import MapJob, Part
from einpage.einsum_front.graph.taskgraph import OpId, Task, TaskId, TensorId
from einpage.einsum_front.graph.written_rows import written_rows
from einpage.kernels.instructions.torch_kernel import TorchKernel
from einpage.kernels.on_torch.map import prepare_map
from einpage.kernels.on_torch.written_rows import MOST_PLACES, prepare_written_rows
from einpage.kernels.prepare import prepare
from einpage.memplan.machine.work import KernelKind, Work, work_of
from kernels_build import BF, I32, F, ex, fill, fn, ld, op, ranges, result, view
from kernels_naive import expected

BATCH, ROWS, WIDE = 3, 4, 5


def job(*, first: int = 2, end: int = 11, count: int = ROWS, shift: int = 0, cut: bool = False) -> MapJob:
    """c[b,t,d] for t from `first` to `end`, with rows p[b,s,d] from at[b] + shift on."""
    start: Expr = ld("at", "b") if shift == 0 else op("+", ld("at", "b"), shift)
    inside = op("and", op(">=", "t", start), op("<", "t", op("+", start, count)))
    rows = ld("p", "b", fn("max", fn("min", op("-", "t", start), count - 1), 0), "d")
    reads = (
        view("at", BATCH, dtype=I32),
        view("p", BATCH, count, WIDE, cuts={1: [1]} if cut else None),
        result("c", BATCH, end - first, WIDE, at=(0, first, 0)),
    )
    written = result("y", BATCH, end - first, WIDE, at=(0, first, 0))
    part = Part((ex("b"), ex("t"), ex("d")), fn("where", inside, rows, ld("c", "b", "t", "d")))
    return MapJob(ranges(b=BATCH, t=(first, end), d=WIDE), reads, written, (part,))


def kernel(of: MapJob) -> TorchKernel:
    found = prepare_written_rows(of)
    assert found is not None and found.scratch_bytes == 0
    return found


def where(condition: Expr | None = None, rows: Expr | None = None, before: Expr | None = None) -> MapJob:
    of = job()
    old = of.parts[0].expr.args  # type: ignore[union-attr]
    args = tuple(a if b is None else b for a, b in zip(old, (condition, rows, before), strict=True))
    return replace(of, parts=(replace(of.parts[0], expr=fn("where", *args)),))


AT = ld("at", "b")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-6, 14), min_size=BATCH, max_size=BATCH),
    st.integers(0, 4),
    st.integers(1, 9),
    st.integers(1, ROWS),
    st.integers(-2, 3),
)
def test_rows_go_wherever_data_say(at: list[int], first: int, extent: int, count: int, shift: int) -> None:
    case = fill(job(first=first, end=first + extent, count=count, shift=shift), seed=count, at=np.array(at))
    out, by_map = case.poisoned(), case.poisoned()
    kernel(case.job)(case.operands(), out)  # type: ignore[arg-type]
    np.testing.assert_array_equal(out.double().numpy(), expected(case))
    prepare_map(case.job)(case.operands(), by_map)  # type: ignore[arg-type]
    assert torch.equal(out, by_map)


@pytest.mark.parametrize("at", [[2, 5, 9], [-3, 0, 30]])
def test_in_place_only_rows_are_written(at: list[int]) -> None:
    case = fill(job(), at=np.array(at))
    apart, operands = case.poisoned(), case.operands()
    call = kernel(case.job)  # type: ignore[arg-type]
    call(operands, apart)
    call(operands, operands[2][0])
    assert torch.equal(operands[2][0], apart)
    operands[2][0].fill_(7.0)
    call(operands, operands[2][0])
    untouched = apart == torch.from_numpy(case.values["c"][:, 2:11]).float()
    assert (operands[2][0][untouched] == 7.0).all() and not untouched.all()


@pytest.mark.parametrize("indices", [("b", 0, "d"), ("b", "d")])
def test_one_row_that_none_counts(indices: tuple[str | int, ...]) -> None:
    of = where(op("and", op(">=", "t", AT), op("<", "t", op("+", AT, 1))), rows=ld("p", *indices))
    rows = view("p", BATCH, 1, WIDE) if len(indices) == 3 else view("p", BATCH, WIDE)
    case = fill(replace(of, reads=(of.reads[0], rows, of.reads[2])), at=np.array([3, 1, 10]))
    out = case.poisoned()
    kernel(of=case.job)(case.operands(), out)  # type: ignore[arg-type]
    np.testing.assert_array_equal(out.double().numpy(), expected(case))


def test_prepare_recognises_it() -> None:
    of = job()
    assert prepare(of) == prepare_written_rows(of) and prepare(of) != prepare_map(of)
    task = Task(TaskId(0), "c", OpId(0), (), TensorId(0), (), 0, Nbytes(0), Nbytes(0), of, gathers=False)
    assert work_of(task) == Work(KernelKind.MAP, operations=2, elements=BATCH * 9 * WIDE)


STRANGERS = {
    "another end": where(op("and", op(">=", "t", AT), op("<", "t", op("+", ld("at", 0), ROWS)))),
    "rows before the place": where(op("and", op(">", "t", AT), op("<", "t", op("+", AT, ROWS)))),
    "another letter": where(op("and", op(">=", "t", AT), op("<", "d", op("+", AT, ROWS)))),
    "half a row": where(op("and", op(">=", "t", AT), op("<", "t", op("+", AT, 1.5)))),
    "rows without end": where(op("and", op(">=", "t", AT), op("<", "t", op("+", AT, float("inf"))))),
    "rows from nowhere": where(
        op("and", op(">=", "t", op("+", AT, float("inf"))), op("<", "t", op("+", op("+", AT, float("inf")), ROWS))),
    ),
    "a place along the rows": where(op("and", op(">=", "t", ld("at", "t")), op("<", "t", op("+", ld("at", "t"), ROWS)))),
    "rows that end sooner": where(rows=ld("p", "b", fn("max", fn("min", op("-", "t", AT), ROWS - 2), 0), "d")),
    "rows that begin later": where(rows=ld("p", "b", fn("max", fn("min", op("-", "t", AT), ROWS - 1), 1), "d")),
    "rows the other way": where(rows=ld("p", "b", fn("max", fn("min", op("-", AT, "t"), ROWS - 1), 0), "d")),
    "the same row for all": where(rows=ld("p", "b", 0, "d")),
    "rows by the target's letter": where(rows=ld("p", "b", "t", "d")),
    "rows computed": where(rows=op("*", ld("p", "b", 0, "d"), 2)),
    "left as it was elsewhere": where(before=ld("c", "b", op("+", "t", 1), "d")),
    "something else left": where(before=Num(0.0)),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_another_map_is_not_taken_for_it(name: str) -> None:
    assert written_rows(job()) is not None
    assert written_rows(STRANGERS[name]) is None and prepare_written_rows(STRANGERS[name]) is None


def test_what_it_does_not_read_in_one_piece_is_left_to_maps() -> None:
    of = job()
    strangers = (
        job(cut=True),
        replace(of, result=replace(of.result, element_type=BF)),
        replace(of, reads=(view("at", BATCH, dtype=F), *of.reads[1:])),
    )
    for stranger in strangers:
        assert written_rows(stranger) is None and prepare_written_rows(stranger) is None
    many = job()
    batch = MOST_PLACES + 1
    reads = (view("at", batch, dtype=I32), view("p", batch, ROWS, WIDE), result("c", batch, 9, WIDE, at=(0, 2, 0)))
    many = replace(many, ranges=ranges(b=batch, t=(2, 11), d=WIDE), reads=reads, result=result("y", batch, 9, WIDE, at=(0, 2, 0)))
    assert written_rows(many) is not None and prepare_written_rows(many) is None
