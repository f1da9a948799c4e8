"""A window of attention that a checkpoint has, beside how far back a query of the spec sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import einpage
from checkpoint_metadata import SPECS, TINY, saved
from einpage.checkpoints.files.checkpoint import WeightError


@pytest.mark.parametrize(("past", "window", "passes"), [(0, 4, True), (60, 64, True), (60, 63, False)])
def test_a_window_is_as_long_as_what_a_query_sees(tmp_path: Path, past: int, window: int, passes: bool) -> None:
    """A spec that says nothing of windows, and has states: beside `past` positions that stand, 4 tokens see 64, not 4."""
    text = (SPECS / "llama.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if "sliding" not in line]
    spec = tmp_path / "windowless.yaml"
    spec.write_text("\n".join(lines) + "\n", encoding="utf-8")
    saved(tmp_path, "llama", **TINY)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": window}), encoding="utf-8")
    settings = {"seq": 4, "past": past}
    if passes:
        einpage.load_spec(spec, set=settings, weights=tmp_path)
    else:
        with pytest.raises(WeightError, match="`sliding_window` is 63, and changes a window of attention"):
            einpage.load_spec(spec, set=settings, weights=tmp_path)
