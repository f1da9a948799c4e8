"""The Triton kernels, in Triton's interpreter, against the naive fp64 definition: the same cases as the torch kernels, and small tiles."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from einpage.einsum_front.algebra.expr import Acc
from einpage.kernels.errors import IndexOutOfRange, Unsupported
from einpage.kernels.prepare import Backend, prepare
from kernels_build import fn, op
from kernels_cases import ATTENTIONS, CONTRACTS, GATHERS, attention
from kernels_maps import MAPS, last_token
from kernels_naive import Case, assert_right

pytest.importorskip("triton")
pytestmark = pytest.mark.interpreter

from einpage.kernels.launch import kernel as launch_kernel  # noqa: E402
from einpage.kernels.on_triton import map_shape  # noqa: E402
from einpage.kernels.tiles.target import Target  # noqa: E402
from einpage.kernels.tiles.tiles import Tiles  # noqa: E402

ALL = {**MAPS, **CONTRACTS, **ATTENTIONS, **GATHERS}
SMALL = Tiles(16, 16, 16, 4, 1)


@pytest.mark.parametrize("name", ALL)
def test_equals_the_naive_definition(name: str) -> None:
    case = ALL[name]()
    out = case.poisoned()
    prepare(case.job, Backend.TRITON)(case.operands(), out, None)
    assert_right(case, out, f" ({name})")


@pytest.mark.parametrize("name", [n for n in ALL if n not in GATHERS])
def test_small_tiles_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows longer than a block, several programs, several steps of every loop."""
    monkeypatch.setattr(map_shape, "ROW", Tiles(8, 4, 0, 4, 1))
    monkeypatch.setattr(map_shape, "POINTWISE", Tiles(32, 1, 0, 4, 1))
    monkeypatch.setattr(map_shape, "CROSS", Tiles(4, 4, 0, 4, 1))
    monkeypatch.setattr(map_shape, "REUSE", Tiles(2, 4, 0, 1, 1))
    case = ALL[name]()
    out = case.poisoned()
    launch_kernel.triton_kernel(case.job, Target(product=SMALL, attention=SMALL))(case.operands(), out, None)
    assert_right(case, out, f" ({name}, small tiles)")


@pytest.mark.parametrize("shift", [-1, 0, 1, 6, 11, 17])
def test_a_mask_ends_at_any_place_of_a_block(shift: int) -> None:
    """The last key of each query, and the first of a window: at every place of a block of 16 keys, and for each query of a block of 16."""
    last = op("<=", "t", op("+", "s", shift))
    first = op(">", op("+", "t", 20), op("+", "s", shift))
    for mask in (last, op("and", last, first)):
        case = attention(s=(0, 20), t=60, b=1, e=2, score=fn("where", mask, op("/", Acc(0), 3.0), -math.inf))
        out = case.poisoned()
        launch_kernel.triton_kernel(case.job, Target(attention=SMALL))(case.operands(), out, None)
        assert_right(case, out, f" (shift {shift})")


@pytest.mark.parametrize(("name", "operand"), [("rms_norm", "x"), ("unproject", "x"), ("biased_gated", "gate"), ("pythonic", "x")])
def test_the_result_may_take_over_an_operand(name: str, operand: str) -> None:
    case = ALL[name]()
    operands = case.operands()
    out = next(o[0] for v, o in zip(case.job.reads, operands, strict=True) if v.name == operand)
    prepare(case.job, Backend.TRITON)(operands, out, None)
    assert_right(case, out, f" ({name} in place of {operand})")


def test_an_index_outside_is_found_before_the_launch() -> None:
    case = last_token()
    case = Case(case.job, {**case.values, "lengths": np.array([4, 10, 1])})
    out = case.poisoned()
    with pytest.raises(IndexOutOfRange, match="index 9 is outside dimension 1 of x, which has 9"):
        prepare(case.job, Backend.TRITON)(case.operands(), out, None)
    assert out.isnan().all()


def index_kernel(case: Case) -> launch_kernel.TritonKernel:
    kernel = launch_kernel.triton_kernel(case.job)
    assert isinstance(kernel, launch_kernel.TritonKernel)
    return kernel


