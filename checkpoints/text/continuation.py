"""The text that follows a prompt, as its tokens come: whole characters, up to a token or a text that ends it.

In: ids, one after the other. Out: text that is certain; what may be the beginning of a stop string comes when it is known to be none.
"""

from __future__ import annotations

from collections.abc import Sequence

from einpage.checkpoints.text.tokenizer import TextPieces, Tokenizer


class Continuation:
    """What follows one prompt."""

    def __init__(self, prompt: str, ids: Sequence[int], tokenizer: Tokenizer, ends: frozenset[int], stops: Sequence[str]) -> None:
        self.prompt, self.tokens, self.text, self.ended = prompt, list[int](), "", False
        self._tokenizer = tokenizer
        self._pieces, self._ends, self._stops = TextPieces(tokenizer), ends, stops
        self.finish = "length"
        """Why it ends: an `end` token, a `stop` string, its `length`, or `interrupted`."""
        self._held = ""
        """The end of the text, which may be the beginning of a stop string."""

    def add(self, token: int) -> str:
        """The text that one more token makes certain."""
        if self.ended:
            return ""
        if token in self._ends:
            self.ended, self.finish = True, "end"
            return self._said(self._held + self._pieces.rest())
        self.tokens.append(token)
        new = self._held + self._pieces.add(token)
        if any(stop in new for stop in self._stops):
            self.ended, self.finish = True, "stop"
            return self._said(new[: min(new.index(stop) for stop in self._stops if stop in new)])
        held = max((n for stop in self._stops for n in range(1, len(stop)) if new.endswith(stop[:n])), default=0)
        self._held = new[len(new) - held :]
        return self._said(new[: len(new) - held])

    def rest(self) -> str:
        """What was held back, where no more tokens come."""
        if self.ended:
            return ""
        self.ended = True
        return self._said(self._held + self._pieces.rest())

    @property
    def unknown(self) -> list[int]:
        """Ids that the tokenizer has no token for: the model has more rows than the tokenizer tokens."""
        return [token for token in self.tokens if not self._tokenizer.knows(token)]

    def _said(self, text: str) -> str:
        self.text += text
        return text

    def facts(self) -> dict[str, object]:
        """Of the JSON object."""
        return {"prompt": self.prompt, "text": self.text, "tokens": self.tokens, "finish": self.finish}
