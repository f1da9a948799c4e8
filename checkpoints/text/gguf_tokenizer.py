"""The tokenizer in a GGUF's metadata, built with the `tokenizers` library: byte-level BPE (`gpt2`) and SentencePiece's BPE (`llama`).

SentencePiece joins, again and again, the two neighbours whose joined piece has the highest score, the leftmost first. That is BPE with
merges sorted by score. A character that is no piece becomes the tokens of its UTF-8 bytes; a space is `▁`, and one more is put in front
of the text and after each special token, unless the file says otherwise. Kinds not known to be reproduced exactly are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HubTokenizer

from einpage.checkpoints.files.gguf import GgufFile


class UnsupportedTokenizer(Exception):
    """Why the metadata give no tokenizer."""


class _TokenType(IntEnum):
    """Of `tokenizer.ggml.token_type`; 5 (unused) is never the result of a merge, as 6 (a byte) is not."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


_SPECIAL = (_TokenType.UNKNOWN, _TokenType.CONTROL)
"""Matched in a text before anything is split, and shown in one."""
_SPACE = "▁"


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _by_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


_PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class _PreTokenization:
    """How a text is prepared before pairs are merged."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    composed: bool = False
    """Whether characters are composed first (Unicode's NFC)."""
    whole_words: bool = False
    """Whether a word that is a token is taken as it is, whatever its merges give."""
    begins: bool = False
    """Whether a text gets the begin-of-text token where the file does not say."""


_PRE_TOKENIZATIONS: dict[str, _PreTokenization] = {
    "gpt-2": _PreTokenization(_byte_level),
    "smollm": _PreTokenization(lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])),
    "llama-bpe": _PreTokenization(lambda: _by_pattern(_PATTERN.replace("DIGITS", "{1,3}")), whole_words=True, begins=True),
    "qwen2": _PreTokenization(lambda: _by_pattern(_PATTERN.replace("DIGITS", "")), composed=True),
}
"""By `tokenizer.ggml.pre`."""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """What the metadata describe."""

    backend: HubTokenizer
    prefix: tuple[int, ...]
    """Ids in front of every text (a begin-of-text token, where the model wants one)."""
    suffix: tuple[int, ...]
    """Ids after every text (an end-of-text token, where the model wants one)."""


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The tokens of a file; the id of each is its place."""

    tokens: Sequence[str]
    types: Sequence[int]
    """One a token; _TokenType, or a number that is none of them."""

    @property
    def id_by_token(self) -> dict[str, int]:
        """The last id of each text."""
        return {token: i for i, token in enumerate(self.tokens)}

    def of(self, *types: _TokenType) -> list[str]:
        """The tokens of these types, in the order of their ids."""
        return [token for token, type_ in zip(self.tokens, self.types, strict=True) if type_ in types]


def gguf_tokenizer(file: GgufFile) -> GgufTokenizer:
    """The tokenizer that the metadata of `file` describe.

    Raises UnsupportedTokenizer where there is none, it is corrupt or of an unknown kind; WeightError where the file cannot be read.
    """
    match file.metadata.get("tokenizer.ggml.model"):
        case None:
            raise UnsupportedTokenizer("no tokenizer in its metadata")
        case "gpt2":
            how = _pre_tokenization(file)
            return GgufTokenizer(_byte_level_bpe(file, how), _around(file, "bos", how.begins), _around(file, "eos", False))
        case "llama":
            return GgufTokenizer(_sentencepiece_bpe(file), _around(file, "bos", True, 1), _around(file, "eos", False, 2))
        case other:
            known = "'gpt2' (byte-level BPE) and 'llama' (SentencePiece BPE) are"
            raise UnsupportedTokenizer(f"tokenizer model {other!r} is not supported, only {known}")


def _pre_tokenization(file: GgufFile) -> _PreTokenization:
    pre = file.metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in _PRE_TOKENIZATIONS:
        raise UnsupportedTokenizer(f"pre-tokenizer {pre!r} is not supported, only {', '.join(map(repr, _PRE_TOKENIZATIONS))} are")
    return _PRE_TOKENIZATIONS[pre]


def _byte_level_bpe(file: GgufFile, how: _PreTokenization) -> HubTokenizer:
    vocabulary = _vocabulary(file)
    model = models.BPE(vocab=vocabulary.id_by_token, merges=_listed_merges(file), ignore_merges=how.whole_words)
    backend = HubTokenizer(model)
    if how.composed:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = how.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    _add_tokens(backend, vocabulary)
    return backend


def _sentencepiece_bpe(file: GgufFile) -> HubTokenizer:
    found = _vocabulary(file)
    scores = [float(score) for score in file.array("tokenizer.ggml.scores") or []]
    if len(scores) != len(found.tokens):
        raise UnsupportedTokenizer(f"corrupt tokenizer: {len(scores)} scores for {len(found.tokens)} tokens")
    # Tokens that a user defined are looked for in the text as it is written.
    tokens = [t.replace(_SPACE, " ") if k == _TokenType.USER_DEFINED else t for t, k in zip(found.tokens, found.types, strict=True)]
    vocabulary = _Vocabulary(tokens, found.types)
    score_by_piece = {t: s for t, s, k in zip(tokens, scores, found.types, strict=True) if k == _TokenType.NORMAL}
    joined = {score for piece, score in score_by_piece.items() if len(piece) > 1}
    if len(joined) == 1 and "tokenizer.ggml.merges" not in file.metadata:
        raise UnsupportedTokenizer("its pieces all have the same score: the order in which pairs merge is not in the file")
    merges = _scored_merges(score_by_piece) if len(joined) > 1 else _listed_merges(file)
    unknown = file.metadata.get("tokenizer.ggml.unknown_token_id", 0)
    unk_token = tokens[unknown] if isinstance(unknown, int) and unknown < len(tokens) else None
    backend = HubTokenizer(models.BPE(vocabulary.id_by_token, merges, unk_token=unk_token, fuse_unk=True, byte_fallback=True))
    prefixed = file.metadata.get("tokenizer.ggml.add_space_prefix", True) is not False
    backend.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend(_SPACE)] if prefixed else []), normalizers.Replace(" ", _SPACE)],
    )
    backend.decoder = decoders.Sequence(
        [
            *(decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()),
            *([decoders.Strip(" ", 1, 0)] if prefixed else []),
        ]
    )
    _add_tokens(backend, vocabulary)
    return backend


def _scored_merges(score_by_piece: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the highest score first; of pairs that make the same piece, the longest left part."""

    def pairs() -> Iterator[tuple[float, str, str]]:
        for piece, score in score_by_piece.items():
            for cut in range(len(piece) - 1, 0, -1):
                left, right = piece[:cut], piece[cut:]
                if left in score_by_piece and right in score_by_piece:
                    yield score, left, right

    ordered = sorted(pairs(), key=lambda pair: (-pair[0], -len(pair[1]), -len(pair[2])))
    return [(left, right) for _, left, right in ordered]


