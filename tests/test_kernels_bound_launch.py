"""Kernels with kept arguments: what reaches the driver is what Triton's own dispatch passes to it, and nothing is made for a launch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from einpage.kernels.launch import kernel as kernel_module
from einpage.kernels.launch.bound_launch import bound_launch
from einpage.kernels.launch.kernel import TritonKernel, triton_kernel
from einpage.kernels.tiles.target import Target
from kernels_maps import MAPS
from stub_driver import TESTS, WHY_NOT, compiled_stub, environment


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_what_reaches_the_driver_is_what_tritons_own_dispatch_passes(tmp_path: Path) -> None:
    """Compiled for sm_90; grid, block, shared memory, stream and every byte of the parameters, tensor maps included."""
    library = compiled_stub(tmp_path)
    command = [sys.executable, str(TESTS / "launches_on_stub.py"), str(library)]
    done = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["name"] for row in found] == ["rms_norm", "rotation", "project_fp16", "gated_bf16", "batched_bf16", "square"]
    for row in found:
        assert row["slow"] == [], "bound to the launcher in C"
        assert row["same"], row["name"]
        assert row["maps"] == [row["descriptors"], 0], "a descriptor is made when it is bound, and not again"
    assert found[-1]["descriptors"] == 2


class Compiled:
    """What Triton compiled, with a launcher that has `form`; its own dispatch notes what it is given."""

    function, packed_metadata, metadata = 7, (4, 1, 0), SimpleNamespace()

    def __init__(self, form: object, kinds: tuple[str, ...] = ("*fp32", "i32")) -> None:
        self.run, self.src, self.dispatched = form, SimpleNamespace(signature=dict(enumerate(kinds))), []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        return lambda *arguments, stream: self.dispatched.append((grid, arguments, stream))


class Launcher:
    """Of the form that is known: its Python adds what it always adds, and calls `launch`."""

    global_scratch_size, profile_scratch_size = 0, 0

    def __init__(self, passed: list[Any]) -> None:
        self.launch = lambda *final: passed.append(final)

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: object) -> None:
        self.launch(x, y, z, stream, function, "options", *rest)


def test_pythons_part_of_a_launch_is_done_once() -> None:
    passed: list[Any] = []
    pointer = torch.zeros(4)
    bound = bound_launch(compiled := Compiled(Launcher(passed)), 12, 99, (pointer, 5))
    assert passed == [] and bound.why_slow is None
    bound.call()
    bound()
    assert passed == [(12, 1, 1, 99, 7, "options", (4, 1, 0), None, None, None, pointer.data_ptr(), 5)] * 2
    assert compiled.dispatched == []


def needs_scratch() -> Launcher:
    found = Launcher([])
    found.global_scratch_size = 128
    return found


@pytest.mark.parametrize(
    ("form", "kinds", "why"),
    [
        (SimpleNamespace(), ("*fp32", "i32"), "another form .AttributeError"),
        (needs_scratch(), ("*fp32", "i32"), "scratch memory"),
        (Launcher([]), ("tensordesc<fp16[64,64]>", "i32"), "another form .KeyError"),
    ],
)
def test_a_launcher_of_another_form_is_called_through_python_and_that_is_said(form: object, kinds: tuple[str, ...], why: str) -> None:
    pointer = torch.zeros(4)
    bound = bound_launch(compiled := Compiled(form, kinds), 12, 99, (pointer, 5))
    assert bound.why_slow is not None and re.search(why, bound.why_slow)
    bound.call()
    assert compiled.dispatched == [((12, 1, 1), (pointer.data_ptr(), 5), 99)]


def test_a_profiler_sees_every_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    passed: list[Any] = []
    monkeypatch.setattr(knobs.runtime.launch_enter_hook, "calls", [print])
    bound = bound_launch(compiled := Compiled(Launcher(passed)), 3, 99, ())
    bound.call()
    assert bound.why_slow == "a profiler has hooks in every launch"
    assert passed == [] and compiled.dispatched == [((3, 1, 1), (), 99)]


def test_a_kernel_is_asked_for_once_for_all_tensors_that_are_aligned_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Triton compiles depends on which pointers start at multiples of 16 bytes."""
    asked: list[tuple[object, ...]] = []

    class Function:
        def warmup(self, *arguments: object, **options: object) -> str:
            asked.append(arguments)
            return f"compiled {len(asked)}"

    monkeypatch.setattr(kernel_module, "bound_launch", lambda compiled, programs, stream, arguments: (compiled, programs, stream))
    case = MAPS["rms_norm"]()
    kernel = triton_kernel(case.job, Target())
    assert isinstance(kernel, TritonKernel)
    (launch,) = [launch for _, launch in kernel.launches]
    kernel = replace(kernel, launches=((Function(), launch),))
    operands, out = case.operands(), case.poisoned()
    for tiles, result in ((operands, out), (case.operands(), case.poisoned())):
        assert kernel.bind(tiles, result, 5) == ("compiled 1", launch.programs, 5)
    shifted = torch.empty(out.numel() + 1, dtype=out.dtype)[1:].view(out.shape)
    assert kernel.bind(operands, shifted, 5) == ("compiled 2", launch.programs, 5)
    assert kernel.bind(operands, out, 5) == ("compiled 1", launch.programs, 5)
    assert len(asked) == 2
