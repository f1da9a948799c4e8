"""Which outputs are logits: those whose last axis runs over the vocabulary. Of them are a perplexity and the table of next tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import facts, ran

MACHINE = ("--machine", "cpu")
TWO_OUTPUTS = """
einpage: 1
name: two
sizes: {batch: 1, seq: 1, vocab: 40, model: 12}
axes: {b: batch, s: seq, v: vocab, m: model}
inputs:
  tokens: {axes: b s, dtype: int32}
weights:
  embed: {axes: v m, from: embed.weight}
body:
  - hidden[b,s,m] = embed[tokens[b,s], m]
  - logits[b,s,v] = hidden[b,s,m] * embed[v,m]
outputs:
  hidden: {axes: b s m}
  logits: {axes: b s v}
"""


def test_a_perplexity_is_of_the_logits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An output too narrow to be logits is not taken for them, and of two that are wide enough none is taken unasked."""
    (tmp_path / "two.yaml").write_text(TWO_OUTPUTS, encoding="utf-8")
    (tmp_path / "t.json").write_text("[1, 30, 2, 7]", encoding="utf-8")
    words = ["run", str(tmp_path / "two.yaml"), "--weights", "random:0", "--budget", "1MiB", *MACHINE, "--tokens", str(tmp_path / "t.json")]
    found = facts(capsys, *words, "--perplexity")
    assert facts(capsys, *words, "--perplexity", "--outputs", "logits")["perplexity"] == found["perplexity"]
    assert facts(capsys, *words, "--perplexity", "--set", "model=40")["perplexity"] > 1, "as wide as the vocabulary, and not over it"
    assert facts(capsys, *words, "--perplexity", "--set", "model=31", "--outputs", "logits")["perplexity"] > 1


def write(tmp_path: Path, text: str) -> list[str]:
    """The words of a run of the spec `text` on four tokens."""
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "t.json").write_text("[1, 30, 2, 7]", encoding="utf-8")
    return ["run", str(tmp_path / "s.yaml"), "--weights", "random:0", "--budget", "1MiB", *MACHINE, "--tokens", str(tmp_path / "t.json")]


def test_of_two_that_could_be_the_logits_none_is_taken_unasked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = write(tmp_path, TWO_OUTPUTS.replace("outputs:", "  - twice[b,s,v] = 2 * logits[b,s,v]\noutputs:\n  twice: {axes: b s v}"))
    _, err = ran(capsys, *words, "--perplexity", status=2)
    assert "twice and logits could each be the logits; say which with --outputs NAME" in err
    assert facts(capsys, *words, "--perplexity", "--outputs", "twice")["perplexity"] > 1


def test_next_tokens_are_told_for_outputs_over_the_vocabulary_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Not for hidden states, a mean of them, or classes, though each is a batch of rows of numbers, and as wide as the vocabulary."""
    more = """
  - mean_hidden[b,m] = mean[s](hidden[b,s,m])
  - last[b,v] = logits[b,seq-1,v]
  - by_token[s,v] = logits[0,s,v]
outputs:
  mean_hidden: {axes: b m}
  last: {axes: b v}
  by_token: {axes: s v}"""
    words = write(tmp_path, TWO_OUTPUTS.replace("outputs:", more.strip("\n")))
    for name in ("hidden", "mean_hidden", "by_token"):
        assert "top" not in facts(capsys, *words, "--outputs", name, "--set", "model=40"), name
    best = facts(capsys, *words, "--outputs", "logits")["top"]
    assert len(best[0]) == 5
    assert facts(capsys, *words, "--outputs", "mean_hidden,last")["top"] == best
    out, _ = ran(capsys, *words, "--outputs", "mean_hidden,hidden")
    assert "output      mean_hidden [1, 12]\noutput      hidden [1, 4, 12]\n" in out
    assert "(id " not in out


@pytest.mark.parametrize(
    ("change", "names_the_vocabulary"),
    [
        ({"vocab: 40, ": "", "v: vocab": "v: 40"}, True),  # by the index alone
        ({"v: vocab": "v: vocab, u: 40", "embed: {axes: v m": "embed: {axes: u m"}, True),  # by the name of the size
        (
            {"vocab: 40": "words: 40", "v: vocab": "v: words, u: words", "embed: {axes: v m": "embed: {axes: u m"},
            True,
        ),  # by the index's size
        ({"vocab: 40, ": "", "v: vocab": "v: 40, u: 40", "embed: {axes: v m": "embed: {axes: u m"}, False),  # the number is the same: no
    ],
)
def test_how_a_spec_says_which_axis_is_the_vocabulary(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, change: dict[str, str], names_the_vocabulary: bool
) -> None:
    text = TWO_OUTPUTS
    for old, new in change.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    words = [*write(tmp_path, text), "--outputs", "logits"]
    assert ("top" in facts(capsys, *words)) is names_the_vocabulary
    if not names_the_vocabulary:
        _, err = ran(capsys, *words, "--perplexity", status=2)
        assert "the vocabulary's axis is the one by which `tokens` index a weight, or that of the size `vocab`" in err
