"""KernelTimes from samples: the terms of each kind of kernel by least squares of relative errors, none of them negative.

In: probe runs with several numbers of rows, what copies take. Out: KernelTimes. What a term stands for is said where KernelTimes are
defined; nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import median

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.exec.measure.probe_runs import CopyingThread, KernelSample, ProbeRuns
from einpage.memplan.machine.kernel_times import AtRows, CopyTimes, KernelTimes, MapTimes, ProductTimes
from einpage.memplan.machine.work import KernelKind, Work

LEAST_SHARE = 0.05
"""Of a sample, what is left to arithmetic whatever launches seem to take."""
FAST = 1e15
"""FLOP/s of arithmetic that no sample shows."""


def fitted(
    runs: Sequence[ProbeRuns], copies: CopyTimes, wakeup_s: float, strided_by_rows: Mapping[int, float], unpack_s: float = 0.0
) -> KernelTimes:
    """What explains the samples best. `strided_by_rows`: how many times longer products take of matrices that are parts of wider rows;
    `unpack_s`: a number of a stored weight."""
    samples = [sample for run in runs for sample in run.kernels]
    alone_s = CopyingThread.BLOCK / copies.links[0].bytes_per_s
    rows = sorted({run.rows for run in runs})
    slows = {r: _factor([median(run.block_s for run in runs if run.rows == r) / alone_s]) for r in rows}
    maps = _maps(_alike(samples, KernelKind.MAP))
    products = _products(_alike(samples, KernelKind.PRODUCT), rows, strided_by_rows)
    attention = _attention(_alike(samples, KernelKind.ATTENTION), products.launch_s)
    few_queries = _few_queries(_alike(samples, KernelKind.FEW_QUERIES)) or attention
    attention = attention or few_queries
    assert attention is not None and few_queries is not None, "probes have attention"
    products, attention, few_queries = (_slowing(times, slows) for times in (products, attention, few_queries))
    return KernelTimes(
        _rounded(median(run.start_s for run in runs)),
        _rounded(wakeup_s),
        replace(products, unpack_s=_rounded(unpack_s)),
        attention,
        few_queries,
        replace(maps, slows_copies=_factor([*slows.values()])),
        copies,
    )


def _slowing(times: ProductTimes, slows: Mapping[int, float]) -> ProductTimes:
    return replace(times, at_rows=tuple(replace(at, slows_copies=slows[at.rows]) for at in times.at_rows))


def spread(runs: Sequence[ProbeRuns]) -> float:
    """The median of all samples' spreads."""
    return _rounded(median(sample.spread for run in runs for sample in run.kernels))


def _alike(samples: Sequence[KernelSample], kind: KernelKind) -> list[tuple[Work, float, float]]:
    """For each different work of that kind: seconds, and how many times longer it takes beside copies."""
    by_work: dict[Work, list[KernelSample]] = {}
    for sample in samples:
        if sample.work.kind is kind:
            by_work.setdefault(sample.work, []).append(sample)
    return [(work, median(s.seconds for s in alike), median(s.beside_s / s.seconds for s in alike)) for work, alike in by_work.items()]


def _maps(found: list[tuple[Work, float, float]]) -> MapTimes:
    plain = [(work, seconds) for work, seconds, _ in found if not work.looks_up]
    terms = np.array([(1.0, work.operations, work.elements, work.functions) for work, _ in plain])
    launch_s, operation_s, element_s, function_s = map(_rounded, non_negative(terms, np.array([seconds for _, seconds in plain])))
    times = MapTimes(launch_s, operation_s, element_s, max(function_s, element_s), 0.0, _factor([beside for *_, beside in found]))
    looked_up = [max(0.0, seconds - launch_s - times.pointwise(work)) for work, seconds, _ in found if work.looks_up]
    return MapTimes(
        launch_s, operation_s, element_s, times.function_s, _rounded(median(looked_up) if looked_up else 0.0), times.beside_copies
    )


