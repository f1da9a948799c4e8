"""A number of a spec is one that fp32 holds, wherever it stands; what is infinite is so because somebody wrote `inf`."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.match.metadata import spec_settings
from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Num, walk
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.spec.reader import read_document
from einpage.exec.cli import main

SPEC = """\
einpage: 1
name: numbers
sizes: {n: 4}
scalars: {h: 1}
axes: {a: n}
lists: {k: {over: 2, default: 1}}
inputs: {x: {axes: a, default: 0}, at: {axes: a, dtype: int32, default: 0}}
body:
  - repeat: 2
    as: l
    let: {g: 1}
    body:
      - z[a] = x[a] * g * k[l]
  - y[a] = x[a] * h
outputs: {y: {axes: a}}
"""
LARGEST = "3.4028235e38"
"""As numpy prints fp32's largest number: a little more than it, and rounded to it."""


def failure(*changes: tuple[str, str], **settings: float | str) -> SpecError:
    text = SPEC
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    with pytest.raises(SpecError) as caught:
        elaborate(read_document(text, "numbers.yaml"), settings)
    return caught.value


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("x[a] * h", "1e300", 14, "`1e300` is 1e+300, beyond fp32"),
        ("x[a] * h", "-1e300", 14, "`-1e300` is -1e+300, beyond fp32"),
        ("x[a] * h", "1e38 / (x[a] * 1e39)", 14, "`1e39` is 1e+39, beyond fp32"),
        ("x[a] * h", "where(x[a] > 0, x[a], -1e39)", 14, "`-1e39` is -1e+39, beyond fp32"),
        ("x[a] * h", "x[a] * (1e20 * 1e20)", 14, "`1e20 * 1e20` is 1e+40, beyond fp32"),
        ("x[a] * h", "x[a] * exp(89)", 14, "is 4.48961e+38, beyond fp32"),
        ("x[a] * h", "x[a] * 1e400", 14, "`1e400` is beyond fp32"),
        ("x[a] * h", "sum[a](x[a] * 1e39)", 14, "`1e39` is 1e+39, beyond fp32"),
        ("x[a] * h", "x[a] * 2 ** 128", 14, "beyond fp32"),
        ("x[a] * h", "x[a] * (1e300 * 1e300)", 14, "too large"),
        ("x[a] * h", "x[a] * (1e300 / 1e-300)", 14, "too large"),
        ("{h: 1}", "{h: 1e300}", 4, "`h` is 1e+300, beyond fp32"),
        ("{h: 1}", "{h: -1e39}", 4, "`h` is -1e+39, beyond fp32"),
        ("{h: 1}", "{h: 1e20 * 1e20}", 4, "`h` is 1e+40, beyond fp32"),
        ("{h: 1}", "{h: 1e300 * 1e300}", 4, "too large"),
        ("default: 1}", "default: 1e39}", 6, "`k[0]` is 1e+39, beyond fp32"),
        ("x: {axes: a, default: 0}", "x: {axes: a, default: 1e39}", 7, "the default of `x` is 1e+39, beyond fp32"),
        ("int32, default: 0", "int32, default: 3e9", 7, "the default of `at` is 3e+09, beyond int32"),
        ("{g: 1}", "{g: 1e39}", 11, "`g` is 1e+39, beyond fp32"),
        ("x[a] * g", "x[a] * 1e39", 13, "`1e39` is 1e+39, beyond fp32"),
    ],
)
def test_a_number_that_fp32_does_not_hold_is_refused_at_its_place(old: str, new: str, line: int, says: str) -> None:
    found = failure((old, new))
    assert (found.line, says in found.message) == (line, True), str(found)


@pytest.mark.parametrize("value", ["1e300", "1e39", "-1e39", "1e400", "1e20 * 1e20", 1e300, -1e39])
def test_so_is_a_setting(value: str | float) -> None:
    found = failure(h=value)
    assert (found.path, "beyond fp32" in found.message) == ("--set h", True), str(found)


