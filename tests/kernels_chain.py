"""A contraction whose summed letter is split over several jobs, as a chain of accumulators."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch

from einpage.einsum_front.algebra.expr import Load, Num
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import Box, ContractJob, Range, View
from einpage.kernels.prepare import Backend, prepare
from kernels_naive import Case


def run_chain(case: Case, letter: str, borders: list[int], backend: Backend, in_place: bool) -> torch.Tensor:
    """The case's result with `letter` split at `borders`; accumulators poisoned first, or updated in place from job to job."""
    job = case.job
    assert isinstance(job, ContractJob)
    extent = next(r for r in job.ranges if r.letter == letter)
    places = [extent.start, *borders, extent.end]
    box = job.result.boxes[0]
    n = len(job.contractions)
    stack = View("chain", DType.FP32, (Box((0, *box.start), (n, *box.end)),))
    carried: torch.Tensor | None = None
    for i, (start, end) in enumerate(itertools.pairwise(places)):
        last = i == len(places) - 2
        ranges = tuple(Range(r.letter, start, end) if r.letter == letter else r for r in job.ranges)
        reads = tuple(_narrow(v, job, letter, start, end) for v in job.reads)
        carry = None if carried is None else len(reads)
        step = replace(
            job,
            ranges=ranges,
            reads=reads if carried is None else (*reads, stack),
            result=job.result if last else stack,
            carry=carry,
            last=last,
        )
        operands = Case(step, {**case.values, "chain": np.zeros(stack.boxes[0].end)}).operands()
        if carried is not None:
            operands = (*operands[:-1], (carried,))
        shape = step.result.boxes[0].shape
        out = carried if in_place and carried is not None and not last else torch.full(shape, float("nan"), dtype=torch.float32)
        out = out if not last else case.poisoned()
        prepare(step, backend)(operands, out, None)
        carried = out
    assert carried is not None
    return carried


def _narrow(view: View, job: ContractJob, letter: str, start: int, end: int) -> View:
    """The view's single tile narrowed to what a part of the letter reads, as a splitter would."""
    loads: list[Load] = [x for c in job.contractions for x in (c.x, c.y) if x.name == view.name]
    if not loads:
        return view
    box = view.boxes[0]
    lo, hi = list(box.start), list(box.end)
    for d, index in enumerate(loads[0].indices):
        if not isinstance(index, Num) and index.letter == letter:  # type: ignore[union-attr]
            lo[d], hi[d] = start, end
    return replace(view, boxes=(Box(tuple(lo), tuple(hi)),))
