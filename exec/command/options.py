"""Options that several commands share, from their text to values: `--set`, `--outputs`, `--split`, `--no-fuse`, the request of a plan."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import write_atomically
from einpage.exec.picture.timeline import NodeTimes
from einpage.exec.picture.timeline_html import render_html
from einpage.exec.picture.timeline_svg import render_svg
from einpage.exec.planning.judged_plan import Planned
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.bounds.bounds import Effort
from einpage.memplan.schedule.static_plans import Policy

DTYPE = DType.FP32.value
"""Of a plan or run of a spec, by default."""


def settings_of(texts: Sequence[str]) -> dict[str, str]:
    """Values by name, from texts `K=V`. Raises UsageError for one without a value, or given twice."""
    out: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError(f"--set {text}: write a name and a value, as in --set seq=512")
        if name.strip() in out:
            raise UsageError(f"--set {name.strip()} is given twice")
        out[name.strip()] = value.strip()
    return out


def names_of(text: str | None) -> tuple[str, ...]:
    """`logits,all_logits` as names; none where nothing was given. Raises UsageError for an empty name."""
    if text is None:
        return ()
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise UsageError(f"--outputs {text}: write names of outputs, as in --outputs logits,all_logits")
    return names


def pieces_of(text: str | None) -> dict[Letter, int]:
    """`f=4,v=16` as pieces by letter. Raises UsageError for another form, or a letter given twice."""
    out: dict[Letter, int] = {}
    for fixed in text.split(",") if text else ():
        letter, _, n = fixed.partition("=")
        if not (letter.strip() and n.strip().isdecimal() and int(n) > 0):
            raise UsageError(f"--split {text}: write letters and numbers of pieces, as in --split f=4,v=16")
        if letter.strip() in out:
            raise UsageError(f"--split {text}: {letter.strip()} is given twice")
        out[Letter(letter.strip())] = int(n)
    return out


def no_fuse_of(text: str | None) -> tuple[str, ...]:
    """`attention` as the names of fusions that are not wanted; whether there are such is for the fuser to say."""
    return () if text is None else tuple(name.strip() for name in text.split(","))


def request_of(a: argparse.Namespace, budget_bytes: int) -> PlanRequest:
    """The plan that `plan` and `run` ask for. Raises UsageError for options that exclude each other."""
    return PlanRequest(
        budget_bytes=budget_bytes,
        dtype=DType(a.dtype or DTYPE),
        outputs=names_of(a.outputs),
        pieces=pieces_of(a.split),
        no_fuse=no_fuse_of(a.no_fuse),
        effort=a.effort,
        policy=Policy(a.policy),
        warm=a.warm,
        passes=a.passes,
        free_order=a.free_order,
        bound_effort=Effort(a.bounds),
    )


def write_timeline(path: Path, planned: Planned, figures: Mapping[str, object], measured: NodeTimes | None = None) -> None:
    """The picture of a plan, as HTML with its figures or, where the name ends so, as SVG."""
    if path.suffix == ".svg":
        write_atomically(path, render_svg(planned.memgraph, planned.timeline, measured))
    else:
        write_atomically(path, render_html(planned.memgraph, planned.timeline, measured, figures))