@pytest.mark.parametrize("value", [1e300, -1e39, 10**39, 10**400])
@pytest.mark.parametrize("name", ["h", "k"])
def test_so_is_what_metadata_say(value: float, name: str) -> None:
    class Metadata:
        def config(self) -> dict[str, object]:
            return {"key": [value, 1] if name == "k" else value}

    document = read_document(SPEC.replace("outputs:", f"config: {{{name}: key}}\noutputs:"), "numbers.yaml")
    with pytest.raises(WeightError, match=r"the checkpoint's `key` is .* beyond fp32"):
        spec_settings(document, Metadata())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "numbers"),
    [
        ("where(x[a] > 0, x[a], -inf)", [0, -math.inf]),
        ("where(x[a] > 0, x[a], inf + 1)", [0, math.inf]),
        (f"where(x[a] > 0, x[a], -{LARGEST})", [0, -float(LARGEST)]),
        ("x[a] * (1e300 / 1e299)", [10.0]),
        ("x[a] * where(1 > 2, 1e300, 2)", [2]),
    ],
)
def test_infinity_that_is_written_is_meant_and_what_folding_leaves_counts(expression: str, numbers: list[float]) -> None:
    program = elaborate(read_document(SPEC.replace("x[a] * h", expression), "numbers.yaml"))
    found = [node.value for node in walk(program.definitions[-1].parts[0].expr) if isinstance(node, Num)]
    assert found == numbers


@pytest.mark.parametrize("dtype", [DType.FP32, DType.BF16, DType.FP16])
def test_what_is_beyond_a_type_is_what_rounds_to_infinity(dtype: DType) -> None:
    torch_dtype = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}[dtype]
    largest = torch.finfo(torch_dtype).max
    # Halfway to what would be the next number, and the last fp32 before it; above fp32 only fp64 holds what lies between.
    halfway = {DType.FP32: 2.0**128 - 2.0**103, DType.BF16: 2.0**128 - 2.0**119, DType.FP16: 65520.0}[dtype]
    before = math.nextafter(halfway, 0) if dtype is DType.FP32 else halfway * (1 - 2.0**-24)
    for value in (largest, before, halfway, halfway * 2, -halfway, 0.0, math.inf, -math.inf, math.nan):
        rounded = torch.tensor(value, dtype=torch.float64).to(torch_dtype)
        assert dtype.is_exceeded_by(value) == (bool(rounded.isinf()) and not math.isinf(value)), value
    assert dtype.is_exceeded_by(10**400)


@pytest.mark.parametrize(("op", "x", "y"), [("*", 1e300, 1e300), ("/", 1e300, 1e-300), ("+", 1.7e308, 1.7e308)])
def test_arithmetic_on_numbers_has_no_infinite_answer(op: str, x: float, y: float) -> None:
    with pytest.raises(arithmetic.BadNumber, match="too large"):
        arithmetic.binary(op, x, y)


def test_arithmetic_with_infinity_has() -> None:
    assert arithmetic.binary("*", math.inf, 2) == math.inf
    assert arithmetic.unary("-", math.inf) == -math.inf
    assert arithmetic.call("max", [math.inf, 2]) == math.inf


@pytest.mark.parametrize(
    ("dtype", "statement", "status", "says"),
    [
        ("fp16", "y[a] = 70000", 2, "numbers.yaml:14:12: `y` is set to 70000, beyond fp16"),
        ("fp16", "y[a] = h", 2, "numbers.yaml:14:12: `y` is set to 70000, beyond fp16"),
        ("bf16", "y[a] = 3.4e38", 2, "numbers.yaml:14:12: `y` is set to 3.4e+38, beyond bf16"),
        ("fp16", "y[a] = where(x[a] > 2, 70000, x[a])", 0, ""),
        ("fp16", "y[a] = -inf", 0, "values are -inf"),
        ("fp16", "y[a] = x[a] * h", 0, ""),
        ("fp32", "y[a] = h", 0, ""),
        ("bf16", "y[a] = h", 0, ""),
        ("fp32", f"y[a] = {LARGEST}", 0, ""),
    ],
)
def test_a_number_that_is_stored_is_one_that_the_run_holds(
    dtype: str, statement: str, status: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("numbers.yaml").write_text(SPEC.replace("{h: 1}", "{h: 70000}").replace("y[a] = x[a] * h", statement), encoding="utf-8")
    run = "run numbers.yaml --weights random:0 --budget 1MiB --machine cpu --device cpu --plan-seconds 0 --dtype"
    assert main([*run.split(), dtype]) == status
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("device:")]
    assert says in "\n".join(said) and (status == 0 or len(said) == 1), said


def test_a_name_that_is_declared_twice_is_refused_before_it_counts() -> None:
    for value in ("2.5", "3"):
        found = failure(("{h: 1}", f"{{n: {value}}}"))
        assert (found.line, found.message) == (4, "`n` already names a size, in line 3")
    assert failure(("{a: n}", "{a: n, h: 2}")).message == "`h` already names a scalar, in line 4"
