"""Text to token ids and back, from the checkpoint's own files: a GGUF's metadata, or the tokenizer.json beside
safetensors.

Text tokenized differently from how the model was trained gives plausible and wrong results, so a kind of tokenizer
that is not known to be reproduced exactly is refused by name. What a tokenizer.json says of padding and of a longest
text is for training: here a text has the tokens that it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.files.gguf import open_gguf
from einpage.einsum_front.base.errors import EinpageError, UsageError
from einpage.einsum_front.base.files import read_bytes
from einpage.einsum_front.base.json_text import JsonError, parsed

if TYPE_CHECKING:  # who gives token ids needs no such library
    from tokenizers import Tokenizer as HubTokenizer

Result = TypeVar("Result")


class TokenizerError(UsageError):
    """Text was given and the checkpoint has no tokenizer, or none that can be reproduced."""


REPLACEMENT = "\ufffd"
"""What a decoder puts for bytes that are no whole character."""
MOST_CONFIG = 16 << 20
"""Bytes of a JSON file beside a checkpoint."""
_GGUF_ENDS = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")
CURE = "give token ids with --tokens FILE instead"


@dataclass(frozen=True, slots=True)
class Tokenizer:
    backend: HubTokenizer
    prefix: tuple[int, ...] = ()
    """Ids put in front of every text (a begin-of-text token, where the model wants one)."""
    suffix: tuple[int, ...] = ()
    """Ids put after every text (an end-of-text token, where the model wants one)."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, special tokens written in it recognised, those the model wants around it added.

        Raises TokenizerError for a text that the vocabulary has no token for.
        """
        ids: list[int] = _called(lambda: self.backend.encode(text).ids, "the tokenizer cannot encode the text")
        return [*self.prefix, *ids, *self.suffix]

    def encode_rendered(self, text: str) -> list[int]:
        """The ids of what a chat template has made: it has the tokens around it already. Raises TokenizerError as encode."""
        ids: list[int] = _called(lambda: self.backend.encode(text, add_special_tokens=False).ids, "the tokenizer cannot encode the text")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown; bytes that are no whole character become U+FFFD."""
        return _called(lambda: str(self.backend.decode(list(ids), skip_special_tokens=False)), "the tokenizer cannot decode token ids")

    def knows(self, token: int) -> bool:
        """Whether the vocabulary has a token of that id."""
        return self.backend.id_to_token(token) is not None

    def token_text(self, token: int) -> str:
        """What one id adds to a text, its space included; the empty string for an id beyond the vocabulary."""
        alone, twice = self.decode([token]), self.decode([token, token])
        return twice[len(alone) :] if twice.startswith(alone) else alone


class TextPieces:
    """The text of ids that come one after the other, in pieces that are whole characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._said = 0
        """Characters of the ids' text that were returned."""

    @property
    def text(self) -> str:
        """Of all ids so far."""
        return self._tokenizer.decode(self._ids)

    def add(self, token: int) -> str:
        """What one more id adds to the text; nothing while its last character lacks bytes."""
        self._ids.append(token)
        return self._new(self.text.rstrip(REPLACEMENT))

    def rest(self) -> str:
        """What is left when no more ids come: bytes that are no whole character as U+FFFD."""
        return self._new(self.text)

    def _new(self, text: str) -> str:
        new = text[self._said :]
        self._said = max(self._said, len(text))
        return new


def end_tokens(where: str) -> frozenset[int]:
    """The ids after which the checkpoint that `--weights` names says nothing more; none where it does not tell.

    Raises WeightError where a file is broken.
    """
    path = Path(where)
    if path.suffix == ".gguf":
        metadata = open_gguf(path).metadata
        return frozenset(n for key in _GGUF_ENDS if isinstance(n := metadata.get(key), int))
    folder = path if path.is_dir() else path.parent
    for name in ("generation_config.json", "config.json"):
        file = folder / name
        if file.is_file():
            try:
                found = parsed(read_bytes(file, MOST_CONFIG))
            except JsonError as error:
                raise WeightError(f"{file}: not JSON: {error}") from error
            ends = found.get("eos_token_id") if isinstance(found, dict) else None
            if ends is not None:
                return frozenset(n for n in (ends if isinstance(ends, list) else [ends]) if type(n) is int)
    return frozenset()


def load_tokenizer(where: str) -> Tokenizer:
    """The tokenizer of the checkpoint that `--weights` names.

    Raises TokenizerError where there is none or it is of an unknown kind, WeightError where the file is broken.
    """
    if where.startswith("random:"):
        raise TokenizerError(f"--weights {where} has no tokenizer: {CURE}")
    path = Path(where)
    if not path.exists():
        raise WeightError(f"{path}: does not exist")
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf":
        return _from_gguf(path)
    beside = folder / "tokenizer.json"
    if beside.is_file():
        return _from_json(beside)
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    if len(ggufs) == 1:
        return _from_gguf(ggufs[0])
    raise TokenizerError(f"{where} has no tokenizer: there is no {beside}; {CURE}")


def _from_json(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer as HubTokenizer

    backend = _called(lambda: HubTokenizer.from_file(str(path)), f"{path}: not a tokenizer")
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend)


def _from_gguf(path: Path) -> Tokenizer:
    from einpage.checkpoints.text.gguf_tokenizer import UnsupportedTokenizer, gguf_tokenizer

    file = open_gguf(path)
    try:
        found = _called(lambda: gguf_tokenizer(file), f"{path}: corrupt tokenizer", UnsupportedTokenizer)
    except UnsupportedTokenizer as error:
        raise TokenizerError(f"{path}: {error}; {CURE}") from error
    return Tokenizer(found.backend, found.prefix, found.suffix)


def _called(call: Callable[[], Result], failed: str, expected: type[Exception] = EinpageError) -> Result:
    """What `call` returns; TokenizerError where the library raises plain Exception, or panics."""
    try:
        return call()
    except (EinpageError, ImportError, KeyboardInterrupt, SystemExit, expected):
        raise
    except BaseException as error:  # a panic of the library is no Exception
        raise TokenizerError(f"{failed}: {error}; {CURE}") from error
