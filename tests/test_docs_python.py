"""The examples of docs/python.md, run one after the other in one namespace: each prints what the page says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs/python.md"
FENCE = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def check_page(text: str) -> int:
    """Run every `python` block; it prints what the `text` block behind it says, or nothing. Returns how many there are."""
    blocks = [(match[1], match[2], text[: match.start()].count("\n") + 2) for match in FENCE.finditer(text)]
    names: dict[str, object] = {"__name__": "docs_python"}
    for i, (kind, body, line) in enumerate(blocks):
        if kind == "python":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile("\n" * (line - 1) + body, str(PAGE), "exec"), names)
            told = blocks[i + 1][1] if i + 1 < len(blocks) and blocks[i + 1][0] == "text" else ""
            assert printed.getvalue() == told, f"{PAGE.name}:{line}"
    return sum(kind == "python" for kind, _, _ in blocks)


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert check_page(PAGE.read_text(encoding="utf-8")) >= 6


@pytest.mark.parametrize("told", ["```text\n3\n```\n", ""])
def test_an_example_that_prints_something_else_is_found(told: str) -> None:
    with pytest.raises(AssertionError, match=r"python\.md:2"):
        check_page(f"```python\nprint(1 + 1)\n```\n\n{told}")
