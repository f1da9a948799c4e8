"""Attention left unfused with --no-fuse: `show` says so, and the results are the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from command_line import LLAMA, LLAMA_SIZES, facts, ran


def test_attention_in_parts_answers_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    in_parts = ["--no-fuse", "attention"]
    out, _ = ran(capsys, "show", LLAMA, *in_parts)
    assert "attention o" not in out and "not fused   o: attention is left in parts, as asked" in out
    (tmp_path / "t.json").write_text(json.dumps([list(range(40, 110))]))
    words = ["run", LLAMA, *LLAMA_SIZES, "--weights", "random:1", "--machine", "cpu", "--tokens", str(tmp_path / "t.json")]
    found = {}
    for name, more in {"fused": [], "parts": in_parts, "pieces": [*in_parts, "--split", "k=3,s=2"]}.items():
        saved = tmp_path / f"{name}.safetensors"
        tasks = facts(capsys, *words, *more, "--budget", "4MiB", "--logits", str(saved))["tasks"]
        found[name] = tasks, load_file(saved)["logits"]
    (few, fused), (more_tasks, parts), (most, pieces) = found.values()
    assert few < more_tasks < most
    assert np.abs(parts - fused).max() <= 1e-5 * np.abs(fused).max() >= np.abs(pieces - fused).max()
