"""KernelTimes from samples: the terms of each kind of kernel by least squares of relative errors, none of them negative.

In: probe runs with several numbers of rows, what copies take. Out: KernelTimes. What a term stands for is said where KernelTimes are
defined; nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.exec.measure.probe_runs import CopyingThread, KernelSample, ProbeRuns
from einpage.memplan.machine.kernel_times import AtRows, CopyTimes, KernelTimes, MapTimes, ProductTimes
from einpage.memplan.machine.work import KernelKind, Work

LEAST_SHARE = 0.05
"""Of a sample, what is left to arithmetic whatever launches seem to take."""


def fitted(
    runs: Sequence[ProbeRuns], copies: CopyTimes, wakeup_s: float, layouts_by_rows: Mapping[int, tuple[float, float]], unpack_s: float = 0.0
) -> KernelTimes:
    """What explains the samples best. `layouts_by_rows`: how many times longer products take of operands that are parts of wider rows, and
    of such that lie column by column; `unpack_s`: a number of a stored weight."""
    samples = [sample for run in runs for sample in run.kernels]
    alone_s = CopyingThread.BLOCK / copies.links[0].bytes_per_s
    slows = {run.rows: _factor([run.block_s / alone_s]) for run in runs}
    maps = _maps(_alike(samples, KernelKind.MAP))
    products = _products(_alike(samples, KernelKind.PRODUCT), sorted(run.rows for run in runs), layouts_by_rows)
    attention = _attention(_alike(samples, KernelKind.ATTENTION), products.launch_s)
    start_s = median(run.start_s for run in runs)
    products, attention = (
        replace(times, at_rows=tuple(replace(at, slows_copies=slows[at.rows]) for at in times.at_rows)) for times in (products, attention)
    )
    maps = replace(maps, slows_copies=_factor([*slows.values()]))
    return KernelTimes(_rounded(start_s), _rounded(wakeup_s), replace(products, unpack_s=_rounded(unpack_s)), attention, maps, copies)


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


def _products(found: list[tuple[Work, float, float]], rows: list[int], layouts_by_rows: Mapping[int, tuple[float, float]]) -> ProductTimes:
    used = [
        (work, seconds, beside)
        for work, seconds, beside in found
        if work.rows in rows and not (work.strided or work.by_columns or work.functions)
    ]
    terms = np.array([(1.0, work.elements, *(work.flops * (work.rows == r) for r in rows)) for work, *_ in used])
    launch_s, epilogue_s, *flop_s = non_negative(terms, np.array([seconds for _, seconds, _ in used]))
    entries = tuple(
        AtRows(
            r,
            _rounded(1 / each_s),
            _factor([beside for work, _, beside in used if work.rows == r]),
            *(_factor([factor]) for factor in layouts_by_rows.get(r, ())),
        )
        for r, each_s in zip(rows, flop_s, strict=True)
        if each_s > 0
    )  # fmt: skip
    return ProductTimes(_rounded(launch_s), entries, epilogue_s=_rounded(epilogue_s))


def _attention(found: list[tuple[Work, float, float]], launch_s: float) -> ProductTimes:
    """The launch of other products; what the shortest rows take beyond it is by heads, the rest by arithmetic."""
    found = sorted(found, key=lambda entry: entry[0].rows)
    shortest, seconds, _ = found[0]
    head_s = max(0.0, seconds * (1 - LEAST_SHARE) - launch_s) / shortest.heads
    entries = [
        AtRows(
            work.rows,
            _rounded(work.flops / max(seconds - launch_s - work.heads * head_s, LEAST_SHARE * seconds)),
            _factor([beside]),
        )
        for work, seconds, beside in found
    ]  # fmt: skip
    return ProductTimes(launch_s, tuple(entries), _rounded(head_s))


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
