"""Random cases of a generation: a decoder, how long its texts are, the budget and the buckets it is planned for.

In: (seed, number), from which alone a case follows. Out: a Case, and such cases with less in them, for one that fails; and lengths of
prompts that a plan set for some texts serves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from einpage.einsum_front.base.dtype import DType
from einpage.exec.planning.text_lengths import TextLengths
from random_decoders import Decoder, random_decoder

CHUNKS = (8, 4, 2)
"""Instead of text_lengths.CHUNKS."""
MOST_POSITIONS = 30


@dataclass(frozen=True, slots=True)
class Case:
    """All that is drawn."""

    decoder: Decoder
    texts: TextLengths
    budget_bytes: int
    """Or the least that works, where that is more."""
    dtype: DType
    """Of a set that is judged; runs are in fp32."""
    positions: int
    """LEAST_POSITIONS: of a bucket."""
    read_positions: int
    seed: int
    """Of weights, orders, prompts and mutations."""

    def __str__(self) -> str:
        return (
            f"{self.decoder.text}\n{self.texts}\nbudget {self.budget_bytes}, {self.dtype.value}, weights random:{self.seed}, "
            f"LEAST_POSITIONS {self.positions}, READ_POSITIONS {self.read_positions}, CHUNKS {CHUNKS}"
        )

    def smaller(self) -> Iterator[Case]:
        """With less of the spec, or of the text."""
        yield from (replace(self, decoder=decoder) for decoder in self.decoder.smaller())
        t = self.texts
        for texts in (replace(t, max_new=t.max_new // 2), replace(t, lookup=0), replace(t, chunk=0), replace(t, batch=1)):
            if texts != t and texts.max_new > bool(texts.chunk):
                yield replace(self, texts=texts)


def random_texts(random: Random, is_whole: bool) -> TextLengths:
    """Prompts of one length where a state is written whole, and read at once; chunks for such prompts or a single one."""
    batch, longest = random.choice((1, 1, 2, 3)), random.randint(1, 12)
    shortest = longest if is_whole or random.random() < 0.3 else random.randint(1, longest)
    max_new = min(random.randint(1, 16), MOST_POSITIONS - longest)
    texts = TextLengths(batch, longest, shortest, max_new)
    if is_whole:
        return texts
    if not texts.spread and random.random() < 0.6:
        texts = replace(texts, chunk=random.randint(1, 9), max_new=max(2, max_new))
    return replace(texts, lookup=random.randint(1, 4)) if batch == 1 and random.random() < 0.4 else texts


def random_case(seed: int, number: int) -> Case:
    random = Random(f"{seed}/{number}")
    decoder = random_decoder(random)
    budget = random.choice((1, round(2 ** random.uniform(11, 15)), round(2 ** random.uniform(12, 14)), 1 << 20))
    dtype = random.choice((DType.FP32, DType.FP32, DType.BF16))
    texts = random_texts(random, decoder.is_whole)
    return Case(decoder, texts, budget, dtype, random.randint(2, 6), random.randint(2, 6), random.randrange(1000))


def first_lengths(texts: TextLengths) -> list[int]:
    """As unequal as planned for."""
    return [texts.longest, *[texts.shortest] * (texts.batch - 1)]


def other_lengths(random: Random, texts: TextLengths) -> tuple[list[int], int]:
    """Of prompts that the plans serve as well, and how many tokens may follow."""
    least = texts.longest if texts.batch > 1 and not texts.spread else texts.shortest
    lengths = [random.randint(least, texts.longest) for _ in range(texts.batch)]
    reached = max(max(lengths), min(lengths) + texts.spread)
    most = texts.longest + texts.max_new - reached
    if most < 1:
        return first_lengths(texts), 1
    return lengths, random.randint(1, most if texts.buckets() else 1)
