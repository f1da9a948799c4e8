"""The one knob that would help a plan most, tried out.

In: a plan, and how to plan again with a knob turned. Out: Advice, figures with a line for a person. A knob's gain is that of a plan
really made, judged and simulated; that no knob helps is said only where a lower bound says so. At most two plans are made, and none
where planning takes long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil, log2

from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.base.units import format_bytes, format_seconds
from einpage.exec.planning.judged_plan import Planned
from einpage.memplan.machine.places import Queue

MOST_NODES = 10_000
"""No advice on a plan with more: to plan it again takes long."""
FEW_NODES = 3000
"""Of a plan with no more, a second knob is tried."""
WORTH = 0.01
"""The least share of the time that is worth reporting."""
TOKEN_SIZES = ("seq", "batch")
"""Sizes that say how many tokens share one pass over the weights."""
MOST_TIMES = 32
"""More tokens by no more than this factor."""

Again = Callable[[int, Mapping[str, int]], Planned]
"""again(budget, sizes): the plan with that budget and these sizes. Raises EinpageError where there is none."""


@dataclass(frozen=True, slots=True)
class Advice:
    knob: str | None
    """None: nothing helps."""
    before: int | None
    after: int | None
    gain: float
    """Share of the time saved; without a knob, the most that any could save."""
    makespan_s: float
    """With the knob turned; without one, its lower bound."""
    by: str
    """plan | bound: how that is known."""
    text: str
    """The same for a person."""

    def facts(self) -> dict[str, object]:
        """As `plan --json` prints it."""
        return {
            "knob": self.knob,
            "from": self.before,
            "to": self.after,
            "gain": self.gain,
            "makespan_s": self.makespan_s,
            "by": self.by,
            "text": self.text,
        }


@dataclass(frozen=True, slots=True)
class Knob:
    """Something to turn: a budget, or a size with `times` as many tokens."""

    name: str
    before: int
    after: int
    times: float = 1.0

    def advice(self, before_s: float, after_s: float) -> Advice:
        """The advice to turn it: makespans in seconds, without and with the change; the gain is per token where `times` is not 1."""
        gain = 1 - after_s / (before_s * self.times)
        per, more = (" a token", f" for {self.times:g} x the tokens") if self.times > 1 else ("", "")
        turned = f"{self.name} {self.value_text(self.before)} -> {self.value_text(self.after)}: -{100 * gain:.0f} %{per}"
        text = f"{turned} ({format_seconds(before_s)} -> {format_seconds(after_s)}{more}; planned and simulated)"
        return Advice(self.name, self.before, self.after, gain, after_s, "plan", text)

    def value_text(self, value: int) -> str:
        """A value for a person: bytes with their unit, or a size's number."""
        return format_bytes(value) if self.name == "budget" else str(value)


def advice(planned: Planned, sizes: Mapping[str, int], most_bytes: int | None, again: Again) -> Advice | None:
    """What would help most, the first tried where there is little between them; None where that is not known. `most_bytes`: the largest
    budget there can be.
    """
    before_s, bound_s = planned.timeline.makespan_s, planned.bounds.bound_s
    nodes = len(planned.memgraph.nodes)
    if nodes > MOST_NODES or before_s <= 0:
        return None
    spare = max(1 - bound_s / before_s, 0.0)
    knobs = [*_tokens(planned, sizes)] if planned.report.limited_by == Queue.H2D else []
    if spare >= WORTH:
        knobs += _budgets(int(planned.memgraph.budget_bytes), most_bytes)
    tried = [
        (knob, knob.advice(before_s, after_s))
        for knob in knobs[: 2 if nodes <= FEW_NODES else 1]
        if (after_s := _seconds(again, planned, knob)) is not None
    ]
    most = max((found.gain for _, found in tried), default=0.0)
    if most >= WORTH:
        return next(found for _, found in tried if found.gain >= max(most - WORTH, WORTH))
    failed = [f"{knob.name} {knob.value_text(knob.after)}" for knob, _ in tried]
    bound = f"no budget, order or split gains more than {100 * spare:.1f} % (by a lower bound)"
    text = f"no knob: {' and '.join(failed)} gained less than {100 * WORTH:.0f} %, and {bound}" if failed else f"no knob: {bound}"
    return Advice(None, None, None, spare, bound_s, "bound", text)


def _tokens(planned: Planned, sizes: Mapping[str, int]) -> Iterator[Knob]:
    """As many more tokens, in doublings, as arithmetic takes for as long as the link."""
    name = next((name for name in TOKEN_SIZES if name in sizes), None)
    compute_s, h2d_s = planned.report.compute_s, planned.report.h2d_s
    if name is not None and 0 < compute_s < h2d_s:
        times = min(2 ** ceil(log2(h2d_s / compute_s)), MOST_TIMES)
        yield Knob(name, sizes[name], sizes[name] * times, float(times))


def _budgets(budget: int, most_bytes: int | None) -> Iterator[Knob]:
    """A quarter more, and the device's whole memory."""
    larger = [budget + budget // 4] if most_bytes is None else [min(budget + budget // 4, most_bytes), most_bytes]
    for after in dict.fromkeys(larger):
        if after > budget:
            yield Knob("budget", budget, after)


def _seconds(again: Again, planned: Planned, knob: Knob) -> float | None:
    """The makespan with the knob turned; None where there is no such plan."""
    budget = knob.after if knob.name == "budget" else int(planned.memgraph.budget_bytes)
    try:
        return again(budget, {} if knob.name == "budget" else {knob.name: knob.after}).timeline.makespan_s
    except EinpageError:
        return None
