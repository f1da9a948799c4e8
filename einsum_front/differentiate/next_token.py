"""What a language model learns unasked: a spec without `train:` that generates, and whose outputs have logits for every position, is read
as if this stood at its end. The loss is the mean negative log-likelihood of next tokens, over all that have one; a target of -1 is none.

In: a Document. Out: a Document with `train:`, its own or this one; where it has neither, as it was.
"""

from __future__ import annotations

from einpage.einsum_front.algebra.expr import text
from einpage.einsum_front.spec.document import Axes, Document, states_of
from einpage.einsum_front.spec.reader import read_document

TOKENS = "tokens"
TRAIN = """
train:
  inputs: {{targets: {{axes: {b} {s}, dtype: int32, range: "-1 .. {size} - 1"}}}}
  body:
    - top[{b},{s}] = max[{v}]({logits}[{b},{s},{v}])
    - nll[{b},{s}] = log(sum[{v}](exp({logits}[{b},{s},{v}] - top[{b},{s}]))) + top[{b},{s}] - {logits}[{b},{s},max(targets[{b},{s}], 0)]
    - loss = sum[{b},{s}](where(targets[{b},{s}] >= 0, nll[{b},{s}], 0)) / sum[{b},{s}](targets[{b},{s}] >= 0)
  loss: loss
  optimiser: adamw
"""


def with_training(document: Document) -> Document:
    """`document`, which learns next tokens where it does not say what to learn and has one output of their logits. Raises SpecError where
    a name of the loss is one of the spec's."""
    tokens = next((i for i in document.inputs if i.name == TOKENS and len(_letters(i.axes)) == 2), None)
    if document.train is not None or tokens is None or next(states_of(document), None) is None:
        return document
    positions = _letters(tokens.axes)
    logits = [o for o in document.outputs if len(_letters(o.axes)) == 3 and _letters(o.axes)[:2] == positions]
    if len(logits) != 1:
        return document
    b, s, v = _letters(logits[0].axes)
    size = next(text(entry.expr) for entry in document.axes if entry.name == v)
    more = TRAIN.format(b=b, s=s, v=v, logits=logits[0].name, size=f"({size})")
    return read_document("\n".join(document.source.lines).rstrip() + more, document.path)


def _letters(axes: Axes) -> list[str]:
    return [letter for group in axes.groups for letter, _ in group.letters]
