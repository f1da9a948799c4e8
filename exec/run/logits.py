"""What logits say: the best next tokens, and the perplexity of a text. Arithmetic in fp64, whatever the run's dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from einpage.checkpoints.text.tokenizer import Tokenizer

TopToken: TypeAlias = tuple[int, str | None, float]
"""(id, text where there is a tokenizer, logit)"""


def top_tokens(logits: torch.Tensor, count: int, tokenizer: Tokenizer | None) -> list[TopToken]:
    """The `count` best of `logits` [v] , best first; the lower id first among equals."""
    values, order = torch.sort(logits.double(), descending=True, stable=True)
    best = zip(order[:count].tolist(), values[:count].tolist(), strict=True)
    return [(token, tokenizer.token_text(token) if tokenizer else None, value) for token, value in best]


def mean_nll(logits: torch.Tensor, tokens: Sequence[int]) -> float:
    """Mean negative log-likelihood, in nats, of each of `tokens` but the first, given those before it. `logits` [s, v], s ≥ len(tokens)."""
    n = len(tokens) - 1
    total = 0.0
    for i in range(n):
        row = logits[i].double()
        total += float(torch.logsumexp(row, 0) - row[tokens[i + 1]])
    return total / n


def last_logits(logits: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[b, v] from `logits` [b, v] as they are, or from [b, s, v] at each sequence's last position."""
    if logits.dim() == 2:
        return logits
    return torch.stack([logits[b, n - 1] for b, n in enumerate(lengths)])
