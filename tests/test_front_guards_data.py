"""Indices under conditions over integer inputs: what they discard is never looked at; what counts and lies outside is said."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from time import process_time
from typing import TypeAlias

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import text
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document
from guarded_data import GuardedByData, Outside, random_case


def check(case: GuardedByData, rng: Random) -> int:
    """How many elements were right. Accepted: it gives what a Python `if` gives, and stops just where an element that counts is outside."""
    try:
        program = case.program()
    except SpecError as refused:
        if refused.cure is None:
            pytest.fail(f"no cure: {refused}")
        return 0
    right = 0
    for _ in range(4):
        data = case.data(rng)
        try:
            want = case.want(data)
        except Outside:
            with pytest.raises(UsageError, match="is outside"):
                run(program, data)
            continue
        assert run(program, data) == want, (case, data)
        right += len(want)
    return right


def run(program: Program, data: dict[str, np.ndarray]) -> list[float]:
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    return evaluate(program, tensors, {}, torch.float32)["y"].flatten().tolist()


def test_what_is_accepted_is_what_a_python_if_gives() -> None:
    rng = Random(12)
    assert sum(check(random_case(rng), rng) > 0 for _ in range(120)) > 60


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("seed", range(4))
def test_many_are_what_a_python_if_gives(seed: int) -> None:
    rng = Random(seed)
    assert sum(check(random_case(rng), rng) > 0 for _ in range(1000)) > 500


SPEC = """\
einpage: 1
name: by_data
sizes: {{n: 5, seq: 8, batch: 3, wide: 4}}
axes: {{b: batch, s: seq, t: seq, i: n, d: wide}}
inputs:
  x: {{axes: b i}}
  v: {{axes: i}}
  q: {{axes: b s d}}
  gate: {{axes: b}}
  pad: {{axes: b, dtype: int32{ranged}}}
  ln: {{axes: b, dtype: int32}}
  slot: {{axes: b t, dtype: int64}}
weights:
  w: {{axes: i d, from: w}}
body:
  - y[{axes}] = {expression}
