"""Which output a perplexity is of."""

from __future__ import annotations

from pathlib import Path

import pytest

from command_line import facts, ran

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
    words = ["run", str(tmp_path / "two.yaml"), "--weights", "random:0", "--budget", "1MiB", "--tokens", str(tmp_path / "t.json")]
    found = facts(capsys, *words, "--perplexity")
    assert facts(capsys, *words, "--perplexity", "--outputs", "logits")["perplexity"] == found["perplexity"]
    _, err = ran(capsys, *words, "--perplexity", "--set", "model=31", status=2)
    assert "hidden and logits could each be the logits" in err
    assert facts(capsys, *words, "--perplexity", "--set", "model=31", "--outputs", "logits")["perplexity"] > 1
