"""Words that several commands share: `--set`, `--outputs`, `--split`, `--no-fuse`, `--warm`, `--passes`, `--timeline`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.build.judged_plan import Planned, start_for
from einpage.exec.picture.timeline import NodeTimes
from einpage.exec.picture.timeline_html import render_html
from einpage.exec.picture.timeline_svg import render_svg
from einpage.exec.system.files import write_atomically
from einpage.memplan.residency.resident_sets import Start
from einpage.memplan.schedule.static_plans import Policy


def settings_of(words: Sequence[str]) -> dict[str, str]:
    """`K=V` words by name. Raises UsageError for one without a value, or given twice."""
    out: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise UsageError(f"--set {word}: write a name and a value, as in --set seq=512")
        if name.strip() in out:
            raise UsageError(f"--set {name.strip()} is given twice")
        out[name.strip()] = value.strip()
    return out


def names_of(words: str | None) -> list[str] | None:
    """`logits,all_logits` as names; None where nothing was given. Raises UsageError for an empty name."""
    if words is None:
        return None
    names = [word.strip() for word in words.split(",")]
    if not all(names):
        raise UsageError(f"--outputs {words}: write names of outputs, as in --outputs logits,all_logits")
    return names


def pieces_of(words: str | None) -> dict[Letter, int]:
    """`f=4,v=16` as pieces by letter. Raises UsageError for another form, or a letter given twice."""
    out: dict[Letter, int] = {}
    for word in words.split(",") if words else ():
        letter, _, n = word.partition("=")
        if not (letter.strip() and n.strip().isdecimal() and int(n) > 0):
            raise UsageError(f"--split {words}: write letters and numbers of pieces, as in --split f=4,v=16")
        if letter.strip() in out:
            raise UsageError(f"--split {words}: {letter.strip()} is given twice")
        out[Letter(letter.strip())] = int(n)
    return out


def start_of(a: argparse.Namespace) -> Start:
    """What `--warm` and `--passes` ask to be on the device before the first task. Raises UsageError for what they exclude."""
    start = start_for(a.warm, a.passes, a.effort)
    if a.policy != Policy.AUTO.value and start is not Start.COLD:
        raise UsageError(f"--policy {a.policy}: a static plan starts with an empty device; leave out --warm and --passes")
    if a.free_order and start is Start.LOOP:
        raise UsageError("--free-order: a loop is planned in the order as written; leave out --passes")
    return start


def fusions_of(words: str | None) -> tuple[str, ...]:
    """`attention` as the names of fusions that are not wanted; whether there are such is for the fuser to say."""
    return () if words is None else tuple(word.strip() for word in words.split(","))


def write_timeline(path: Path, planned: Planned, measured: NodeTimes | None) -> None:
    """The picture of a plan, as HTML or, where the name ends so, as SVG."""
    if path.suffix == ".svg":
        write_atomically(path, render_svg(planned.memgraph, planned.timeline, measured))
    else:
        write_atomically(path, render_html(planned.memgraph, planned.timeline, measured, planned.report))
