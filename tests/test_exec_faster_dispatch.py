"""A model that is held open is run by whichever dispatcher is the faster, where nobody asked for one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from einpage.exec.run.loaded_model import TRIES, FasterDispatcher


def passes(first_s: list[float], other_s: list[float], count: int) -> str:
    """Who ran each pass, of dispatchers whose passes take these seconds in turn, the last of them from there on."""
    ran = list[str]()

    def dispatcher(name: str, seconds: list[float]) -> Any:
        left = list(seconds)

        def run(device: object, hooks: object) -> object:
            ran.append(name)
            return SimpleNamespace(wall_s=left.pop(0) if len(left) > 1 else left[0])

        return SimpleNamespace(run=run, close=lambda: ran.append(name.upper()))

    faster = FasterDispatcher(dispatcher("a", first_s), lambda: dispatcher("b", other_s))
    for _ in range(count):
        faster.run(None, None)  # type: ignore[arg-type]
    faster.close()
    return "".join(ran)


@pytest.mark.parametrize(
    ("first_s", "other_s", "then"),
    [([9.0, 2.0], [1.0], "b"), ([0.1, 2.0], [3.0], "a"), ([9.0, 5.0, 5.0, 1.0, 5.0], [2.0], "a"), ([0.1, 2.0], [2.0], "a")],
)
def test_the_one_with_the_shorter_pass_runs_what_follows(first_s: list[float], other_s: list[float], then: str) -> None:
    tried = "a" + "ab" * TRIES
    assert passes(first_s, other_s, len(tried) + 4) == tried + then * 4 + "AB"


def test_a_single_pass_makes_no_other() -> None:
    assert passes([1.0], [1.0], 1) == "aA"
