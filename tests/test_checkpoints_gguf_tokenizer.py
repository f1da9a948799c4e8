"""Tokenizers in a GGUF's metadata against independent ones: the ids of the package sentencepiece, and transformers' own conversions.

`data/sentencepiece.json` has two vocabularies, as LLaMA's and Gemma's are, 203 texts, and the ids that sentencepiece gives them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import Qwen2Converter, TikTokenConverter
from transformers.integrations.ggml import GGUFLlamaConverter

from einpage.checkpoints.text.tokenizer import Tokenizer, TokenizerError, load_tokenizer

FOUND = json.loads((Path(__file__).parent / "data" / "sentencepiece.json").read_text(encoding="utf-8"))
TEXTS: list[str] = FOUND["texts"]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
BYTES = [(f"<0x{i:02X}>", 0.0, BYTE) for i in range(256)]
Piece = tuple[str, float, int]


def pieces_of(name: str) -> list[Piece]:
    read = FOUND[name]
    return [*map(tuple, read["before"]), *BYTES, *map(tuple, read["after"])]


def write(path: Path, pieces: Sequence[Piece], model: str = "llama", merges: Sequence[str] = (), **keys: Any) -> str:
    """A GGUF with this vocabulary; `keys` are those of `tokenizer.ggml.`"""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list([text for text, _, _ in pieces])
    writer.add_token_scores([score for _, score, _ in pieces])
    writer.add_token_types([type_ for _, _, type_ in pieces])
    if merges:
        writer.add_token_merges(merges)
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string}[type(value)]
        add(f"tokenizer.ggml.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return str(path)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As converters write LLaMA's: they say nothing of spaces."""
    return load_tokenizer(write(tmp_path_factory.mktemp("llama") / "m.gguf", pieces_of("llama"), bos_token_id=1, unknown_token_id=0))


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """As converters write Gemma's: no space in front, begin-of-text 2."""
    path = tmp_path_factory.mktemp("gemma") / "m.gguf"
    return load_tokenizer(write(path, pieces_of("gemma"), bos_token_id=2, unknown_token_id=3, add_bos_token=True, add_space_prefix=False))


def test_llama_gives_the_ids_of_sentencepiece(llama: Tokenizer) -> None:
    assert [llama.encode(text) for text in TEXTS] == [[1, *ids] for ids in FOUND["llama"]["ids"]]


def test_gemma_gives_the_ids_of_sentencepiece(gemma: Tokenizer) -> None:
    assert [gemma.encode(text) for text in TEXTS] == [[2, *ids] for ids in FOUND["gemma"]["ids"]]


