"""Which device, which kernels, which dispatcher: what the options of the command line mean, with and without a GPU (a fake one)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.command.run import rendered
from einpage.exec.device.cpu import CpuDevice
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.dynamic import DynamicDispatcher
from einpage.exec.dispatch.serial import SerialDispatcher, StreamSerialDispatcher
from einpage.exec.dispatch.static import StaticDispatcher
from einpage.exec.dispatch.stream_dynamic import StreamDynamicDispatcher
from einpage.exec.dispatch.stream_static import StreamStaticDispatcher
from einpage.exec.errors import NodeError
from einpage.exec.load.kept_tiles import kept_tiles, save_tiles, tiles_path
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run import choose
from einpage.exec.run.choose import (
    ChosenDevice,
    DeviceKind,
    Dispatch,
    RunOptions,
    choices_for,
    device_for,
    dispatcher_type,
    kernels_for,
    make_device,
    make_memory,
)
from einpage.exec.run.prepared import RunResult, run_model
from einpage.kernels.prepare import triton_version
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.measured_tiles import MeasuredTile, MeasuredTiles
from einpage.kernels.tiles.product_tiles import ProductShape
from einpage.kernels.tiles.target import AS_IT_IS, Choices
from einpage.kernels.tiles.tiles import Tiles
from einpage.memplan.machine.places import HOST
from einpage.memplan.machine.profile import load_machine
from fake_driver import FakeDriver
from hand_plan import hand_plan

SPECS = Path(__file__).parents[1] / "specs"
SIZES = {"model": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 64, "vocab": 96, "seq": 7}


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_not_cuda", lambda: "torch finds no CUDA device")


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "why_not_cuda", lambda: None)
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    monkeypatch.delenv("TRITON_INTERPRET")


@pytest.mark.usefixtures("no_gpu")
def test_without_a_gpu() -> None:
    assert device_for("auto") == ChosenDevice(DeviceKind.CPU, "cpu: torch finds no CUDA device")
    assert device_for("cpu") == ChosenDevice(DeviceKind.CPU, "cpu, as asked")
    with pytest.raises(UsageError, match="--device cuda: torch finds no CUDA device; leave --device out"):
        device_for("cuda")


@pytest.mark.usefixtures("a_gpu")
def test_with_a_gpu() -> None:
    assert device_for("auto").kind is device_for("cuda").kind is DeviceKind.CUDA
    assert device_for("cpu").kind is DeviceKind.CPU
    assert kernels_for("auto", DeviceKind.CUDA) == kernels_for("triton", DeviceKind.CUDA) == "triton"
    with pytest.raises(UsageError, match="device memory outside the arena"):
        kernels_for("torch", DeviceKind.CUDA)
    with pytest.raises(UsageError, match="compiled Triton kernels need a GPU"):
        kernels_for("triton", DeviceKind.CPU)


def test_interpreted_kernels_are_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert kernels_for("triton", DeviceKind.CPU) == "triton"
    assert kernels_for("auto", DeviceKind.CPU) == "torch"
    with pytest.raises(UsageError, match="unset it"):
        kernels_for("auto", DeviceKind.CUDA)


def test_how_a_gpu_multiplies_fp32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path))
    assert choices_for(None, DeviceKind.CUDA, DType.FP32) == (Choices(Fp32Products.TF32X3), None)
    assert choices_for("ieee", DeviceKind.CUDA, DType.FP32) == (Choices(Fp32Products.IEEE), None)
    assert choices_for(None, DeviceKind.CPU, DType.BF16) == (AS_IT_IS, None)
    with pytest.raises(UsageError, match="--fp32-products ieee: a choice of the GPU's kernels; the CPU multiplies fp32 exactly"):
        choices_for("ieee", DeviceKind.CPU, DType.FP32)
    with pytest.raises(UsageError, match="--fp32-products tf32x3 with --dtype bf16: no factors are of fp32"):
        choices_for("tf32x3", DeviceKind.CUDA, DType.BF16)


TALL = ProductShape(DType.FP32, 1, 7, 96, 32, 1)
OTHER = Tiles(16, 32, 64, 4, 3)
"""The table has it, and another first."""


def measured_here() -> MeasuredTiles:
    return MeasuredTiles("fake", triton_version(), (MeasuredTile(TALL, Fp32Products.TF32X3, OTHER, 1e-6, 1e-6),))


@pytest.fixture
def fake_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.interpreter
def test_tiles_measured_on_the_gpu_are_used_and_reported(fake_cache: Path) -> None:
    path = save_tiles(measured_here())
    assert path.is_relative_to(fake_cache)
    choices, refused = choices_for(None, DeviceKind.CUDA, DType.FP32)
    assert refused is None
    assert choices.measured == measured_here()
    facts: dict[str, Any] = interpreted(choices, refused).facts
    assert facts["tiles"] == "measured on this GPU, of 1 shape(s)"
    assert (facts["fp32_products"], facts["warnings"]) == ("tf32x3", [])
    assert list(facts["ways"]) == ["product by pointers, tf32x3", "attention by pointers, tf32x3"]
    assert facts["ways"]["attention by pointers, tf32x3"] == SIZES["layers"]


@pytest.mark.interpreter
def test_what_was_asked_of_fp32_reaches_the_kernels_and_the_report(fake_cache: Path) -> None:
    choices, refused = choices_for("ieee", DeviceKind.CUDA, DType.FP32)
    result = interpreted(choices, refused)
    assert result.facts["fp32_products"] == "ieee"
    products = 1 + 6 * SIZES["layers"]
    wanted = {"product by pointers, ieee": products, "attention by pointers, ieee": SIZES["layers"]}
    assert result.facts["ways"] == wanted, "a layer's q, k, v, o, gate and up, down; the logits"
    (line,) = [text for text in rendered(result, None).splitlines() if text.startswith("kernels")]
    assert line == f"kernels     {products} × product by pointers, ieee; 2 × attention by pointers, ieee; tiles: the kernels' own"


@pytest.mark.interpreter
@pytest.mark.parametrize("damage", ["truncated", "another GPU's", "a folder"])
def test_tiles_that_cannot_be_used_are_said_in_one_line_and_the_run_goes_on(fake_cache: Path, damage: str) -> None:
    path = save_tiles(measured_here())
    if damage == "truncated":
        path.write_text(path.read_text()[:-9])
    elif damage == "another GPU's":
        path.write_text(replace(measured_here(), device="real").text())
    else:
        path.unlink()
        path.mkdir()
    choices, refused = choices_for(None, DeviceKind.CUDA, DType.FP32)
    assert choices == AS_IT_IS
    assert refused is not None and "\n" not in refused
    assert f"not used, the kernels' own are ({path}: " in refused and "bench/gpu.sh --parts tiles" in refused
    facts = interpreted(choices, refused).facts
    assert facts["warnings"] == [refused]
    assert facts["tiles"] == "the kernels' own"


def interpreted(choices: Choices, refused: str | None) -> RunResult:
    """A run on the fake GPU."""
    model = open_model(SPECS / "llama.yaml", SIZES, "random:0")
    tokens = {"tokens": np.arange(7, dtype=np.int32)[None], "lengths": np.full(1, 7, np.int32)}
    options = RunOptions(PlanRequest(1 << 20), device=DeviceKind.CUDA, kernels="triton", choices=choices, tiles_refused=refused)
    return run_model(model, load_machine("h100"), options, tokens)


def test_each_gpu_has_a_file_of_tiles_of_its_own(fake_cache: Path) -> None:
    names = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3e", "nvidia h100 80gb hbm3", "../../x", "")
    assert len({tiles_path(name) for name in names}) == len(names)
    assert {tiles_path(name).parent for name in names} == {fake_cache / "tiles"}
    assert kept_tiles("NVIDIA H100") == (None, None), "nothing was measured, and nothing is wrong"


def test_every_dispatch_has_a_dispatcher_on_each_device() -> None:
    on_cpu, on_cuda = ([dispatcher_type(kind, d) for d in Dispatch] for kind in (DeviceKind.CPU, DeviceKind.CUDA))
    assert on_cpu == [SerialDispatcher, DynamicDispatcher, StaticDispatcher]
    assert on_cuda == [StreamSerialDispatcher, StreamDynamicDispatcher, StreamStaticDispatcher]


def test_the_device_is_of_the_kind() -> None:
    plan, machine = hand_plan(), load_machine("cpu")
    plan = replace(plan.with_arena(HOST, 0), nodes=())
    from einpage.exec.device.arena import HostArena

    assert isinstance(make_device(plan, make_memory(DeviceKind.CPU, HostArena(0), plan.budget_bytes), machine, "torch"), CpuDevice)
    on_streams = make_memory(DeviceKind.CUDA, HostArena(0), plan.budget_bytes, FakeDriver())
    assert isinstance(make_device(plan, on_streams, machine, "torch"), StreamDevice)


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("passes", [None, 3])
def test_a_whole_model_runs_on_streams_as_on_the_cpu(passes: int | None) -> None:
    """All of `run`, with a driver that takes any order: the same logits bit for bit, the bytes of the plan, under every dispatcher."""
    model = open_model(SPECS / "llama.yaml", SIZES, "random:0")
    tokens = {"tokens": np.arange(7, dtype=np.int32)[None], "lengths": np.full(1, 7, np.int32)}
    threads = torch.get_num_threads()
    machine = load_machine("cpu", threads=1)
    try:
        on_cpu = run_model(model, machine, RunOptions(PlanRequest(20_000, passes=passes)), tokens)
        for dispatch in Dispatch:
            options = RunOptions(PlanRequest(20_000, passes=passes), dispatch=dispatch, device=DeviceKind.CUDA)
            result = run_model(model, machine, options, tokens)
            assert torch.equal(result.outputs["logits"], on_cpu.outputs["logits"])
            assert result.facts["device"] == "cuda"
            assert result.facts["arena_bytes"] == 20_000
            assert result.facts["outside_arena_bytes"] == 1000
            assert result.facts["measured_h2d_bytes"] == result.facts["h2d_bytes"]
    finally:
        torch.set_num_threads(threads)


def without_ranges(model: Model) -> Model:
    """`model` whose inputs are checked by nothing but the run itself."""
    return replace(model, program=replace(model.program, inputs=tuple(replace(i, range=None) for i in model.program.inputs)))


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize("dispatch", Dispatch)
def test_a_run_that_fails_leaves_nothing_pinned(dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    monkeypatch.setattr(choose, "CudaDriver", lambda: driver)
    model = without_ranges(open_model(SPECS / "llama.yaml", SIZES, "random:0"))
    tokens = {"tokens": np.full((1, 7), SIZES["vocab"], np.int32), "lengths": np.full(1, 7, np.int32)}
    options = RunOptions(PlanRequest(20_000), dispatch=dispatch, device=DeviceKind.CUDA)
    with pytest.raises(NodeError, match="IndexOutOfRange"):
        run_model(model, load_machine("h100"), options, tokens)
    assert driver.pinned == {}


@pytest.mark.interpreter
def test_the_kernels_of_a_gpu_run_on_streams_and_indices_are_checked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's kernels, interpreted, bound beforehand, in whatever order the fake driver takes; a length that is too long is refused."""
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    model = without_ranges(open_model(SPECS / "llama.yaml", SIZES, "random:0"))
    tokens = {"tokens": np.arange(7, dtype=np.int32)[None], "lengths": np.full(1, 7, np.int32)}
    machine = load_machine("h100")
    on_cpu = run_model(model, replace(machine, threads=1), RunOptions(PlanRequest(20_000)), tokens)
    options = RunOptions(PlanRequest(20_000), device=DeviceKind.CUDA, kernels="triton", dispatch=Dispatch.STATIC)
    result = run_model(model, machine, options, tokens)
    wanted = on_cpu.outputs["logits"]
    assert (result.outputs["logits"] - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    with pytest.raises(NodeError, match=r"compute final.* on the compute engine: IndexOutOfRange: index 8") as caught:
        run_model(model, machine, options, {**tokens, "lengths": np.full(1, 9, np.int32)})
    assert caught.value.exit_status == 2


@pytest.mark.interpreter
@pytest.mark.parametrize("device", [DeviceKind.CPU, DeviceKind.CUDA])
def test_an_index_divided_by_zero_is_an_error_of_the_input(device: DeviceKind, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On streams it is found before anything runs: no kernel can say it."""
    monkeypatch.setattr(choose, "CudaDriver", FakeDriver)
    spec = tmp_path / "divided.yaml"
    spec.write_text(
        "einpage: 1\nname: divided\nsizes: {n: 6}\naxes: {i: n}\ninputs: {x: {axes: i}, p: {axes: i, dtype: int32}}\n"
        "body:\n  - y[i] = x[i % p[i]]\noutputs: {y: {axes: i}}\n"
    )
    kernels = "torch" if device is DeviceKind.CPU else "triton"
    options = RunOptions(PlanRequest(20_000), device=device, kernels=kernels, dispatch=Dispatch.STATIC)
    model, x = open_model(spec, {}, "random:0"), np.arange(6, dtype=np.float32)
    result = run_model(model, load_machine("h100"), options, {"x": x, "p": np.array([1, 2, 3, 4, 5, 2], np.int32)})
    assert result.outputs["y"].tolist() == [0, 1, 2, 3, 4, 1]
    with pytest.raises(NodeError, match=r"DivisorIsZero: `p\[i\]` is 0 at i = 4, and an index of line 7 of the spec") as caught:
        run_model(model, load_machine("h100"), options, {"x": x, "p": np.array([1, 2, 3, 4, 0, 2], np.int32)})
    assert caught.value.exit_status == 2
