"""Faults that layers share are one line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from einpage.checkpoints.files.checkpoint import WeightError, folded, some_of_each
from einpage.checkpoints.match.resolve import open_weights, resolve
from einpage.einsum_front.graph.program import Source
from test_checkpoints_resolve import array, program, weight


def test_faults_of_layers_that_are_alike_are_one_line(tmp_path: Path) -> None:
    held = {f"layers.{i}.b": array(2, 3 if i in (1, 5) else 2) for i in range(48)} | {f"layers.{i}.extra": array(1) for i in range(48)}
    save_file(held, tmp_path / "m.safetensors")
    named = [(f"{word}@{i}", Source(f"layers.{i}.{word}", ((0,), (1,)))) for i in range(48) for word in "ab"]
    with pytest.raises(WeightError) as caught:
        resolve(program(*(weight(name, (2, 2), source) for name, source in named)), open_weights(str(tmp_path)))
    assert str(caught.value).splitlines() == [
        "the weights do not fit test.yaml: 98 faults",
        "  missing: a@{0…47}: no tensor called layers.{0…47}.a",
        "  mis-shaped: b@{1, 5}: layers.{1, 5}.b is [2, 3], expected [2, 2] (a=2 b=2)",
        "  surplus: layers.{0…47}.extra [1]: no output uses it (a glob under `ignore:` would allow it)",
    ]


def test_of_very_many_faults_some_of_each_kind_are_told(tmp_path: Path) -> None:
    """Names without numbers, which fold into nothing."""
    held = {f"surplus-{'x' * i}": array(1) for i in range(1, 60)} | {"bent": array(3)}
    save_file(held, tmp_path / "m.safetensors")
    with pytest.raises(WeightError) as caught:
        resolve(program(*(weight("m" * i, (2,)) for i in range(1, 60)), weight("bent", (2,))), open_weights(str(tmp_path)))
    first, *lines, last = str(caught.value).splitlines()
    assert first == "the weights do not fit test.yaml: 119 faults" and len(lines) == 18
    assert [sum(line.startswith(f"  {kind}: ") for line in lines) for kind in ("missing", "mis-shaped", "surplus")] == [8, 1, 9]
    assert last == "  … and 101 more lines"


def test_few_lines_are_told_as_they_are() -> None:
    lines = [f"{kind}: {'x' * i}" for i in range(6) for kind in ("missing", "surplus", "mis-shaped")]
    assert some_of_each(lines) == lines
    assert some_of_each([*lines, "a line of no kind"])[-2:] == ["a line of no kind", "… and 1 more lines"]


def test_a_shard_that_is_missing_names_what_it_held_layer_by_layer(tmp_path: Path) -> None:
    save_file({"a": array(2)}, tmp_path / "m-1.safetensors")
    lost = {f"layers.{i}.experts.{j}.w": "m-2.safetensors" for i in range(20) for j in range(8)}
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", **lost}}))
    assert open_weights(str(tmp_path)).damage[0].endswith("m-2.safetensors is missing; it holds layers.{0…19}.experts.{0…7}.w")


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["a.1.b", "a.2.b", "c"], ["a.{1, 2}.b", "c"]),
        (["a.1.b"], ["a.1.b"]),
        (["a.1", "a.01", "a.1x", "a.1_000"], ["a.1", "a.01", "a.1x", "a.1_000"]),
        (["0.w [1, 2]", "1.w [1, 2]", "1.w [1, 3]"], ["{0, 1}.w [1, 2]", "1.w [1, 3]"]),
        ([f"a.{'9' * 5000}", "a.1", "a\0.1", "a\0.2"], [f"a.{'9' * 5000}", "a.1", "a\0.{1, 2}"]),
    ],
)
def test_lines_are_folded_by_the_numbers_in_names(lines: list[str], expected: list[str]) -> None:
    assert folded(lines) == [line.replace("{1, 2}", "{1…2}").replace("{0, 1}", "{0…1}") for line in expected]


@settings(max_examples=100, deadline=None)
@given(st.sets(st.tuples(st.integers(0, 6), st.integers(10, 16)), min_size=1))
def test_a_folded_line_stands_for_the_lines_it_was_made_of(pairs: set[tuple[int, int]]) -> None:
    def numbers(text: str) -> list[int]:
        ends = [(first, last or first) for first, last in re.findall(r"(\d+)(?:…(\d+))?", text)]
        return [n for first, last in ends for n in range(int(first), int(last) + 1)]

    found = [line.removeprefix("l.").split(".e.") for line in folded(f"l.{i}.e.{j}" for i, j in sorted(pairs))]
    assert sorted((i, j) for first, second in found for i in numbers(first) for j in numbers(second)) == sorted(pairs)
