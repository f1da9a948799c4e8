"""Ejection chains: an unplaced rectangle takes the offset that costs least, and what it evicts looks for another.

In: a Layout with some rectangles placed. Out: the same Layout, its loss never larger. A turn takes one unplaced rectangle, evicts the
cheapest group of rectangles in its way and has these fill holes elsewhere; those for which there is none wait for a turn of their own. A
rectangle whose offset left others unplaced grows more expensive to evict, so that two do not alternate for ever (ejection with penalties,
after Nagata and Bräysy 2009).
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy as np

from einpage.memplan.packing.layout import UNPLACED, Layout


class Acceptance(NamedTuple):
    weight_exponent: float
    duration_exponent: float
    """To evict a rectangle costs weight ** weight_exponent × duration ** duration_exponent × (1 + turns that left others unplaced)."""
    temperature: float | None
    """A turn may make the loss worse by about this share of what it was at first, falling to nothing; None: it always may."""


ANNEALED = Acceptance(weight_exponent=0.7, duration_exponent=0.5, temperature=0.01)
ALWAYS = Acceptance(weight_exponent=0.5, duration_exponent=0.0, temperature=None)
SPREAD = 0.3
"""Among offsets of equal cost the choice varies: the cost of each is scaled by up to 1 + this."""


def repair(layout: Layout, acceptance: Acceptance, work: int) -> None:
    """Take turns until all rectangles are placed or `work` more is spent (Layout.spent); the best offsets met are the ones at the end."""
    rng, noise = random.Random(0), np.random.default_rng(0)
    basis = layout.weight**acceptance.weight_exponent * np.maximum(1, layout.end - layout.start) ** acceptance.duration_exponent
    cost = basis.copy()
    unplaced = [i for i in np.flatnonzero(layout.offset == UNPLACED).tolist() if layout.nbytes[i] <= layout.capacity]
    best = layout.snapshot()
    loss, spent_before = best.loss, layout.spent
    while unplaced and layout.spent < spent_before + work:
        pick = rng.randrange(len(unplaced))
        i = unplaced[pick]
        ejection = layout.cheapest_ejection(i, cost, noise, SPREAD)
        before = layout.offset[ejection.evicted]
        layout.offset[ejection.evicted] = UNPLACED
        layout.offset[i] = ejection.offset
        failed = [j for j in sorted(ejection.evicted.tolist(), key=lambda j: (-cost[j], j)) if not layout.place(j, tight=True)]
        if failed:
            cost[i] += basis[i]
        worse = int(layout.weight[failed].sum()) - int(layout.weight[i])
        temperature = (acceptance.temperature or 0.0) * best.loss * (1 - (layout.spent - spent_before) / work)
        if acceptance.temperature is None or worse <= 0 or _accepted(worse, temperature, rng):
            unplaced[pick] = unplaced[-1]
            unplaced[-1:] = failed
            loss += worse
            if loss < best.loss:
                best = layout.snapshot()
        else:
            layout.offset[i] = UNPLACED
            layout.offset[ejection.evicted] = before
    layout.restore(best)


def _accepted(worse: int, temperature: float, rng: random.Random) -> bool:
    """The Metropolis rule of simulated annealing."""
    return temperature > 0 and rng.random() < math.exp(-worse / temperature)
