"""`einpage machine`: words that say nothing beside the others are refused."""

from __future__ import annotations

import pytest

from command_line import ran


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--device", "cuda"), "add --measure, or leave it out"),
        (("cpu", "--device", "auto"), "add --measure, or leave it out"),
        (("cpu", "--measure"), "leave out one of them"),
    ],
)
def test_of_a_machine_no_word_is_ignored(capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    out, err = ran(capsys, "machine", *words, status=2)
    assert out == "" and said in err
