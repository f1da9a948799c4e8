"""What is said of ids as they come: whole characters, up to an end token or a stop string, however these are cut into tokens."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.text.continuation import Continuation
from einpage.checkpoints.text.tokenizer import TextPieces, Tokenizer, end_tokens, load_tokenizer
from smollm2 import smollm2_path

TEXTS = st.text(st.sampled_from("ab \n.é漢🙂👨‍👩‍👧STOP"), max_size=24)


@cache
def load_tokenizer_once() -> Tokenizer:
    return load_tokenizer(str(smollm2_path()))


@given(text=TEXTS)
@settings(deadline=None, max_examples=100)
def test_no_character_is_cut(text: str) -> None:
    tokenizer = load_tokenizer_once()
    pieces = TextPieces(tokenizer)
    said = [pieces.add(token) for token in tokenizer.encode(text)] if text else []
    assert "".join(said) + pieces.rest() == text
    assert not any("\ufffd" in piece for piece in said)


@given(text=TEXTS, stop=st.sampled_from(["STOP", "\n\n", "漢🙂", "b", "TOPS"]))
@settings(deadline=None, max_examples=150)
def test_a_text_ends_before_its_stop_string(text: str, stop: str) -> None:
    """Nothing of the string is said, wherever tokens cut it, and nothing before it is held back for good."""
    tokenizer = load_tokenizer_once()
    answer = Continuation("p", [], tokenizer, frozenset(), [stop])
    said = "".join(answer.add(token) for token in (tokenizer.encode(text) if text else []))
    said += answer.rest()
    assert said == answer.text == text.split(stop)[0]
    assert answer.ended


def test_the_first_of_several_stop_strings_ends_a_text() -> None:
    tokenizer = load_tokenizer_once()
    answer = Continuation("p", [], tokenizer, frozenset(), ["prom", "com"])
    said = "".join(answer.add(token) for token in tokenizer.encode("in a compromise"))
    assert said == answer.text == "in a " and answer.finish == "stop"


def test_an_end_token_is_not_said() -> None:
    tokenizer = load_tokenizer_once()
    (end,) = end_tokens(str(smollm2_path()))
    ids = tokenizer.encode("Paris.")
    answer = Continuation("p", [], tokenizer, frozenset((end,)), [])
    said = [answer.add(token) for token in (*ids, end, *ids)]
    assert "".join(said) == answer.text == "Paris." and answer.tokens == ids and answer.ended


@pytest.mark.parametrize(
    ("files", "ends"),
    [
        ({"generation_config.json": {"eos_token_id": [3, 7]}, "config.json": {"eos_token_id": 1}}, {3, 7}),
        ({"generation_config.json": {}, "config.json": {"eos_token_id": 1}}, {1}),
        ({"config.json": {"eos_token_id": None}}, set()),
        ({}, set()),
    ],
)
def test_end_tokens_of_a_folder(tmp_path: Path, files: dict[str, object], ends: set[int]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content), encoding="utf-8")
    assert end_tokens(str(tmp_path)) == ends


def test_a_broken_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text("{", encoding="utf-8")
    with pytest.raises(WeightError, match=r"generation_config\.json: not JSON"):
        end_tokens(str(tmp_path))
