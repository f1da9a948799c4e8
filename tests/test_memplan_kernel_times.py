"""What kernels usually take: read off tables, never less than the rates say, and written as YAML."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import OpId, Task, TaskId, TensorId
from einpage.exec.measure.products import product_job, whole_view
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.machine.disk_reads import DiskReads
from einpage.memplan.machine.kernel_times import AtRows, ProductTimes
from einpage.memplan.machine.machine import Machine, Measurement, task_seconds
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.machine.profile import PROFILES, load_machine, machine_from_text, machine_text
from einpage.memplan.machine.work import KernelKind, Work, work_of
from kernel_time_figures import kernel_times, nothing_usual
from strategies import a_machine, machines, task_graphs

TABLE = ProductTimes(0.0, (AtRows(4, 1e9, 1.0), AtRows(64, 16e9, 1.4)))


@pytest.mark.parametrize(
    ("rows", "gflops", "beside"), [(1, 1, 1.0), (4, 1, 1.0), (8, 2, 1.1), (16, 4, 1.2), (32, 8, 1.3), (64, 16, 1.4), (5000, 16, 1.4)]
)
def test_rates_are_interpolated_over_the_logarithm_of_rows(rows: int, gflops: float, beside: float) -> None:
    found = TABLE.interpolated(rows)
    assert (found.flops_per_s, found.beside_copies) == pytest.approx((gflops * 1e9, beside))


def test_the_work_of_each_kind_of_task() -> None:
    sizes = {"seq": 6, "layers": 1, "model": 16, "heads": 4, "kv_heads": 2, "ffn": 24, "vocab": 40}
    graph = build_graph(open_model(PROFILES.parent / "llama.yaml", sizes).program, PlanRequest(1 << 30)).graph
    works = {graph.ops[task.op].name.partition(".")[0]: work_of(task) for task in graph.tasks}
    assert works["q"] == Work(KernelKind.PRODUCT, rows=6, flops=2 * 6 * 16 * 16)
    assert works["y"] == Work(KernelKind.PRODUCT, 6, 2 * 2 * 6 * 16 * 24, operations=2, elements=2 * 6 * 24), "silu, times"
    assert works["logits"] == Work(KernelKind.PRODUCT, rows=1, flops=2 * 16 * 40)
    attention = works["o"]
    assert attention is not None and (attention.kind, attention.rows, attention.heads) == (KernelKind.FEW_QUERIES, 6, 2), "12 a head"
    norm = works["h"]
    # x**2, mean, + eps, rsqrt, times x, times norm1: what depends on s alone is computed for each s.
    assert norm == Work(KernelKind.MAP, operations=6, elements=6 * 16 * 4 + 12)
    last = next(work for work in works.values() if work is not None and work.looks_up)
    assert last.kind is KernelKind.MAP
    longer = build_graph(open_model(PROFILES.parent / "llama.yaml", sizes | {"seq": 9}).program, PlanRequest(1 << 30)).graph
    kinds = {work.kind for task in longer.tasks if (work := work_of(task)) is not None and work.heads}
    assert kinds == {KernelKind.ATTENTION}, "18 queries a head"
    assert [task for task in graph.tasks if work_of(task) is None] == [task for task in graph.tasks if task.gathers]


@pytest.mark.parametrize(("of_x", "of_w", "strided"), [((6, 8), (9, 8), False), ((6, 20), (9, 8), False), ((6, 8), (9, 20), True)])
def test_a_product_is_strided_where_its_larger_operand_is_a_part_of_wider_rows(
    of_x: tuple[int, int], of_w: tuple[int, int], strided: bool
) -> None:
    whole = product_job(6, 8, 9, DType.FP32)
    job = replace(whole, reads=(whole_view("x", of_x, DType.FP32), whole_view("w", of_w, DType.FP32)))
    found = work_of(Task(TaskId(0), "y", OpId(0), (), TensorId(0), (), 0, Nbytes(0), Nbytes(0), job, gathers=False))
    assert found is not None and found.strided is strided


@settings(max_examples=30, deadline=None)
@given(st.data(), machines())
def test_no_task_is_faster_than_the_best_rates(data: st.DataObject, machine: Machine) -> None:
    graph = data.draw(task_graphs(most_ops=4))
    usual = replace(machine, kernel_times=data.draw(kernel_times()))
    for task in graph.tasks:
        least = task_seconds(machine, graph, task)
        assert task_seconds(usual, graph, task) >= least
        assert task_seconds(usual.at_best(), graph, task) == least
        assert task_seconds(replace(machine, kernel_times=nothing_usual()), graph, task) == least


@given(machines(), kernel_times(), st.none() | st.builds(Measurement, st.floats(0, 9), st.floats(0, 99), st.integers(1, 999)))
def test_a_profile_keeps_them(machine: Machine, times: object, measured: Measurement | None) -> None:
    written = replace(machine, kernel_times=times, measured=measured)
    assert machine_from_text(machine_text(written), "round trip") == written


WHOLE = machine_text(a_machine(kernel_times=nothing_usual(), measured=Measurement(0.02, 0.1, 2)))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("together: 1.0", "together: 0.9", "copies together is '0.9'; it must be a number from 1"),
        ("gather_s: 0.0", "gather_s: -1", "gather_s"),
        ("gather_s: 0.0", "gather: 0.0", "kernel_times copies must have h2d_bytes_per_s"),
        ("- rows: 1\n", "- rows: 0\n", "rows is '0'"),
        ("- rows: 1\n", "- rows: 1.5\n", "rows is '1.5'"),
        ("flops_per_s: 1.0e+30", "flops_per_s: 0", "flops_per_s is '0'"),
        ("flops_per_s: 1.0e+30", "flops_per_s: .inf", "flops_per_s"),
        ("wakeup_s: 0.0", "wakeup_s: long", "wakeup_s is 'long'"),
        ("by_columns: 1.0", "by_columns: 0", "by_columns is '0'"),
        ("strided: 1.0", "strided: 0.9", "strided is '0.9'"),
        ("few_queries:\n", "queries:\n", "kernel_times must have"),
        ("maps:\n", "map:\n", "kernel_times must have"),
        ("spread: 0.02", "spread: -1", "spread"),
        ("others: 0.1", "weight: 0.1", "measured must have"),
        ("cores: 2", "cores: 0", "cores"),
    ],
)
def test_bad_ones_are_refused(old: str, new: str, told: str) -> None:
    assert old in WHOLE and machine_from_text(WHOLE, "good.yaml")
    with pytest.raises(UsageError, match=told) as caught:
        machine_from_text(WHOLE.replace(old, new), "bad.yaml")
    assert str(caught.value).startswith("bad.yaml:") and "\n" not in str(caught.value)


def test_rows_ascend_and_there_are_some() -> None:
    factors = "".join(f"      {name}: 1.0\n" for name in ("beside_copies", "strided", "by_columns", "slows_copies"))
    entry = f"- rows: 1\n      flops_per_s: 1.0e+30\n{factors}"
    assert entry in WHOLE
    with pytest.raises(UsageError, match="from 2"):
        machine_from_text(WHOLE.replace(entry, f"{entry}    {entry}"), "bad.yaml")
    with pytest.raises(UsageError, match="is empty; it is a list of rates"):
        machine_from_text(WHOLE.replace(f"at_rows:\n    {entry}", "at_rows: []\n"), "bad.yaml")


def test_a_profile_of_before_is_read_and_says_what_is_no_longer_used() -> None:
    machine = load_machine("h100")
    old = machine_from_text(machine_text(machine).replace("about:", "usual_slowdown: 1.6\nabout:", 1), "old.yaml")
    assert "usual_slowdown is no longer used" in old.outdated
    assert replace(old, outdated="") == machine and "usual_slowdown" not in machine_text(old)


def test_a_rate_that_is_given_is_not_outdone_by_one_that_was_measured() -> None:
    machine = a_machine(kernel_times=nothing_usual())
    slow = replace(machine.kernel_times.copies, links=(Link(Queue.H2D, 1e3),))  # type: ignore[union-attr]
    machine = replace(machine, kernel_times=replace(machine.kernel_times, copies=slow))  # type: ignore[type-var]
    assert machine.usual_link(Queue.H2D).bytes_per_s == 1e3 < machine.link(Queue.H2D).bytes_per_s
    assert machine.with_rate(Queue.H2D, 5e6).usual_link(Queue.H2D).bytes_per_s == 5e6


def test_a_disk_is_as_fast_as_it_was_measured_though_a_run_was_faster_once() -> None:
    best = Link(Queue.READ, 5e9, 1e-4, 3e-5)
    machine = replace(a_machine(kernel_times=nothing_usual()), disk=(DiskReads("io_uring", 8, 1 << 20, 2e9),)).with_links(best)
    assert machine.link(Queue.READ) == best and machine.usual_link(Queue.READ) == replace(best, bytes_per_s=2e9)
    assert machine.at_best().usual_link(Queue.READ) == best
    assert machine.with_rate(Queue.READ, 9e9).usual_link(Queue.READ).bytes_per_s == 9e9


def test_products_of_another_dtype_take_longer_as_its_best_rate_is_lower() -> None:
    times = replace(nothing_usual(), products=ProductTimes(0.5, (AtRows(1, 1e6),)))
    work = Work(KernelKind.PRODUCT, 4, 10**6)
    assert np.allclose([times.seconds(work), times.seconds(work, 3.0)], [1.5, 3.5])
    assert DType.FP32 in dict(a_machine().flops_per_s)
