"""Text to token ids and back, from the checkpoint's own files: a GGUF's metadata, or the tokenizer.json beside
safetensors.

Text tokenized differently from how the model was trained gives plausible and wrong results, so a kind of tokenizer
that is not known to be reproduced exactly is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as HubTokenizer

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.load.checkpoint import WeightError
from einpage.exec.load.gguf import GgufFile, open_gguf


class TokenizerError(UsageError):
    """Text was given and the checkpoint has no tokenizer, or none that can be reproduced."""


_CURE = "give token ids with --tokens FILE instead"


class _TokenType(IntEnum):
    """Of `tokenizer.ggml.token_type`, those that are matched in a text before anything is split."""

    CONTROL = 3
    USER_DEFINED = 4


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_SPLITTERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {"gpt-2": _gpt2, "smollm": _smollm}
"""By `tokenizer.ggml.pre`: how a text is split before pairs are merged."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    backend: HubTokenizer
    prefix: tuple[int, ...] = ()
    """Ids put in front of every text (a begin-of-text token, where the model wants one)."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, special tokens written in it recognised, those the model wants around it added."""
        ids: list[int] = self.backend.encode(text).ids
        return [*self.prefix, *ids]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens shown; bytes that are no whole character become U+FFFD."""
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def token_text(self, token: int) -> str:
        """The text of one id; the empty string for an id beyond the vocabulary."""
        return self.decode([token])


def load_tokenizer(where: str) -> Tokenizer:
    """The tokenizer of the checkpoint that `--weights` names.

    Raises TokenizerError where there is none or it is of an unknown kind, WeightError where the file is broken.
    """
    if where.startswith("random:"):
        raise TokenizerError(f"--weights {where} has no tokenizer: {_CURE}")
    path = Path(where)
    if not path.exists():
        raise WeightError(f"{path}: does not exist")
    folder = path if path.is_dir() else path.parent
    if path.suffix == ".gguf":
        return _from_gguf(open_gguf(path))
    beside = folder / "tokenizer.json"
    if beside.is_file():
        return _from_json(beside)
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    if len(ggufs) == 1:
        return _from_gguf(open_gguf(ggufs[0]))
    raise TokenizerError(f"{where} has no tokenizer: there is no {beside}; {_CURE}")


def _from_json(path: Path) -> Tokenizer:
    try:
        return Tokenizer(HubTokenizer.from_file(str(path)))
    except Exception as error:  # the library raises plain Exception for whatever it dislikes
        raise TokenizerError(f"{path}: not a tokenizer: {error}; {_CURE}") from error


def _from_gguf(file: GgufFile) -> Tokenizer:
    metadata = file.metadata
    model, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if model is None:
        raise TokenizerError(f"{file.path} has no tokenizer in its metadata; {_CURE}")
    if model != "gpt2":
        raise TokenizerError(f"{file.path}: tokenizer model {model!r} is not supported, only 'gpt2' (byte-level BPE) is; {_CURE}")
    if not isinstance(pre, str) or pre not in _SPLITTERS:
        known = ", ".join(map(repr, _SPLITTERS))
        raise TokenizerError(f"{file.path}: pre-tokenizer {pre!r} is not supported, only {known} are; {_CURE}")
    tokens = _strings(file, "tokenizer.ggml.tokens")
    pairs = [tuple(merge.split(" ")) for merge in _strings(file, "tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs):
        raise TokenizerError(f"{file.path}: corrupt tokenizer: a merge that is not a pair; {_CURE}")
    try:
        backend = HubTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    except Exception as error:  # as above: a merge of tokens that are not in the vocabulary
        raise TokenizerError(f"{file.path}: corrupt tokenizer: {error}; {_CURE}") from error
    backend.pre_tokenizer = _SPLITTERS[pre]()
    backend.decoder = decoders.ByteLevel()
    types = file.array("tokenizer.ggml.token_type") or []
    marked = [(token, type_) for token, type_ in zip(tokens, types, strict=False) if type_ in tuple(_TokenType)]
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in marked if k == _TokenType.CONTROL])
    backend.add_tokens([AddedToken(t, normalized=False) for t, k in marked if k == _TokenType.USER_DEFINED])
    begin = metadata.get("tokenizer.ggml.bos_token_id")
    wants_begin = metadata.get("tokenizer.ggml.add_bos_token") is True and isinstance(begin, int)
    return Tokenizer(backend, (begin,) if wants_begin and isinstance(begin, int) else ())


def _strings(file: GgufFile, key: str) -> list[str]:
    values = file.array(key)
    if values is None:
        raise TokenizerError(f"{file.path}: corrupt tokenizer: no `{key}` in its metadata; {_CURE}")
    return [str(v) for v in values]
