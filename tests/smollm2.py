"""Where the real model that some tests need is: `$EINPAGE_SMOLLM2`, or what `make run` leaves in `.cache/`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_CACHED = Path(__file__).resolve().parents[1] / ".cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_path() -> Path:
    """The GGUF file. Skips the calling test where it is absent, unless EINPAGE_REQUIRE_MODEL is set: then it fails."""
    path = Path(os.environ.get("EINPAGE_SMOLLM2", _CACHED))
    if not path.is_file():
        message = f"{path} is not there: run `python -m einpage.exec.system.fetch_model`, or set EINPAGE_SMOLLM2"
        assert "EINPAGE_REQUIRE_MODEL" not in os.environ, message
        pytest.skip(message)
    return path
