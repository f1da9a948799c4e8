"""KernelTimes from samples: the terms of each kind of kernel by least squares of relative errors, none of them negative.

In: probe runs with several numbers of rows, what copies take. Out: KernelTimes; with runs that stream, how kernels and copies share the
machine. What a term stands for is said where KernelTimes are defined; nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log
from statistics import median

import numpy as np

from einpage.einsum_front.base.columns import Floats
from einpage.exec.measure.probe_runs import KernelSample, ProbeRuns, Shared, StreamedRuns, rounded
from einpage.memplan.machine.kernel_times import AtRows, CopyTimes, KernelTimes, MapTimes, ProductTimes
from einpage.memplan.machine.work import KernelKind, Work

LEAST_SHARE = 0.05
"""Of a sample, what is left to arithmetic whatever launches seem to take."""
FAST = 1e15
"""FLOP/s of arithmetic that no sample shows."""
DOUBT = 0.03
"""(0.05 / 0.3)^2: what nodes take alone is known to a twentieth, and sharing is expected to take or save three tenths at most."""
LEAST_SHARED, MOST_SHARED = 0.25, 16.0
"""What just came is in a cache; a factor beyond these is noise."""


def fitted(
    runs: Sequence[ProbeRuns], copies: CopyTimes, wakeup_s: float, strided_by_rows: Mapping[int, float], unpack_s: float = 0.0
) -> KernelTimes:
    """What explains the samples best. `strided_by_rows`: how many times longer products take of matrices that are parts of wider rows;
    `unpack_s`: a number of a stored weight."""
    samples = [sample for run in runs for sample in run.kernels]
    rows = sorted({run.rows for run in runs})
    products = _products(_alike(samples, KernelKind.PRODUCT), rows, strided_by_rows)
    attention = _attention(_alike(samples, KernelKind.ATTENTION), products.launch_s)
    few_queries = _few_queries(_alike(samples, KernelKind.FEW_QUERIES)) or attention
    attention = attention or few_queries
    assert attention is not None and few_queries is not None, "probes have attention"
    return KernelTimes(
        rounded(median(run.start_s for run in runs)),
        rounded(wakeup_s),
        replace(products, unpack_s=rounded(unpack_s)),
        attention,
        few_queries,
        _maps(_alike(samples, KernelKind.MAP)),
        copies,
    )


def sharing(times: KernelTimes, runs: Sequence[StreamedRuns]) -> KernelTimes:
    """`times` with how kernels and copies share the machine, as runs show it that stream; what these lack takes as long as alone."""
    known = sorted({run.rows for run in runs})
    slows = {r: _shared_factor([run.copies for run in runs if run.rows == r]) for r in known}

    def of_rows(kind: KernelKind, times: ProductTimes) -> ProductTimes:
        ends = [at.rows for at in times.at_rows]
        entries = []
        for at in times.at_rows:
            parts = [
                (_shares(work.rows, ends)[ends.index(at.rows)], shared)
                for run in runs for work, shared in run.kernels.items() if work.kind is kind
            ]  # fmt: skip
            slowed = sum(share * slows[r] for r, share in zip(known, _shares(at.rows, known), strict=True))
            entries.append(
                replace(at, beside_copies=_shared_factor([s for _, s in parts], [w for w, _ in parts]), slows_copies=rounded(slowed))
            )
        return replace(times, at_rows=tuple(entries))

    maps = [shared for run in runs for work, shared in run.kernels.items() if work.kind is KernelKind.MAP]
    return replace(
        times,
        products=of_rows(KernelKind.PRODUCT, times.products),
        attention=of_rows(KernelKind.ATTENTION, times.attention),
        few_queries=of_rows(KernelKind.FEW_QUERIES, times.few_queries),
        maps=replace(times.maps, beside_copies=_shared_factor(maps), slows_copies=rounded(median(slows.values()))),
    )


def _shared_factor(found: Sequence[Shared], weights: Sequence[float] | None = None) -> float:
    """How many times as long nodes take while the other side is in flight. Of the time together a share is lost (or saved), which explains
    what they take beyond their time alone: by least squares, near none where little was together (ridge regression)."""
    lost = alone = together = 0.0
    for shared, weight in zip(found, weights or [1.0] * len(found), strict=True):
        if shared.alone_s > 0:
            part = weight * shared.together_s / shared.alone_s
            lost += part * (shared.together_s + shared.apart_s - shared.alone_s)
            together += part * shared.together_s
            alone += weight * shared.alone_s
    share = lost / (together + DOUBT * alone) if alone > 0 else 0.0
    return rounded(1 / min(1 / LEAST_SHARED, max(1 / MOST_SHARED, 1 - share)))


def spread(runs: Sequence[ProbeRuns]) -> float:
    """The median of all samples' spreads."""
    return rounded(median(sample.spread for run in runs for sample in run.kernels))