outputs: {{y: {{axes: {letters}}}}}
"""


def program_of(axes: str, expression: str, ranged: str = "") -> Program:
    letters = " ".join(axes.split(",")) or '""'
    return elaborate(read_document(SPEC.format(axes=axes, letters=letters, expression=expression, ranged=ranged), "by_data.yaml"))


def found(axes: str, expression: str, ranged: str = "") -> str:
    """The statement with its indices as they are read."""
    (part,) = program_of(axes, expression, ranged).definitions[-1].parts
    return text(part.expr)


@pytest.mark.parametrize(
    ("axes", "expression", "inside"),
    [
        ("b,s", "where(s >= pad[b] and s < pad[b] + n, x[b, s - pad[b]], 0)", "x[b, max(min(s - pad[b], 4), 0)]"),
        ("b,s", "where(s < pad[b] or s >= pad[b] + n, 0, x[b, s - pad[b]])", "x[b, max(min(s - pad[b], 4), 0)]"),
        ("b", "where(ln[b] - 3 >= 0 and ln[b] < 8, v[ln[b] - 3], 0)", "v[max(min(ln[b] - 3, 4), 0)]"),
        ("b,s", "where(abs(s - ln[b]) < 3, v[s - ln[b] + 2], 0)", "v[max(min(s - ln[b] + 2, 4), 0)]"),
        ("b,s", "where(min(s, ln[b]) >= 3 and max(s, ln[b]) < 8, v[ln[b] - 3] + v[s - 3], 0)", "v[max(s - 3, 0)]"),
        ("b", "where(0 <= 2 * ln[b] - 4 and 2 * ln[b] - 4 < n, v[2 * ln[b] - 4], 0)", "v[max(min(2 * ln[b] - 4, 4), 0)]"),
        ("b", "where(where(ln[b] >= 0 and ln[b] < n, 1, 0) == 1, v[ln[b]], 0)", "v[max(min(ln[b], 4), 0)]"),
        ("s", "where(where(s >= 3, 1, 0) == 1, v[s - 3], 0)", "v[max(s - 3, 0)]"),
        ("s,t", "where((s >= 3) + (t >= 3) == 2, v[s - 3] + v[t - 3], 0)", "v[max(s - 3, 0)]"),
        ("s,t", "where(min(s, t) >= 3, v[s - 3] + v[t - 3], 0)", "v[max(s - 3, 0)]"),
        ("s,t", "where(max(s, t) < n, v[s] * v[t], 0)", "v[min(s, 4)]"),
        ("s,t", "where(max(s, t) >= 3, v[where(s >= t, s, t) - 3], 0)", "v[max(where(s >= t, s, t) - 3, 0)]"),
        # what is not proven is looked up where it counts, and checked there
        ("b", "where(ln[b] - 3 >= 0, v[ln[b] - 3], 0)", "v[where(ln[b] - 3 >= 0, ln[b] - 3, 0)]"),
        ("b,s", "where(s < ln[b], v[ln[b] - 1 - s], 0)", "v[where(s < ln[b], ln[b] - 1 - s, 0)]"),
        ("b", "where(pad[b] > 2, v[ln[b]], 0)", "v[where(pad[b] > 2, ln[b], 0)]"),
        ("b,t", "where(t < ln[b], w[slot[b,t], d] * q[b,t,d], 0)", "w[where(t < ln[b], slot[b, t], 0), d]"),
        # a condition over other letters that lets each element through for some of them is left out
        ("b,s,t", "softmax[t](where(t <= s, q[b,s,d] * w[slot[b,t], d], -inf))", "w[slot[b, t], d]"),
        ("b,s,t", "softmax[t](where(t <= s and t < ln[b], q[b,s,d] * w[slot[b,t], d], -inf))", "w[where(t < ln[b], slot[b, t], 0), d]"),
        ("b,s", "where(s > 6, v[ln[b]], 0)", "v[ln[b]]"),
        ("b,s", "where(s > ln[b], v[slot[b,0]], 0)", "v[where(s > ln[b], slot[b, 0], 0)]"),
        # an element that counts elsewhere as well is checked anyway
        ("b", "where(v[ln[b]] > 0, v[ln[b]], 0.01 * v[ln[b]])", "where(v[ln[b]] > 0, v[ln[b]], 0.01 * v[ln[b]])"),
    ],
)
def test_an_index_by_data(axes: str, expression: str, inside: str) -> None:
    assert inside in found(axes, expression)


@pytest.mark.parametrize(
    ("expression", "ranged", "message", "cure"),
    [
        (
            "where(gate[b] > 0.5, v[pad[b]], 0)",
            "",
            "`pad[b]` may lie outside dimension 1 (`i`) of the input `v`, which has extent 5, "
            "and `gate[b]`, which is not made of whole numbers, says where it counts: `gate[b] > 0.5`",
            "declare the range of `pad`, as in `range: 0 .. 4`, or compare whole numbers alone: letters, sizes, integer inputs",
        ),
        (
            "where(pad[b] - ln[b] >= 0, v[pad[b] - ln[b]], 0)",
            "",
            "`pad[b] - ln[b]` may lie outside dimension 1 (`i`) of the input `v`, which has extent 5, "
            "and fp32, which may round, decides where it counts: `pad[b] - ln[b] >= 0`",
            "declare the range of `pad`, `ln`, as in `range: 0 .. 4`",
        ),
        (
            "where(gate[b] > 0.5, v[pad[b]], 0)",
            ", range: 0 .. 5",
            "`pad[b]` may lie outside dimension 1 (`i`) of the input `v`, which has extent 5, "
            "and `gate[b]`, which is not made of whole numbers, says where it counts: `gate[b] > 0.5`",
            "compare whole numbers alone: letters, sizes, integer inputs",
        ),
    ],
)
def test_where_a_bad_index_counts_must_be_told_beforehand(expression: str, ranged: str, message: str, cure: str) -> None:
    with pytest.raises(SpecError) as e:
        program_of("b", expression, ranged)
    assert (e.value.message, e.value.cure) == (message, cure)


@pytest.mark.parametrize(
    ("expression", "ranged"),
    [
        ("where(gate[b] > 0.5, v[pad[b]], 0)", ", range: 0 .. 4"),
        ("where(pad[b] - 3 * pad[b] + 8 >= 0, v[pad[b]], 0)", ", range: 0 .. 4"),
        ("where(pad[b] % 3 == 1, v[ln[b]], 0)", ", range: -9 .. 9"),
    ],
)
def test_a_range_proves(expression: str, ranged: str) -> None:
    program_of("b", expression, ranged)


Holds: TypeAlias = Callable[[int], bool]
FAR = [0, 3, 4, 2**24 - 3, 2**24 + 1, 2**31 - 1, -1, -(2**24) - 3, -(2**31)]
"""Beyond 2**24 fp32 rounds."""


@pytest.mark.parametrize(
    ("expression", "counts", "at"),
    [
        ("where(ln[b] - 3 >= 0 and ln[b] - 3 < n, v[ln[b] - 3], 7)", lambda x: 3 <= x < 8, lambda x: x - 3),
        ("where(5 > 2 * ln[b] and -ln[b] <= 0, v[ln[b]], 7)", lambda x: 0 <= x < 2.5, lambda x: x),
        ("where(abs(ln[b] - 2) <= 2, v[ln[b]], 7)", lambda x: 0 <= x < 5, lambda x: x),
        ("where(not (ln[b] // 2 != 2), v[ln[b] - 4], 7)", lambda x: x in (4, 5), lambda x: x - 4),
        ("where(max(ln[b], -ln[b]) + seq == 12 and ln[b] > 0, v[ln[b]], 7)", lambda x: x == 4, lambda x: x),
    ],
)
def test_no_range_is_needed_where_one_side_cannot_be_far(expression: str, counts: Holds, at: Callable[[int], int]) -> None:
    program, v = program_of("b", expression), np.arange(1, 6, dtype=np.float32)
    for start in range(0, len(FAR), 3):
        ln = np.array(FAR[start : start + 3], np.int32)
        data = {i.name: np.zeros(i.shape, np.int32 if i.dtype else np.float32) for i in program.inputs} | {"v": v, "ln": ln}
        assert run(program, data) == [float(v[at(int(x))]) if counts(int(x)) else 7.0 for x in ln]


@pytest.mark.parametrize(
    "condition", ["min(ln[b], n) == ln[b]", "pad[b] <= ln[b]", "pad[b] + ln[b] > 3", "ln[b] % 3 == 1", "ln[b] > 0.5", "ln[b] < inf"]
)
def test_what_fp32_may_get_wrong_tells_nothing(condition: str) -> None:
    with pytest.raises(SpecError, match="may lie outside"):
        program_of("b,s", f"where({condition}, v[ln[b] + 0], 7)")


def test_deeply_nested_choices_are_read_in_no_time() -> None:
    nested = "s >= 3"
    for _ in range(20):
        nested = f"where({nested}, s, 0) >= 3"
    smallest = "s"
    for n in range(20):
        smallest = f"min({smallest}, t + {n})"
    begun = process_time()
    assert "v[max(s - 3, 0)]" in found("s", f"where({nested}, v[s - 3], 0)")
    with pytest.raises(SpecError):
        program_of("s,t", f"where({smallest} // 2 // 2 >= 3 or {smallest} < 9, v[s + 3], 0)")
    assert process_time() - begun < 8
