"""The fit of kernel times: samples made from known times give these back; a run that beats a rate betters it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.exec.dispatch.engine import Measured
from einpage.exec.measure.better import bettered, faster
from einpage.exec.measure.fit import fitted, non_negative, sharing
from einpage.exec.measure.probe_runs import KernelSample, ProbeRuns, Shared, StreamedRuns, _covered
from einpage.memplan.graph.simulate import durations
from einpage.memplan.machine.kernel_times import AtRows, CopyTimes, KernelTimes, MapTimes, ProductTimes
from einpage.memplan.machine.places import Queue, host_links
from einpage.memplan.machine.work import KernelKind, Work
from hand_plan import hand_plan
from test_memplan_simulate import SECONDS

ROWS = (1, 16, 256)
KNOWN = KernelTimes(
    start_s=1e-3,
    wakeup_s=1e-5,
    products=ProductTimes(
        2e-5,
        (AtRows(1, 8e9, 1.2, by_columns=0.8), AtRows(16, 5e10, 1.1, by_columns=3.5), AtRows(256, 9e10, 1.0)),
        epilogue_s=3e-10,
        function_s=4e-9,
    ),
    attention=ProductTimes(2e-5, (AtRows(1, 1e9, 1.5), AtRows(16, 4e9, 1.5), AtRows(256, 2e10, 1.25)), head_s=1e-5),
    few_queries=ProductTimes(1e-5, (AtRows(1, 7e9, 1.1), AtRows(16, 7e9, 1.1), AtRows(256, 7e9, 1.1)), head_s=2e-6),
    maps=MapTimes(3e-5, 2e-6, 2e-10, 5e-9, 2e-4, 1.3),
    copies=CopyTimes(host_links(2e10, 2e10, 5e-6), 1e-4, 1.5),
)


def runs_of(times: KernelTimes, rows: Sequence[int] = ROWS) -> list[ProbeRuns]:
    """What a machine with those times would show: products of some shapes, two maps and attentions for each number of rows."""
    found = []
    for r in rows:
        works = [
            Work(KernelKind.PRODUCT, r, 2 * r * n * 1000, 0, *epilogue, by_columns=by_columns)
            for n, epilogue in ((500, (0, 0, 0)), (2000, (2, r * 18, 0)), (1000, (1, r * 9, r * 9)))
            for by_columns in (False, True)
        ]
        works += [Work(KernelKind.MAP, 0, 0, 0, *pointwise) for pointwise in ((6, 3000 * r, r), (12, 700 * r, 40 * r))]
        works += [Work(KernelKind.MAP, 0, 0, 0, 7, 900, 1, True), Work(KernelKind.ATTENTION, r, 40 * r * r, 5)]
        works += [Work(KernelKind.ATTENTION, r, 40 * r * r, 9), *(Work(KernelKind.FEW_QUERIES, r, n * r, n) for n in (5, 9))]
        samples = [KernelSample(w, 1, times.seconds(w), times.seconds(w), 0.01) for w in works]
        found.append(ProbeRuns(r, tuple(samples), (), 0.0, times.start_s))
    return found


def streamed(times: KernelTimes, together: float = 1.0, rows: Sequence[int] = ROWS) -> list[StreamedRuns]:
    """What runs with those times would show in which so much of what kernels do alone is done while copies are in flight, which take 1.2
    times as long for half of their time."""
    found = []
    for run in runs_of(times, rows):
        kernels = {}
        for sample in run.kernels:
            alone_s = times.seconds(sample.work)
            kernels[sample.work] = Shared(alone_s, together * times.sharing(sample.work)[0] * alone_s, (1 - together) * alone_s)
        found.append(StreamedRuns(run.rows, kernels, Shared(1.0, 0.6, 0.5)))
    return found


@pytest.mark.parametrize("together", [1.0, 0.7])
def test_known_sharing_is_found_again(together: float) -> None:
    """Within what doubt takes of a factor (fit.DOUBT); what just came may be read sooner than from memory."""
    known = replace(
        KNOWN,
        products=replace(KNOWN.products, at_rows=(replace(KNOWN.products.at_rows[0], beside_copies=0.6), *KNOWN.products.at_rows[1:])),
    )
    found = sharing(fitted(runs_of(known), known.copies, known.wakeup_s, {}), streamed(known, together))
    for work in (
        *(Work(kind, rows, 10**7, 5) for rows in ROWS for kind in (KernelKind.PRODUCT, KernelKind.ATTENTION, KernelKind.FEW_QUERIES)),
        Work(KernelKind.PRODUCT, 4, 10**7),
        Work(KernelKind.MAP, 0, 0, 0, 9, 10**5, 10**3),
    ):
        assert found.sharing(work) == pytest.approx((known.sharing(work)[0], 1.2), rel=0.07), work


def test_what_was_hardly_together_shares_without_effect() -> None:
    """Kernels that took a twentieth longer than alone, of which a hundredth was beside copies."""
    runs = [
        replace(run, kernels={work: Shared(s.alone_s, 0.01 * s.alone_s, 1.04 * s.alone_s) for work, s in run.kernels.items()})
        for run in streamed(KNOWN)
    ]
    found = sharing(KNOWN, runs)
    assert all(1.0 <= at.beside_copies < 1.03 for at in found.products.at_rows)
    assert 1.0 <= found.maps.beside_copies < 1.03


def test_seconds_together_are_those_in_which_the_other_side_was_in_flight() -> None:
    start, finish = np.array([0.0, 2.0, 5.0, 9.0]), np.array([1.0, 4.0, 8.0, 9.5])
    others = np.array([[0.5, 3.0], [2.5, 6.0], [7.0, 7.5]])
    assert _covered(start, finish, others[:, 0], others[:, 1]).tolist() == [0.5, 2.0, 1.5, 0.0]
    assert _covered(start, finish, others[:0, 0], others[:0, 1]).tolist() == [0.0] * 4


def test_known_times_are_found_again() -> None:
    found = fitted(runs_of(KNOWN), KNOWN.copies, KNOWN.wakeup_s, {16: 2.5})
    for work in [Work(KernelKind.PRODUCT, 40, 10**8), Work(KernelKind.MAP, 0, 0, 0, 9, 10**5, 10**3), Work(KernelKind.MAP, looks_up=True)]:
        assert found.seconds(work) == pytest.approx(KNOWN.seconds(work), rel=0.02), work
    usual, strided, by_columns, both = (
        found.seconds(Work(KernelKind.PRODUCT, 16, 10**9, strided=s, by_columns=c)) for s, c in ((0, 0), (1, 0), (0, 1), (1, 1))
    )
    assert (strided, by_columns, both) == pytest.approx((2.5 * usual, 3.5 * usual, 3.5 * usual), rel=0.02)
    for other in (
        *(Work(kind, 256, 10**8, 5) for kind in (KernelKind.ATTENTION, KernelKind.FEW_QUERIES)),
        *(Work(KernelKind.PRODUCT, 16, 10**7, 0, 1, 10**5, 10**5, by_columns=by) for by in (False, True)),
        Work(KernelKind.PRODUCT, 1, 10**7, by_columns=True),
    ):
        assert found.seconds(other) == pytest.approx(KNOWN.seconds(other), rel=0.02), other
    assert (found.start_s, found.wakeup_s, found.copies) == (KNOWN.start_s, KNOWN.wakeup_s, KNOWN.copies)


def test_what_has_other_rows_is_between_its_neighbours() -> None:
    """The smaller side of a product of many rows is that of its matrix: no run has so many rows."""
    runs = runs_of(KNOWN)
    between = Work(KernelKind.PRODUCT, 64, 10**9)
    slower = replace(runs[2].kernels[0], work=between, seconds=2 * KNOWN.seconds(between))
    found = fitted([*runs[:2], replace(runs[2], kernels=(*runs[2].kernels, slower))], KNOWN.copies, KNOWN.wakeup_s, {})
    for r in (16, 256):
        beside = Work(KernelKind.PRODUCT, r, 10**9)
        assert found.seconds(beside) > 1.02 * KNOWN.seconds(beside)


def test_without_loops_of_our_own_few_queries_are_as_others() -> None:
    runs = [replace(run, kernels=tuple(s for s in run.kernels if s.work.kind is not KernelKind.FEW_QUERIES)) for run in runs_of(KNOWN)]
    found = fitted(runs, KNOWN.copies, KNOWN.wakeup_s, {})
    assert found.few_queries == found.attention


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), st.integers(0, 1000))
def test_no_term_is_negative(x: list[float], seed: int) -> None:
    """With samples that are off by a fifth."""
    random = np.random.default_rng(seed)
    terms = random.random((12, 3)) + 0.01
    seconds = terms @ np.array(x) * random.uniform(0.8, 1.2, 12) + 1e-6
    assert min(non_negative(terms, seconds)) >= 0
    assert non_negative(terms, terms @ np.array(x) + 1e-300) == pytest.approx(x, abs=1e-6) or min(x) == 0


def measured(seconds: np.ndarray, share: float) -> Measured:
    """A pass of the hand-made plan in which each node takes `share` of its seconds."""
    start = np.arange(len(seconds), dtype=float) * 100
    return Measured(start, start + share * seconds, 1e4, {}, {})


def test_a_run_that_beats_a_rate_sets_it() -> None:
    """Nodes that take half of what the rates say: those of copies have a latency of 0.5 s in them."""
    plan = hand_plan()
    seconds = durations(plan, SECONDS)
    assert bettered(SECONDS, plan, [measured(seconds, 2.0), measured(seconds, 1.5)]) == SECONDS
    better = bettered(SECONDS, plan, [measured(seconds, 2.0), measured(seconds, 0.25)])
    names = [what for what, _, _ in faster(SECONDS, better)]
    assert names == ["fp32 products", "h2d copies", "d2h copies"]
    assert better.link(Queue.H2D).bytes_per_s == 512 / (0.25 * 2.5) and better.launch_latency_s == 0.25 * 3.0
    again = durations(plan, better)
    assert (again <= 0.25 * seconds + better.launch_latency_s + 0.5).all()
    assert bettered(better, plan, [measured(seconds, 0.25)]) == replace(better)
