"""Places for blocks that found none: each takes the place that costs least, and what it evicts looks for another.

In: a Field with some blocks standing. Out: the same Field, its loss never larger. A turn takes one block without a place, evicts the
cheapest group of blocks in its way and lets these fill holes elsewhere; those for which there is none wait for their own turn. A block
whose place was dear grows dearer itself, so that two blocks do not fight for one place for ever (ejection with penalties, after Nagata and
Bräysy 2009).
"""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import numpy as np

from einpage.memplan.packing.layout import NOWHERE, Field


class Manner(NamedTuple):
    by_weight: float
    by_life: float
    """The price of a block is weight ** by_weight × life ** by_life × (1 + turns that were dear)."""
    heat: float | None
    """A turn may make the loss worse by about this share of what it was at first, falling to nothing; None: it may always."""


CAREFUL = Manner(by_weight=0.7, by_life=0.5, heat=0.01)
RESTLESS = Manner(by_weight=0.5, by_life=0.0, heat=None)
SPREAD = 0.3
"""Equal places are not taken for ever: the price of each is scaled by up to 1 + this."""


def repair(field: Field, manner: Manner, work: int) -> None:
    """Take turns until all blocks stand or `work` more is spent (Field.spent); what stood at the best moment stands at the end."""
    dice, noise = random.Random(0), np.random.default_rng(0)
    basis = field.weight**manner.by_weight * np.maximum(1, field.death - field.birth) ** manner.by_life
    price = basis.copy()
    homeless = [i for i in np.flatnonzero(field.offset == NOWHERE).tolist() if field.nbytes[i] <= field.capacity]
    best = field.snapshot()
    loss, begun = best.loss, field.spent
    while homeless and field.spent < begun + work:
        pick = dice.randrange(len(homeless))
        i = homeless[pick]
        choice = field.cheapest(i, price, noise, SPREAD)
        before = field.offset[choice.evicted]
        field.offset[choice.evicted] = NOWHERE
        field.offset[i] = choice.offset
        left = [j for j in sorted(choice.evicted.tolist(), key=lambda j: (-price[j], j)) if not field.put(j, tight=True)]
        if left:
            price[i] += basis[i]
        worse = int(field.weight[left].sum()) - int(field.weight[i])
        if manner.heat is None or worse <= 0 or _dared(worse, manner.heat * best.loss * (1 - (field.spent - begun) / work), dice):
            homeless[pick] = homeless[-1]
            homeless[-1:] = left
            loss += worse
            if loss < best.loss:
                best = field.snapshot()
        else:
            field.offset[i] = NOWHERE
            field.offset[choice.evicted] = before
    field.restore(best)


def _dared(worse: int, heat: float, dice: random.Random) -> bool:
    return heat > 0 and dice.random() < math.exp(-worse / heat)
