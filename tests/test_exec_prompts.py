"""Where a prompt comes from: the command line itself, a file, stdin; and what is no text is refused in one line."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from command_line import facts, ran
from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.command import options
from einpage.exec.command.options import PromptArgument, argument_text, prompt_texts
from einpage.exec.command.parser import parser
from einpage.exec.load.inputs import InputError, encode_prompts

SPEC = """
einpage: 1
name: counts
sizes: {batch: 1, seq: 1, vocab: 300, model: 300}
axes: {b: batch, s: seq, v: vocab, m: model}
inputs:
  tokens: {axes: b s, dtype: int32}
weights:
  embed: {axes: v m, from: embed.weight}
body:
  - hidden[b,s,m] = embed[tokens[b,s], m]
  - logits[b,s,v] = hidden[b,s,m] * embed[v,m]
outputs:
  logits: {axes: b s v}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """`run` of a model of bytes: the best next token of a text is its last byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.save(str(tmp_path / "tokenizer.json"))
    save_file({"embed.weight": np.eye(300, dtype=np.float32)}, str(tmp_path / "model.safetensors"))
    (tmp_path / "counts.yaml").write_text(SPEC, encoding="utf-8")
    return ["run", str(tmp_path / "counts.yaml"), "--weights", str(tmp_path), "--budget", "4MiB", "--machine", "cpu"]


def literal(text: str) -> PromptArgument:
    return PromptArgument(text, literal=True)


def written(text: str) -> PromptArgument:
    return PromptArgument(text, literal=False)


def given_stdin(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_prompt_is_a_text_a_file_or_stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("naïve\n🦙\n\n", encoding="utf-8")
    file = f"@{tmp_path / 'p.txt'}"
    given_stdin(monkeypatch, b"from stdin\n")
    assert prompt_texts([written("a"), written(file), written("-")]) == ["a", "naïve\n🦙\n", "from stdin"]
    for text in ("@", "@@", "-", "--", file, "a@b"):
        assert prompt_texts([literal(text)]) == [text]
    assert prompt_texts([written("@@user"), written("@@@"), written("-x"), written("a@b"), written("")]) == ["@user", "@@", "-x", "a@b", ""]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"a", "a"),
        (b"a\n", "a"),
        (b"a\n\n", "a\n"),
        (b"a\r\n", "a"),
        (b"a\r", "a\r"),
        (b"\xef\xbb\xbfa\n", "a"),
        (b"\n\n", "\n"),
        (b" \n", " "),
    ],
)
def test_one_final_newline_is_not_part_of_a_prompt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "p").write_bytes(content)
    assert prompt_texts([written(f"@{tmp_path / 'p'}")]) == [text]
    given_stdin(monkeypatch, content)
    assert prompt_texts([written("-")]) == [text]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty; a model needs at least one token"),
        (b"\n", "empty; a model needs at least one token"),
        (b"ab\xffc", "not UTF-8: byte 0xff at offset 2"),
        (b"abc\xe2\x82", "not UTF-8: byte 0xe2 at offset 3"),
        ("a".encode("utf-16"), "not UTF-8: byte 0xff at offset 0"),
    ],
)
def test_what_is_no_text_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(UsageError, match=f"--prompt @.*: {said}"):
        prompt_texts([written(f"@{tmp_path / 'p'}")])
    given_stdin(monkeypatch, content)
    with pytest.raises(UsageError, match=f"--prompt -: {said}"):
        prompt_texts([written("-")])


def test_files_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"@.*absent: cannot be read: No such file or directory; for the text itself write --prompt @@"):
        prompt_texts([written(f"@{tmp_path / 'absent'}")])
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        prompt_texts([written(f"@{tmp_path}")])
    with pytest.raises(UsageError, match="--prompt @: write a file's name after the @"):
        prompt_texts([written("@")])
    with pytest.raises(UsageError, match=r"--prompt - is given twice, and there is one stdin"):
        prompt_texts([written("-"), literal("-"), written("-")])
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"--prompt -: cannot be read: stdin is closed"):
        prompt_texts([written("-")])
    monkeypatch.setattr(options, "LONGEST_PROMPT_BYTES", 1000)
    with pytest.raises(UsageError, match=r"@/dev/zero: longer than 1000 bytes"):
        prompt_texts([written("@/dev/zero")])


def test_a_run_takes_all_of_them_in_their_order(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    (tmp_path / "p.txt").write_text("file\n", encoding="utf-8")
    given_stdin(monkeypatch, b"stdin: Q\n")
    more = ["--prompt", "-", "--prompt-text", "@-", "--prompt", f"@{tmp_path / 'p.txt'}", "--prompt=@@x", "--prompt-text=--z", "--json"]
    # Not padded: this spec has no lengths.
    with pytest.raises(InputError, match="8, 2, 4, 2, 3 tokens would be padded to 8"):
        raised(words, more)
    for argument, best in [("@@x", "x"), (f"@{tmp_path / 'p.txt'}", "e"), ("-", "!")]:
        given_stdin(monkeypatch, b"!\n")
        assert facts(capsys, *words, "--prompt", argument)["top"][0][0][1] == best


def raised(words: list[str], more: list[str]) -> None:
    """The error of a run itself, which the command line would print."""
    from einpage.exec.command.parser import parser

    arguments = parser().parse_args([*words, *more])
    arguments.command_function(arguments)


def test_bytes_of_the_command_line_that_are_no_utf8(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    _, err = ran(capsys, *words, "--prompt", os.fsdecode(b"ab\xffc"), status=2)
    assert err.endswith("einpage: the prompt: not UTF-8: byte 0xff after 2 characters; convert the text\n")
    _, err = ran(capsys, *words, "--prompt-text", "ab\ud800", status=2)
    assert "the prompt: U+D800 after 2 characters is half of a surrogate pair, no character" in err


def test_lone_surrogates_from_elsewhere(capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(InputError, match=r"the prompts: U\+DFFF after 0 characters"):
        encode_prompts(load_tokenizer(str(tmp_path)), ["a", "\udfff"])
    (tmp_path / "t.json").write_text('["\\ud800"]', encoding="ascii")
    _, err = ran(capsys, *words, "--tokens", str(tmp_path / "t.json"), status=2)
    assert r"element 0 of list 0 is '\ud800', not a token id" in err
    saved = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    saved["model"]["vocab"]["\ud800"] = 299
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved), encoding="ascii")
    _, err = ran(capsys, *words, "--prompt", "a", status=2)
    assert "tokenizer.json: not a tokenizer" in err
    (tmp_path / "tokenizer.json").write_bytes(b'{"version": "\xff"}')
    _, err = ran(capsys, *words, "--prompt", "a", status=2)
    assert "tokenizer.json: not a tokenizer" in err


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize(("option", "environment"), [("--prompt", ASCII), ("--prompt-text", {"PYTHONUTF8": "1"})], ids=["ascii", "utf-8"])
def test_the_bytes_of_an_argument_are_utf_8_whatever_the_locale(words: list[str], option: str, environment: dict[str, str]) -> None:
    def process(prompt: bytes) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "einpage.exec.cli", *words, "--outputs", "logits", option, prompt, "--device", "cpu", "--json"]
        return subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **environment}, encoding="utf-8")

    good, bad = process("hé".encode()), process("héllo ".encode() + b"\xff")
    assert good.returncode == 0, good.stderr
    assert bad.returncode == 2 and "not UTF-8: byte 0xff after 6 characters" in bad.stderr


def test_an_argument_that_is_a_text_is_decoded_and_no_other_is() -> None:
    escaped = "hé".encode().decode("ascii", "surrogateescape")
    p = parser()
    a = p.parse_args(["generate", "x", "--stop", escaped, "--weights", escaped, "--prompt", escaped, "--prompt", f"@@{escaped}"])
    assert p.parse_args(["chat", "--system", escaped]).system == "hé"
    assert a.stop == ["hé"] and a.weights == escaped and prompt_texts(a.prompt) == ["hé", "@hé"]
    for kept in ("hé", "a\udcff", "\ud800"):
        assert argument_text(kept) == kept