def test_llama_gives_the_ids_of_transformers_on_special_tokens_too(llama: Tokenizer) -> None:
    pieces = pieces_of("llama")
    read = {"tokens": [t for t, _, _ in pieces], "scores": [s for _, s, _ in pieces], "token_type": [k for _, _, k in pieces]}
    theirs = GGUFLlamaConverter({**read, "unk_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "add_prefix_space": True}).converted()
    theirs.add_special_tokens(["<unk>"])  # as the class around it does
    for text in (*TEXTS, "<s>", "a<s>b", "<s> the</s>", "<unk>the", "<s><s>", "<s", "<0x0A>"):
        ours = llama.encode(text)
        assert ours == [1, *theirs.encode(text).ids], repr(text)
        assert llama.decode(ours[1:]) == theirs.decode(ours[1:], skip_special_tokens=False), repr(text)


def test_any_text_comes_back(llama: Tokenizer, gemma: Tokenizer) -> None:
    for text in TEXTS:
        assert llama.decode(llama.encode(text)[1:]) == text
        assert gemma.decode(gemma.encode(text)[1:]) == text


def test_what_a_token_adds_to_a_text(llama: Tokenizer) -> None:
    pieces = [text for text, _, _ in pieces_of("llama")]
    found = [llama.token_text(pieces.index(text)) for text in ("▁the", "re", "▁", "<0x0A>", "<0xE3>", "<s>")]
    assert found == [" the", "re", " ", "\n", "�", "<s>"]
    assert llama.token_text(10**6) == ""


def test_which_ids_stand_around_a_text(tmp_path: Path) -> None:
    def ids(**keys: Any) -> list[int]:
        return load_tokenizer(write(tmp_path / "m.gguf", pieces_of("llama"), **keys)).encode("a")

    alone = ids(add_bos_token=False)
    assert ids() == [1, *alone], "as llama.cpp takes it where the file does not say"
    assert ids(bos_token_id=2) == [2, *alone]
    assert ids(add_eos_token=True) == [1, *alone, 2]
    assert ids(add_bos_token=False, add_eos_token=True, eos_token_id=7) == [*alone, 7]


def test_where_scores_do_not_say_the_order_merges_do(tmp_path: Path) -> None:
    """Files made from a tokenizer.json have one score for all tokens: llama.cpp's -1000."""
    flat = [("<unk>", 0.0, UNKNOWN), *BYTES, *((text, -1000.0, NORMAL) for text in ("▁", "a", "b", "c", "ab", "bc"))]
    a, c, ab, bc = (257 + i for i in (1, 3, 4, 5))
    keys = {"add_bos_token": False, "add_space_prefix": False}
    assert load_tokenizer(write(tmp_path / "m.gguf", flat, merges=["b c", "a b"], **keys)).encode("abc") == [a, bc]
    assert load_tokenizer(write(tmp_path / "m.gguf", flat, merges=["a b", "b c"], **keys)).encode("abc") == [ab, c]
    with pytest.raises(TokenizerError, match="all have the same score: the order in which pairs merge is not in the file"):
        load_tokenizer(write(tmp_path / "m.gguf", flat, **keys))


def test_corrupt_vocabularies_and_unknown_kinds_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(TokenizerError, match=r"model 't5' is not supported, only 'gpt2'.* and 'llama'"):
        load_tokenizer(write(path, pieces_of("llama"), "t5"))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "a"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(TokenizerError, match="corrupt tokenizer: 0 scores for 2 tokens"):
        load_tokenizer(str(path))


WORDS = (
    *("don't", "DON'T I'LL it's'S", "1234567", "12,345.67", "a\n\n b\r\n\r\n  c", "  \n  x", "٣٤٥٦ Ⅻ ½", "\u0130'S ſ'ſ", "_x(y)[z] == {w}"),
    *("Ａｂｃ", "a\u0301 e\u0301x", "\u1112\u1161\u11ab", "<|end|>a <|end|>", "\ttab\t\t", "x" * 40),
    *TEXTS,
)


@pytest.fixture(scope="module")
def trained() -> Backend:
    """Byte-level merges across every boundary that a splitter could make, so that a wrong boundary shows."""
    backend = Backend(models.BPE())
    chunks = pre_tokenizers.Split(Regex(r"[\s\S]{1,5}"), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([chunks, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([word * 3 for word in WORDS], trainer)
    return backend


def byte_level_gguf(path: Path, trained: Backend, pre: str, **keys: Any) -> str:
    tokens = sorted(trained.get_vocab(), key=lambda token: trained.token_to_id(token))
    merges = [" ".join(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    pieces = [(token, 0.0, CONTROL if token == "<|end|>" else NORMAL) for token in tokens]
    return write(path, pieces, "gpt2", merges, pre=pre, **keys)


def test_qwen2_gives_the_ids_of_transformers(tmp_path: Path, trained: Backend) -> None:
    ours = load_tokenizer(byte_level_gguf(tmp_path / "m.gguf", trained, "qwen2"))
    model = json.loads(trained.to_str())["model"]
    theirs = Qwen2Converter(None).converted(model["vocab"], [tuple(pair) for pair in model["merges"]])
    theirs.add_special_tokens(["<|end|>"])
    assert len(WORDS) >= 200
    for text in WORDS:
        assert ours.encode(text) == theirs.encode(text).ids, repr(text)


def test_llama_bpe_splits_as_transformers_does(tmp_path: Path, trained: Backend) -> None:
    ours = load_tokenizer(byte_level_gguf(tmp_path / "m.gguf", trained, "llama-bpe", bos_token_id=0))
    pattern = inspect.signature(TikTokenConverter.__init__).parameters["pattern"].default
    vocabulary = json.loads(trained.to_str())["model"]
    theirs = Backend(models.BPE(vocabulary["vocab"], [tuple(pair) for pair in vocabulary["merges"]], ignore_merges=True))
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    theirs.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    theirs.add_special_tokens(["<|end|>"])
    for text in WORDS:
        assert ours.encode(text) == [0, *theirs.encode(text).ids], repr(text)
    without = load_tokenizer(byte_level_gguf(tmp_path / "m.gguf", trained, "llama-bpe", bos_token_id=0, add_bos_token=False))
    assert without.encode("ab") == ours.encode("ab")[1:]


def test_llama_bpe_takes_a_word_that_is_a_token_whatever_its_merges_give(tmp_path: Path) -> None:
    pieces = [(text, 0.0, NORMAL) for text in ("a", "b", "c", "ab", "abc")]
    keys = {"add_bos_token": False}
    assert load_tokenizer(write(tmp_path / "m.gguf", pieces, "gpt2", ["a b"], pre="llama-bpe", **keys)).encode("abc") == [4]
    assert load_tokenizer(write(tmp_path / "m.gguf", pieces, "gpt2", ["a b"], pre="qwen2", **keys)).encode("abc") == [3, 2]