def _products(found: list[tuple[Work, float, float]], rows: list[int], strided_by_rows: Mapping[int, float]) -> ProductTimes:
    """A rate for each number of rows, and one where the matrix lies column by column; what has other rows is between its neighbours."""
    used = [entry for entry in found if not entry[0].strided]
    layouts = (False, True)
    shares = [[(w.by_columns == layout) * share for layout in layouts for share in _shares(w.rows, rows)] for w, *_ in used]
    terms = np.array([(1.0, w.elements, w.functions, *(w.flops * share for share in of)) for (w, *_), of in zip(used, shares, strict=True)])
    launch_s, epilogue_s, function_s, *flop_s = non_negative(terms, np.array([seconds for _, seconds, _ in used]))
    by_rows_s, by_columns_s = flop_s[: len(rows)], flop_s[len(rows) :]
    entries = tuple(
        AtRows(
            r,
            _rounded(1 / each_s),
            _factor([beside for work, _, beside in used if work.rows == r]),
            _factor([strided_by_rows.get(r, 1.0)]),
            _rounded(column_s / each_s) if column_s > 0 else 1.0,
        )
        for r, each_s, column_s in zip(rows, by_rows_s, by_columns_s, strict=True)
        if each_s > 0
    )
    return ProductTimes(
        _rounded(launch_s), entries, epilogue_s=_rounded(epilogue_s), function_s=_rounded(max(function_s, epilogue_s))
    )  # fmt: skip


def _shares(rows: int, known: list[int]) -> list[float]:
    """How much each of the ascending `known` has of `rows`, over their logarithms: all of it the nearest beyond either end."""
    low = max((k for k in known if k <= rows), default=known[0])
    high = min((k for k in known if k >= rows), default=known[-1])
    share = 0.0 if high <= low else log(rows / low) / log(high / low)
    return [(1 - share) * (k == low) + share * (k == high and high != low) for k in known]


def _attention(found: list[tuple[Work, float, float]], launch_s: float) -> ProductTimes | None:
    """The launch of other products; what is beyond it is by heads and by arithmetic, at a rate for each number of rows."""
    if not found:
        return None
    rows = sorted({work.rows for work, *_ in found})
    left = np.array([max(seconds - launch_s, LEAST_SHARE * seconds) for _, seconds, _ in found])
    head_s, *flop_s = non_negative(np.array([(work.heads, *(work.flops * (work.rows == r) for r in rows)) for work, *_ in found]), left)
    entries = tuple(
        AtRows(r, _rounded(1 / each_s) if each_s > 0 else FAST, _factor([beside for work, _, beside in found if work.rows == r]))
        for r, each_s in zip(rows, flop_s, strict=True)
    )
    return ProductTimes(launch_s, entries, _rounded(head_s))


def _few_queries(found: list[tuple[Work, float, float]]) -> ProductTimes | None:
    """A launch, heads and one rate."""
    if not found:
        return None
    terms = np.array([(1.0, work.heads, work.flops) for work, *_ in found])
    launch_s, head_s, flop_s = non_negative(terms, np.array([seconds for _, seconds, _ in found]))
    rate = _rounded(1 / flop_s) if flop_s > 0 else FAST
    entries = (
        AtRows(rows, rate, _factor([beside for work, _, beside in found if work.rows == rows]))
        for rows in sorted({work.rows for work, *_ in found})
    )
    return ProductTimes(_rounded(launch_s), tuple(entries), _rounded(head_s))


def non_negative(terms: Floats, seconds: Floats) -> list[float]:
    """x at least 0 that makes terms @ x closest to `seconds` [sample], in parts of each: the terms [sample, term] that would be negative
    are left out, the worst first."""
    left = list(range(terms.shape[1]))
    weighted = terms / seconds[:, None]
    while left:
        found = np.linalg.lstsq(weighted[:, left], np.ones(len(seconds)), rcond=None)[0]
        if (found >= 0).all():
            break
        scale = np.abs(weighted[:, left]).max(axis=0)
        left.pop(int(np.argmin(found * scale)))
    x = np.zeros(terms.shape[1])
    x[left] = found if left else 0.0
    return [float(value) for value in x]


def _factor(ratios: Sequence[float]) -> float:
    """How many times longer, at least 1."""
    return _rounded(max(1.0, median(ratios))) if ratios else 1.0


def _rounded(x: float) -> float:
    """Three digits: more would be noise."""
    return float(f"{x:.3g}")
