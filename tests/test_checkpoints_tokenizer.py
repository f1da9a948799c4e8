"""Tokenizers: the real model's ids (as transformers gives them), and every reason why a checkpoint may have none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, processors

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.text.tokenizer import Tokenizer, TokenizerError, load_tokenizer
from smollm2 import smollm2_path


@pytest.fixture(scope="module")
def smollm2() -> Tokenizer:
    return load_tokenizer(str(smollm2_path()))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The capital of France is", [504, 3575, 282, 4649, 314]),
        ("Once upon a time", [6403, 1980, 253, 655]),
        ("def fibonacci(n):", [1604, 3987, 46477, 24, 94, 727]),
        (" Paris.\n\nThe answer is: 2018-01", [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33]),
        ("<|im_start|>user\n", [1, 4093, 198]),
        ("", []),
    ],
)
def test_ids_of_smollm2(smollm2: Tokenizer, text: str, ids: list[int]) -> None:
    assert smollm2.encode(text) == ids
    assert smollm2.decode(ids) == text


@pytest.mark.parametrize("text", ["naïve — 12,345.67 km²", "日本語 🦙\t\ttabs", "it's  two   spaces ", "a\r\n\r\nb", "½ ٣٤ Ⅻ"])
def test_any_text_comes_back(smollm2: Tokenizer, text: str) -> None:
    assert smollm2.decode(smollm2.encode(text)) == text


def test_token_text(smollm2: Tokenizer) -> None:
    assert [smollm2.token_text(i) for i in (7042, 260, 4528, 2, 999_999)] == [" Paris", " the", " London", "<|im_end|>", ""]


def test_the_perplexity_text_has_93_tokens(smollm2: Tokenizer) -> None:
    text = (
        "The quick development of computing in the twentieth century changed how people work, learn and communicate. Early machines "
        "filled entire rooms and were programmed with punched cards, while modern computers fit in a pocket and respond to touch and "
        "voice. Memory, once measured in a few thousand words, is now counted in billions of bytes. Even so, the basic ideas have not "
        "changed: a processor reads instructions from memory, carries them out one after another, and writes the results back."
    )
    assert len(smollm2.encode(text)) == 93


def write_gguf(
    path: Path, model: str | None = "gpt2", pre: str | None = "gpt-2", begin: bool = False, merges: tuple[str, ...] = ("a b",)
) -> str:
    writer = gguf.GGUFWriter(path, "llama")
    if model is not None:
        writer.add_tokenizer_model(model)
        writer.add_token_list(["<s>", "a", "b", "ab", "<user>", "1", "2", "12"])
        writer.add_token_types([3, 1, 1, 1, 4, 1, 1, 1])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(0)
        writer.add_add_bos_token(begin)
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return str(path)


def test_a_small_gguf_tokenizer(tmp_path: Path) -> None:
    where = write_gguf(tmp_path / "m.gguf")
    assert load_tokenizer(where).encode("aba<s>b<user>") == [3, 1, 0, 2, 4]
    assert load_tokenizer(str(tmp_path)).encode("ab") == [3], "a folder with one GGUF"
    assert load_tokenizer(write_gguf(tmp_path / "m.gguf", begin=True)).encode("ab") == [0, 3]


def test_smollm_cuts_numbers_into_digits_before_merging(tmp_path: Path) -> None:
    merges = ("1 2", "a b")
    assert load_tokenizer(write_gguf(tmp_path / "m.gguf", merges=merges)).encode("12ab") == [7, 3]
    assert load_tokenizer(write_gguf(tmp_path / "m.gguf", merges=merges, pre="smollm")).encode("12ab") == [5, 6, 3]


def test_unknown_kinds_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    with pytest.raises(TokenizerError, match="tokenizer model 'bert' is not supported"):
        load_tokenizer(write_gguf(path, model="bert"))
    with pytest.raises(TokenizerError, match="pre-tokenizer 'tekken' is not supported, only 'gpt-2', 'smollm', 'llama-bpe', 'qwen2' are"):
        load_tokenizer(write_gguf(path, pre="tekken"))
    with pytest.raises(TokenizerError, match="pre-tokenizer None is not supported"):
        load_tokenizer(write_gguf(path, pre=None))
    with pytest.raises(TokenizerError, match="no tokenizer in its metadata; give token ids"):
        load_tokenizer(write_gguf(path, model=None, pre=None))
    with pytest.raises(TokenizerError, match="a merge that is not a pair"):
        load_tokenizer(write_gguf(path, merges=("ab",)))
    with pytest.raises(TokenizerError, match="corrupt tokenizer"):
        load_tokenizer(write_gguf(path, merges=("a c",)))


def test_tokenizer_json_beside_safetensors(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"there is no .*tokenizer\.json; give token ids with --tokens") as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.exit_status == 2
    backend = Backend(models.WordLevel({"<s>": 0, "hello": 1, "there": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    backend.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "model.safetensors").touch()
    for where in (tmp_path, tmp_path / "model.safetensors"):
        assert load_tokenizer(str(where)).encode("hello there") == [0, 1, 2]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(TokenizerError, match="not a tokenizer"):
        load_tokenizer(str(tmp_path))


def saved(folder: Path, change: Callable[[Backend], None]) -> Tokenizer:
    """The tokenizer of a folder whose tokenizer.json is `change`d before it is saved."""
    backend = Backend(models.WordLevel({"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "the": 4, "cat": 5}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    change(backend)
    backend.save(str(folder / "tokenizer.json"))
    return load_tokenizer(str(folder))


def test_padding_and_truncation_are_for_training(tmp_path: Path) -> None:
    """Both stand in the tokenizer.json of sentence encoders: pads would count as text, and long texts lose their end."""

    def bounded(backend: Backend) -> None:
        backend.enable_padding(length=16)
        backend.enable_truncation(max_length=16)

    padded = saved(tmp_path, bounded)
    assert padded.encode("the cat") == [1, 4, 5, 2], "and what the model wants around a text stays"
    assert padded.encode("the cat " * 400) == [1, *[4, 5] * 400, 2]


def test_a_text_that_the_tokenizer_refuses_is_one_error(tmp_path: Path) -> None:
    def without_unknown(backend: Backend) -> None:
        backend.model = models.WordLevel({"[CLS]": 1, "[SEP]": 2, "the": 4}, unk_token="absent")

    with pytest.raises(TokenizerError, match=r"cannot encode the text: .*UNK.*; give token ids with --tokens"):
        saved(tmp_path, without_unknown).encode("the dog")


def test_no_checkpoint_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="random:3 has no tokenizer"):
        load_tokenizer("random:3")
    with pytest.raises(WeightError, match="does not exist"):
        load_tokenizer(str(tmp_path / "absent"))
