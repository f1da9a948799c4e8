"""Lists of a spec: numbers by the iteration of a repeat, from an expression, from `--set` or from a checkpoint."""

from __future__ import annotations

import re

import pytest

from einpage.einsum_front.algebra.expr import text
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document

SPEC = """\
einpage: 1
name: listed
sizes: {layers: 3, n: 4}
scalars: {gain: 2}
lists:
  k: {over: layers, as: i, default: gain * i + 1}
axes: {a: n}
inputs: {x: {axes: a}}
body:
  - y[a] = x[a]
  - repeat: layers
    as: l
    let:
      both: k[l] + k[layers - 1 - l]
    weights: {w: {axes: a, from: "w.{k[l]}"}}
    body:
      - y[a] = k[l] * y[a] + where(k[l] > 2, w[a], both)
      - repeat: k[l] - 1
        body: ["y[a] += both"]
outputs: {y: {axes: a}}
"""


def program(spec: str, **settings: int | str | tuple[int, ...]) -> Program:
    return elaborate(read_document(spec, "s.yaml"), settings)


def written(of: Program) -> list[str]:
    return [f"{d.name} {d.shape} {[text(part.expr) for part in d.parts]}" for d in of.definitions]


def test_a_list_is_the_same_as_its_expression_at_each_index() -> None:
    plain = (
        re.sub(r"(?m)^lists:\n.*\n", "", SPEC)
        .replace("k[layers - 1 - l]", "(gain * (layers - 1 - l) + 1)")
        .replace("k[l]", "(gain * l + 1)")
    )
    assert "k[" not in plain
    assert written(program(SPEC)) == written(program(plain))
    assert [w.sources[0].name for w in program(SPEC).weights] == ["w.1", "w.3", "w.5"]
    assert program(SPEC).lists == {"k": (1, 3, 5)}


def test_numbers_of_a_checkpoint_or_an_expression_stand_for_the_default() -> None:
    assert program(SPEC, k=(1, 3, 5)) == program(SPEC)
    assert [w.sources[0].name for w in program(SPEC, k=(2, 1, 7)).weights] == ["w.2", "w.1", "w.7"]
    assert program(SPEC, k="i * i + gain", gain=1).lists == {"k": (1, 2, 5)}
    assert program(SPEC, layers=1).lists == {"k": (1,)}


@pytest.mark.parametrize(
    ("old", "new", "message", "marked"),
    [
        ("k[l] *", "k[l + 1] *", "the index 3 is outside the list `k`, which has 3 numbers", "l + 1"),
        ("k[l] *", "k[l - 1] *", "the index -1 is outside the list `k`, which has 3 numbers", "l - 1"),
        ("both: k[l] +", "both: k[l + 1] +", "the index 3 is outside the list `k`, which has 3 numbers", "l + 1"),
        ("k[l] *", "k[l / 2] *", "the index 0.5 is not a whole number", "l / 2"),
        ("k[l] *", "k[a] *", "`a` varies within the statement, the list `k` from one iteration of a repeat to the next", "a"),
        ("k[l] *", "k *", "the list `k` has 3 numbers", "k"),
        ("k[l] *", "k[l, 0] *", "the list `k` has one index, found 2", "k[l, 0]"),
        ("y[a] = x", "k[a] = x", "`k` already names a list, in line 6", "k[a]"),
        ("{a: n}", "{a: n, k: n}", "`k` already names an axis, in line 7", "k: {over"),
        ("gain * i + 1", "gain * l + 1", "unknown name `l`", "l"),
        ("gain * i + 1", "1 / i", "division by zero", "1 / i"),
        ("over: layers", "over: gain / 4", "the length of `k` is 0.5, which is not a whole number", "gain / 4"),
        ("over: layers", "over: 10 ** 9", "the length of `k` is 1000000000", "10 ** 9"),
        ("n: 4", "n: 'k[0]'", "a number is made of sizes and scalars only", "k[0]"),
        ("as: i", "as: max", "`max` cannot be a name", "max"),
    ],
)
def test_mistakes_are_shown_where_they_are(old: str, new: str, message: str, marked: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)) as caught:
        program(SPEC.replace(old, new, 1))
    error = caught.value
    assert error.source_line == SPEC.replace(old, new, 1).splitlines()[error.line - 1]
    assert error.source_line[error.column - 1 :].startswith(marked), str(error)


def test_a_list_of_another_length_is_refused_where_its_length_is_said() -> None:
    with pytest.raises(SpecError, match=r"the checkpoint's list for `k` has 2 numbers, and should have 3") as caught:
        program(SPEC, k=(1, 2))
    assert caught.value.line == 6 and caught.value.expected == "one for each of layers"
    with pytest.raises(UsageError, match="`gain` is no list of the spec, but is given 2 numbers"):
        program(SPEC, gain=(1, 2))
    with pytest.raises(SpecError, match="unknown name `l`"):
        program(SPEC, k="l")
    with pytest.raises(UsageError, match="--set kk: no size or scalar has this name"):
        program(SPEC, kk=1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('from: "w.{k[l]}"', "from: {name: w, plus: one}", "`plus` is `one`"),
        ('from: "w.{k[l]}"', "from: {name: w, plus: 1e300}", "`1e300` is beyond fp32"),
        ('from: "w.{k[l]}"', "from: {name: w, plus: .inf}", "`plus` is `.inf`"),
        ('from: "w.{k[l]}"', "from: {name: w, add: 1}", "unknown key `add`"),
        ("axes: {a", "config: {gain: {key: g}}\naxes: {a", "`gain` lacks `values`"),
        ("axes: {a", "config: {gain: {key: g, values: {}}}\naxes: {a", "`values` is empty"),
        ("axes: {a", "config: {gain: {key: g, values: {x: y}}}\naxes: {a", "`x` is `y`"),
        ("axes: {a", "config: {gian: g}\naxes: {a", "`gian` is no size, scalar or list"),
        ("over: layers, ", "", "`k` lacks `over`"),
    ],
)
def test_what_is_misspelt_is_shown(old: str, new: str, message: str) -> None:
    assert old in SPEC
    with pytest.raises(SpecError, match=re.escape(message)):
        program(SPEC.replace(old, new, 1))