def test_indices_are_checked_from_host_copies_of_what_they_are_made_of() -> None:
    case = last_token()
    kernel = index_kernel(case)
    assert kernel.check is not None
    assert kernel.check.reads == (1,)
    kernel.check((None, case.operands()[1]))
    with pytest.raises(IndexOutOfRange, match="index 11 is outside dimension 1 of x"):
        kernel.check((None, (torch.tensor([12, 1, 1], dtype=torch.int32),)))


def test_an_index_that_the_device_computes_cannot_be_checked() -> None:
    case = last_token()
    kernel = index_kernel(case)
    assert kernel.check is not None
    with pytest.raises(Unsupported, match="an index made of lengths, which is computed on the device"):
        kernel.check((case.operands()[0], None))


def test_launches_that_are_bound_once_run_again() -> None:
    case = MAPS["rms_norm"]()
    operands, out = case.operands(), case.poisoned()
    run = index_kernel(case).bind(operands, out)
    run()
    assert_right(case, out)
    out.fill_(float("nan"))
    run()
    assert_right(case, out, " (again)")


def test_warming_compiles_for_what_a_launch_would_pass_and_runs_nothing() -> None:
    """No GPU: a stand-in for the compiled function says what it was asked."""
    asked, loaded = [], []

    class Compiled:
        @property
        def run(self) -> None:
            loaded.append(True)

    class Function:
        def warmup(self, *arguments: object, **options: object) -> Compiled:
            asked.append((arguments, options))
            return Compiled()

    case = MAPS["rotation"]()
    operands, out = case.operands(), case.poisoned()
    kernel = index_kernel(case)
    kernel.warm(operands, out)
    assert out.isnan().all()
    (launch,) = [launch for _, launch in kernel.launches]
    replace(kernel, launches=((Function(), launch),)).warm(operands, out)
    ((arguments, options),) = asked
    assert options == {"grid": (launch.programs,), "num_warps": launch.tiles.warps, "num_stages": launch.tiles.stages}
    assert arguments[-1 - len(launch.starts)] is out
    assert arguments[-len(launch.starts) :] == launch.starts
    assert loaded == [True]


def test_a_tile_of_another_shape_is_our_bug() -> None:
    case = MAPS["rms_norm"]()
    (x,), w = case.operands()
    with pytest.raises(AssertionError, match="tile 0 of x has shape"):
        prepare(case.job, Backend.TRITON)(((x[:, 1:].contiguous(),), w), case.poisoned(), None)


def test_equal_sources_are_one_function_and_the_text_is_kept() -> None:
    from einpage.kernels.launch.build import build

    text = launch_kernel.kernel_sources(MAPS["rms_norm"]().job)[0]
    assert build(text) is build(text)
    assert "tl.rsqrt" in text
    assert "# [b s]" in text


@pytest.mark.parametrize("cache", ["kept", "/dev/null/nowhere"])
def test_nothing_is_left_where_temporary_files_go(cache: str, tmp_path: Path) -> None:
    """Kernels are kept in the cache; where that cannot be written, in a temporary folder for as long as the process lives."""
    program = (
        "import tempfile, pathlib; from einpage.kernels.launch.build import build;"
        "build('import triton\\n\\n@triton.jit\\ndef kernel(x):\\n    pass\\n');"
        "print(*[len([*pathlib.Path(f).rglob('*.py')]) for f in (tempfile.gettempdir(), 'kept')])"
    )
    temporary, root = tmp_path / "temporary", str(Path(__file__).parents[1])
    temporary.mkdir()
    env = {"PYTHONPATH": root, "PATH": "/usr/bin:/bin", "TMPDIR": str(temporary), "EINPAGE_CACHE": cache}
    done = subprocess.run([sys.executable, "-c", program], env=env, check=True, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == (["0", "1"] if cache == "kept" else ["1", "0"])
    assert [*temporary.iterdir()] == []


def test_torch_jobs_never_import_triton() -> None:
    program = (
        "import sys, einpage.kernels.prepare as d; from kernels_cases import project; case = project();"
        "d.prepare(case.job, d.Backend.TORCH)(case.operands(), case.poisoned(), None); sys.exit('triton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ".:tests", "PATH": "/usr/bin:/bin"}, check=False)
    assert done.returncode == 0
