"""How long the texts of a generation are and may become, and the buckets of positions in which they are planned.

In: lengths of prompts, and how many tokens may follow. Out: buckets, of which one serves every pass after the prompts' own. Their borders
are the same for all texts, so that generations of one model share plans; only the last bucket ends where the text may end.

    positions   0        64       128      192      256      320        400         500 …      64 each, then a quarter of what is before
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import refuse_outside

CHUNKS = (1024, 256, 64, 16)
"""Tokens of a chunk, where prompts do not fit the budget at once."""
READ_POSITIONS = 256
"""Where the second plan for chunks begins; each after it begins at twice as many."""
MOST_LOOKUP = 64
MOST_POSITIONS = 1 << 24
"""Of a text: more than any model has, and few enough that what is too much for one is seen at once."""
LEAST_POSITIONS, POSITIONS_SHARE = 64, 4
"""Of a bucket: so many positions at least, and a share of those before it."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Positions that one plan serves."""

    past: int
    """Positions before each of its passes."""
    extra: int
    """Passes begin at `past` … `past + extra`."""
    tokens: int
    """Of a pass, of each sequence."""
    is_read: bool
    """Whether its passes read a prompt, of which only the token that follows is asked for."""


@dataclass(frozen=True, slots=True)
class TextLengths:
    """What a generation is planned for."""

    batch: int
    longest: int
    """Tokens of the longest prompt."""
    shortest: int
    """Tokens of the shortest; with one sequence, and so no padding, that of any prompt may be less than `longest` as well."""
    max_new: int
    """Tokens generated at most, for each prompt."""
    chunk: int = 0
    """Tokens of a pass in which prompts are read; 0: each is read at once."""
    lookup: int = 0
    """So many tokens that may come next are read in a pass beside the last one."""

    @property
    def spread(self) -> int:
        """By how many positions sequences of the batch are apart."""
        return self.longest - self.shortest if self.batch > 1 else 0

    @property
    def positions(self) -> int:
        """Of the longest text, the last token that is generated left out: nothing reads it."""
        return self.longest + self.max_new - 1

    def refuse_none(self) -> None:
        """Raises UsageError where there is nothing to begin with, or nothing to generate."""
        refuse_outside("--max-new", self.max_new, 1, MOST_POSITIONS)
        refuse_outside("--lookup", self.lookup, 0, MOST_LOOKUP)
        if self.lookup and self.batch > 1:
            raise UsageError(f"--lookup is for one prompt: of {self.batch} each would go on from another position")
        if self.batch < 1 or self.shortest < 1:
            raise UsageError("a prompt is empty; a model needs at least one token")

    @staticmethod
    def of(prompts: Sequence[Sequence[int]], max_new: int) -> TextLengths:
        """Of these prompts, and so many tokens after each."""
        lengths = [len(prompt) for prompt in prompts]
        return TextLengths(len(lengths), max(lengths, default=0), min(lengths, default=0), max_new)

    def refuse_others(self, prompts: Sequence[Sequence[int]], max_new: int) -> None:
        """Raises UsageError for prompts that are not planned for, or more tokens after them."""
        wrong = self.lacks([len(prompt) for prompt in prompts], max_new)
        if wrong is not None:
            raise UsageError(wrong)

    def lacks(self, lengths: Sequence[int], max_new: int) -> str | None:
        """What prompts of `lengths`, and so many tokens after each, are too much for; None where plans for these texts serve them."""
        if max_new < 1:
            return f"--max-new {max_new} is not at least 1"
        if len(lengths) != self.batch:
            return f"{len(lengths)} prompt{'s' if len(lengths) > 1 else ''}, and the plans are for {self.batch}; plan for these"
        if min(lengths) < self.shortest or max(lengths) > self.longest:
            given = "a prompt" if len(lengths) == 1 else "prompts"
            cure = "plan for it" if len(lengths) == 1 else "plan for these"
            told = _from_to(min(lengths), max(lengths))
            return f"{given} of {told} tokens, and the plans are for {_from_to(self.shortest, self.longest)}; {cure}"
        if max_new > 1 and not self.buckets():
            return f"--max-new {max_new}, and the plans are for 1 token after a prompt; plan for more"
        reached = max(max(lengths), min(lengths) + self.spread) + max_new
        if reached > self.longest + self.max_new:
            most = self.longest + self.max_new - reached + max_new
            cure = f"--max-new {most} is planned for" if most > 0 else "plan for these"
            return f"{reached} tokens, and the plans are for {self.longest + self.max_new}; {cure}"
        return None

    def reads(self) -> tuple[Bucket, ...]:
        """For the passes that read prompts. In chunks: a chunk may begin anywhere where a whole one has positions, and what is left of a
        prompt after that is read token by token."""
        if not self.chunk:
            return (Bucket(0, 0, self.longest, True),)
        last = max(0, min(self.longest - 1, self.positions - self.chunk))
        borders = [0, *(border for n in range(64) if (border := READ_POSITIONS << n) <= last)]
        return tuple(Bucket(past, following - 1 - past, self.chunk, True) for past, following in pairwise((*borders, last + 1)))

    def in_chunks(self) -> Iterator[TextLengths]:
        """The same texts with prompts read at once, then in smaller and smaller chunks: where sequences are of one length. There are plans
        for single tokens then, since the end of a prompt may be no chunk."""
        yield self
        if not self.spread:
            most = self.chunk or self.longest
            yield from (replace(self, chunk=chunk, max_new=max(2, self.max_new)) for chunk in CHUNKS if chunk < most)

    def buckets(self) -> tuple[Bucket, ...]:
        """For the passes after the prompts': whose shortest sequence is at `shortest` first (with chunks at 0, where a rest may have to be
        read), whose longest at `positions` - 1 last."""
        if self.max_new < 2:
            return ()
        last = self.positions - 1
        borders = [*_borders(last - self.spread)]
        ends = [min(nexts - 1 + self.spread, last) for nexts in (*borders[1:], last + 1)]
        found = [Bucket(past, end - past, 1 + self.lookup, False) for past, end in zip(borders, ends, strict=True)]
        first = 0 if self.chunk else self.shortest
        return tuple(found[sum(border <= first for border in borders) - 1 :])


def _from_to(least: int, most: int) -> str:
    """For messages."""
    return f"{least} to {most}" if least < most else f"{most}"


def _borders(last: int) -> Iterator[int]:
    """Where buckets begin, up to `last`: the last has at least half of its positions, or belongs to the one before; and it has two at
    least, for of a table of positions one alone would read a row, a weight that the plans before it do not have by itself."""
    past = 0
    while True:
        yield past
        past += max(LEAST_POSITIONS, past // POSITIONS_SHARE)
        if past + max(2, max(LEAST_POSITIONS, past // POSITIONS_SHARE) // 2) > last + 1:
            return
