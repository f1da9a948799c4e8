"""The next token from logits: the best, or a draw from what temperature, top-k, top-p and min-p leave.

In: logits [v] and the ids so far. Out: an id. The same seed draws the same ids from the same logits; arithmetic is in fp64, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import torch

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import refuse_outside


@dataclass(frozen=True, slots=True)
class Sampling:
    """Raises UsageError for numbers that leave no token, or mean nothing."""

    temperature: float = 0.0
    """0: the best token, whatever else stands here."""
    top_k: int = 0
    """Only the so many best tokens; 0: all."""
    top_p: float = 1.0
    """Only the best tokens that have this much of the probability together (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Only tokens at least this many times as probable as the best."""
    repetition_penalty: float = 1.0
    """By what a positive logit of a token that occurred is divided, and a negative one multiplied (Keskar et al. 2019)."""
    seed: int = 0

    def __post_init__(self) -> None:
        refuse_outside("--temperature", self.temperature, 0.0, 1e6)
        refuse_outside("--top-k", self.top_k, 0, 2**31)
        refuse_outside("--top-p", self.top_p, 1e-9, 1.0)
        refuse_outside("--min-p", self.min_p, 0.0, 1.0)
        refuse_outside("--repetition-penalty", self.repetition_penalty, 1e-3, 1e3)
        refuse_outside("--seed", self.seed, 0, 2**63 - 1)


class Sampler:
    """Draws for one sequence, one token after the other."""

    def __init__(self, sampling: Sampling, number: int = 0) -> None:
        """`number` tells sequences of a batch apart."""
        self.sampling = sampling
        self._generator = torch.Generator().manual_seed((sampling.seed + number) % 2**63)

    def next(self, logits: torch.Tensor, ids: Sequence[int]) -> int:
        """An id, after `ids`. Of equal logits the lowest id is best. Raises UsageError for logits that are no numbers."""
        s, x = self.sampling, logits.double().cpu()
        if not isfinite(float(x.max())):  # the largest of numbers among which is a NaN is NaN
            cure = "`einpage run … --find-nan` names the task that they come from"
            raise UsageError(f"the logits after {len(ids)} tokens hold NaN or inf, so there is no next token; {cure}")
        if s.repetition_penalty != 1.0 and ids:
            seen = torch.tensor(sorted(set(ids)))
            x = x.clone()
            x[seen] = torch.where(x[seen] > 0, x[seen] / s.repetition_penalty, x[seen] * s.repetition_penalty)
        if s.temperature == 0.0:
            return int(torch.argmax(x))
        return int(torch.multinomial(self.probabilities(x), 1, generator=self._generator))

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """[v] of each token, 0 for those that are left out; sums to 1."""
        s = self.sampling
        p, order = torch.sort(torch.softmax((logits - logits.max()) / s.temperature, 0), descending=True, stable=True)
        drawn_from = torch.ones_like(p, dtype=torch.bool)
        if s.top_k:
            drawn_from[s.top_k :] = False
        drawn_from &= torch.cumsum(p, 0) - p < s.top_p
        drawn_from &= p >= s.min_p * p[0]
        drawn_from[0] = True
        left = torch.zeros_like(p)
        left[order] = torch.where(drawn_from, p, torch.zeros_like(p))
        return left / left.sum()
