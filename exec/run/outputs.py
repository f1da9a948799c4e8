"""Which outputs a run computes, and what those that are logits say about the run's text.

In: a Model with its token lists before the run; the output tensors after it. Out: names of outputs; TextFigures, by arithmetic in fp64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from einpage.checkpoints.text.tokenizer import Tokenizer
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.load.inputs import TOKENS
from einpage.exec.planning.model import Model, logits_axes
from einpage.exec.run.choose import RunOptions
from einpage.exec.system.finite import number_counts

TopToken: TypeAlias = tuple[int, str | None, float]
"""(id, text where there is a tokenizer, logit)"""
TOP = 5
"""How many next tokens are reported for each sequence."""


@dataclass(frozen=True, slots=True)
class Perplexity:
    """Of the text that a run was given."""

    mean_nll: float
    """Nats a token."""
    perplexity: float
    tokens: int


@dataclass(frozen=True, slots=True)
class TextFigures:
    """What logits say; None for what there is not."""

    top: list[list[TopToken]] | None = None
    """For each sequence, the best next tokens, best first."""
    perplexity: Perplexity | None = None


def wanted_outputs(model: Model, options: RunOptions) -> tuple[str, ...]:
    """The outputs to compute: those asked for, or the first; and for a perplexity the one with logits at every position."""
    program, tokens = model.program, model.tokens
    names = options.plan.outputs or (program.outputs[0].name,)
    if not options.perplexity:
        return names
    if tokens is None:
        raise UsageError("--perplexity needs a text: give --prompt or --tokens")
    if min(map(len, tokens.lists)) < 2:
        raise UsageError(f"--perplexity needs at least two tokens in {tokens.origin}")
    axes, largest = logits_axes(model), max(map(max, tokens.lists))
    every = [o.name for o in program.outputs if axes.get(o.name) == 3 and o.shape[2] > largest]
    if not every:
        over = f"the one by which `{TOKENS}` index a weight, or that of the size `vocab`"
        raise UsageError(
            f"--perplexity: {program.path} declares no output of three axes (batch, sequence, vocabulary); the vocabulary's axis is {over}"
        )
    could = [name for name in options.plan.outputs if name in every] or every
    if len(could) > 1:
        raise UsageError(f"--perplexity: {' and '.join(could)} could each be the logits; say which with --outputs NAME")
    return names if could[0] in names else (*names, could[0])


def text_figures(found: Mapping[str, torch.Tensor], model: Model, perplexity: bool) -> TextFigures:
    """The best next tokens where some output is logits of the token lists, and the perplexity where asked for."""
    tokens = model.tokens
    if tokens is None:
        return TextFigures()
    axes = logits_axes(model)
    lengths = [len(row) for row in tokens.lists]
    logits = next((t for name, t in found.items() if name in axes), None)
    top = None if logits is None else [top_tokens(row, TOP, model.tokenizer) for row in last_logits(logits, lengths)]
    if not perplexity:
        return TextFigures(top)
    every = next(t for name, t in found.items() if axes.get(name) == 3)
    losses = [mean_nll(every[b], row) for b, row in enumerate(tokens.lists)]
    weights = [n - 1 for n in lengths]
    mean = sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)
    return TextFigures(top, Perplexity(mean, _exp(mean), sum(lengths)))


def _exp(nats: float) -> float:
    """e to the power `nats`; inf beyond what a float holds."""
    try:
        return math.exp(nats)
    except OverflowError:
        return math.inf


def output_warnings(found: Mapping[str, torch.Tensor], text: TextFigures, searched: bool) -> Iterator[str]:
    """A line for each output that holds NaN or inf, and for a perplexity that is none. `searched`: the report says where they come from."""
    cure = "" if searched else "; --find-nan names the task that it comes from"
    for name, tensor in found.items():
        counts = number_counts(tensor)
        if counts.bad:
            yield f"output {name}: {counts.text()}{cure}"
    if text.perplexity is not None and not math.isfinite(text.perplexity.perplexity):
        yield f"the perplexity is {text.perplexity.perplexity}, which says nothing of the model"


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
