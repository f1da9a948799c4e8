"""Places for blocks that found none: each takes the place that costs least, and what it evicts looks for another.

In: a Field with some blocks standing. Out: the same Field, its loss never larger. A step takes one block without a place, evicts the
cheapest group of blocks in its way and lets these fill holes elsewhere. What remains homeless waits for its own turn. Steps that make the
loss larger are taken with a chance that falls to zero, as in simulated annealing.
"""

from __future__ import annotations

import math
import random

import numpy as np

from einpage.memplan.place_field import NOWHERE, Field

SPREAD = 0.3
"""Equal steps are not repeated for ever: the price of a place is scaled by up to 1 + this."""
HEAT = 0.01
"""Loss by which a step may be worse at the start, as a share of the loss then."""


def repair(field: Field, steps: int) -> None:
    """At most `steps` turns; stops where all blocks stand."""
    dice, noise = random.Random(0), np.random.default_rng(0)
    price = field.weight.astype(np.float64)
    homeless = [i for i in np.flatnonzero(field.offset == NOWHERE).tolist() if field.nbytes[i] <= field.capacity]
    best = field.snapshot()
    loss, warm = best.loss, HEAT * best.loss
    for step in range(steps):
        if not homeless:
            break
        pick = dice.randrange(len(homeless))
        i = homeless[pick]
        choice = field.cheapest(i, price, noise, SPREAD)
        assert choice is not None
        before = field.offset[choice.evicted]
        field.offset[choice.evicted] = NOWHERE
        field.offset[i] = choice.offset
        left = [j for j in sorted(choice.evicted.tolist(), key=lambda j: (-price[j], j)) if not field.put(j, tight=True)]
        new = loss - int(field.weight[i]) + int(field.weight[left].sum())
        heat = warm * (1 - step / steps)
        if new <= loss or (heat > 0 and dice.random() < math.exp((loss - new) / heat)):
            homeless[pick] = homeless[-1]
            homeless.pop()
            homeless += left
            loss = new
            if loss < best.loss:
                best = field.snapshot()
        else:
            field.offset[i] = NOWHERE
            field.offset[choice.evicted] = before
    field.restore(best)