def _alike(samples: Sequence[KernelSample], kind: KernelKind) -> list[tuple[Work, float]]:
    """For each different work of that kind: seconds."""
    by_work: dict[Work, list[KernelSample]] = {}
    for sample in samples:
        if sample.work.kind is kind:
            by_work.setdefault(sample.work, []).append(sample)
    return [(work, median(s.seconds for s in alike)) for work, alike in by_work.items()]


def _maps(found: list[tuple[Work, float]]) -> MapTimes:
    plain = [(work, seconds) for work, seconds in found if not work.looks_up]
    terms = np.array([(1.0, work.operations, work.elements, work.functions) for work, _ in plain])
    launch_s, operation_s, element_s, function_s = map(rounded, non_negative(terms, np.array([seconds for _, seconds in plain])))
    times = MapTimes(launch_s, operation_s, element_s, max(function_s, element_s), 0.0)
    looked_up = [max(0.0, seconds - launch_s - times.pointwise(work)) for work, seconds in found if work.looks_up]
    return replace(times, look_up_s=rounded(median(looked_up) if looked_up else 0.0))


def _products(found: list[tuple[Work, float]], rows: list[int], strided_by_rows: Mapping[int, float]) -> ProductTimes:
    """A rate for each number of rows, and one where the matrix lies column by column; what has other rows is between its neighbours."""
    used = [entry for entry in found if not entry[0].strided]
    layouts = (False, True)
    shares = [[(w.by_columns == layout) * share for layout in layouts for share in _shares(w.rows, rows)] for w, _ in used]
    terms = np.array([(1.0, w.elements, w.functions, *(w.flops * share for share in of)) for (w, _), of in zip(used, shares, strict=True)])
    launch_s, epilogue_s, function_s, *flop_s = non_negative(terms, np.array([seconds for _, seconds in used]))
    by_rows_s, by_columns_s = flop_s[: len(rows)], flop_s[len(rows) :]
    entries = tuple(
        AtRows(
            r,
            rounded(1 / each_s),
            strided=rounded(max(1.0, strided_by_rows.get(r, 1.0))),
            by_columns=rounded(column_s / each_s) if column_s > 0 else 1.0,
        )
        for r, each_s, column_s in zip(rows, by_rows_s, by_columns_s, strict=True)
        if each_s > 0
    )
    return ProductTimes(
        rounded(launch_s), entries, epilogue_s=rounded(epilogue_s), function_s=rounded(max(function_s, epilogue_s))
    )  # fmt: skip


def _shares(rows: int, known: list[int]) -> list[float]:
    """How much each of the ascending `known` has of `rows`, over their logarithms: all of it the nearest beyond either end."""
    low = max((k for k in known if k <= rows), default=known[0])
    high = min((k for k in known if k >= rows), default=known[-1])
    share = 0.0 if high <= low else log(rows / low) / log(high / low)
    return [(1 - share) * (k == low) + share * (k == high and high != low) for k in known]


def _attention(found: list[tuple[Work, float]], launch_s: float) -> ProductTimes | None:
    """The launch of other products; what is beyond it is by heads and by arithmetic, at a rate for each number of rows."""
    if not found:
        return None
    rows = sorted({work.rows for work, _ in found})
    left = np.array([max(seconds - launch_s, LEAST_SHARE * seconds) for _, seconds in found])
    head_s, *flop_s = non_negative(np.array([(work.heads, *(work.flops * (work.rows == r) for r in rows)) for work, _ in found]), left)
    entries = tuple(AtRows(r, rounded(1 / each_s) if each_s > 0 else FAST) for r, each_s in zip(rows, flop_s, strict=True))
    return ProductTimes(launch_s, entries, rounded(head_s))


def _few_queries(found: list[tuple[Work, float]]) -> ProductTimes | None:
    """A launch, heads and one rate."""
    if not found:
        return None
    terms = np.array([(1.0, work.heads, work.flops) for work, _ in found])
    launch_s, head_s, flop_s = non_negative(terms, np.array([seconds for _, seconds in found]))
    rate = rounded(1 / flop_s) if flop_s > 0 else FAST
    entries = tuple(AtRows(rows, rate) for rows in sorted({work.rows for work, _ in found}))
    return ProductTimes(rounded(launch_s), entries, rounded(head_s))


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
