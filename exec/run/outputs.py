"""Which outputs a run computes, and what those that are logits say about the run's text.

In: a Program and the token lists at hand before the run; the output tensors after it. Out: names of outputs; TextFigures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.program import Program
from einpage.exec.load.inputs import TokenLists
from einpage.exec.load.tokenizer import Tokenizer
from einpage.exec.run.logits import TopToken, last_logits, mean_nll, top_tokens
from einpage.exec.run.options import RunOptions

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


def wanted_outputs(program: Program, options: RunOptions, tokens: TokenLists | None) -> tuple[str, ...]:
    """The outputs to compute: those asked for, or the first; and for a perplexity the one with logits at every position."""
    names = options.plan.outputs or (program.outputs[0].name,)
    if not options.perplexity:
        return names
    if tokens is None:
        raise UsageError("--perplexity needs a text: give --prompt or --tokens")
    if min(map(len, tokens.lists)) < 2:
        raise UsageError(f"--perplexity needs at least two tokens in {tokens.origin}")
    batch, seq = _token_shape(program)
    every = [o.name for o in program.outputs if _is_logits(o.shape, (batch, seq), tokens)]
    if not every:
        raise UsageError(f"--perplexity: {program.path} declares no output of three axes (batch, sequence, vocabulary)")
    could = [name for name in options.plan.outputs if name in every] or every
    if len(could) > 1:
        raise UsageError(f"--perplexity: {' and '.join(could)} could each be the logits; say which with --outputs NAME")
    return names if could[0] in names else (*names, could[0])


def _is_logits(shape: tuple[int, ...], token_shape: tuple[int, ...], tokens: TokenLists) -> bool:
    """Whether an output of `shape` may be logits at every position: it has an entry for each token met."""
    return len(shape) == 3 and shape[:2] == token_shape and shape[2] > max(map(max, tokens.lists))


def _token_shape(program: Program) -> tuple[int, ...]:
    return next((i.shape for i in program.inputs if i.name == "tokens" and len(i.shape) == 2), (-1, -1))


def text_figures(
    found: Mapping[str, torch.Tensor], tokens: TokenLists | None, tokenizer: Tokenizer | None, perplexity: bool
) -> TextFigures:
    """The best next tokens where some output is logits of the token lists, and the perplexity where asked for."""
    if tokens is None:
        return TextFigures()
    lengths = [len(row) for row in tokens.lists]
    top = None
    logits = next((t for t in found.values() if t.dim() in (2, 3) and t.shape[0] == len(lengths)), None)
    if logits is not None and logits.is_floating_point():
        top = [top_tokens(row, TOP, tokenizer) for row in last_logits(logits, lengths)]
    if not perplexity:
        return TextFigures(top)
    every = next(t for t in found.values() if t.dim() == 3 and _is_logits(tuple(t.shape), tuple(t.shape[:2]), tokens))
    losses = [mean_nll(every[b], row) for b, row in enumerate(tokens.lists)]
    weights = [n - 1 for n in lengths]
    mean = sum(loss * w for loss, w in zip(losses, weights, strict=True)) / sum(weights)
    return TextFigures(top, Perplexity(mean, math.exp(mean), sum(lengths)))