def _listed_merges(file: GgufFile) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in _strings(file, "tokenizer.ggml.merges")]
    merges = [(pair[0], pair[1]) for pair in pairs if len(pair) == 2]
    if len(merges) != len(pairs):
        raise UnsupportedTokenizer("corrupt tokenizer: a merge that is not a pair")
    return merges


def _vocabulary(file: GgufFile) -> _Vocabulary:
    tokens = _strings(file, "tokenizer.ggml.tokens")
    types = [int(type_) for type_ in file.array("tokenizer.ggml.token_type") or [_TokenType.NORMAL] * len(tokens)]
    if len(types) != len(tokens):
        raise UnsupportedTokenizer(f"corrupt tokenizer: {len(types)} types for {len(tokens)} tokens")
    return _Vocabulary(tokens, types)


def _add_tokens(backend: HubTokenizer, vocabulary: _Vocabulary) -> None:
    special, plain = vocabulary.of(*_SPECIAL), vocabulary.of(_TokenType.USER_DEFINED)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special if token])
    backend.add_tokens([AddedToken(token, normalized=False) for token in plain if token])


def _around(file: GgufFile, which: str, wanted: bool, usual: int | None = None) -> tuple[int, ...]:
    """The begin-of-text (`bos`) or end-of-text (`eos`) id where texts get one; `wanted` and `usual`: where the file does not say."""
    if file.metadata.get(f"tokenizer.ggml.add_{which}_token", wanted) is not True:
        return ()
    token = file.metadata.get(f"tokenizer.ggml.{which}_token_id", usual)
    return (token,) if isinstance(token, int) else ()


def _strings(file: GgufFile, key: str) -> list[str]:
    values = file.array(key)
    if values is None:
        raise UnsupportedTokenizer(f"corrupt tokenizer: no `{key}` in its metadata")
    return [str(v) for v in values]
