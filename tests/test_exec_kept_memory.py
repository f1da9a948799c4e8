"""Runs that take turns in one pinned arena; a host with too little memory: refused before anything is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.arena import HostArena
from einpage.exec.device.stream_memory import CannotPin, KeptMemory
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run import choose, loaded_model, prepared
from einpage.exec.run.choose import DeviceKind, Dispatch, RunOptions, kept_memory
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.prepared import Prepared, prepare_run
from einpage.exec.system.process_memory import physical_bytes
from einpage.memplan.machine.profile import load_machine
from failing_driver import FailingPins
from fake_driver import FakeDriver
from test_exec_choose import SIZES, SPECS

TOKENS = {"tokens": np.arange(7, dtype=np.int32)[None], "lengths": np.full(1, 7, np.int32)}


def ready(budget: int, kept: KeptMemory | None = None, kind: DeviceKind = DeviceKind.CUDA, seed: int = 0, **options: Any) -> Prepared:
    model = open_model(SPECS / "llama.yaml", SIZES, f"random:{seed}")
    return prepare_run(model, load_machine("cpu", threads=1), RunOptions(PlanRequest(budget), device=kind, **options), TOKENS, kept=kept)


def logits(run: Prepared) -> Tensor:
    run.run(Dispatch.STATIC)
    return run.outputs()["logits"]


@pytest.mark.parametrize("kind", DeviceKind)
def test_prepared_runs_take_turns_in_one_arena(kind: DeviceKind, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the run before left there; of several sizes the largest stays."""
    driver = FakeDriver()
    monkeypatch.setattr(choose, "CudaDriver", lambda: driver)
    kept, at = kept_memory(kind), []
    for budget, seed in ((20_000, 0), (60_000, 1), (20_000, 2)):
        with_own = ready(budget, None, kind, seed)
        expected = logits(with_own)
        with_own.close()
        run = ready(budget, kept, kind, seed)
        assert torch.equal(logits(run), expected)
        assert run.host.nbytes == kept.nbytes >= run.planned.memgraph.host_bytes
        run.host.poison()
        run.close()
        at.append((kept.nbytes, run.host.whole().data_ptr()))
        assert list(driver.pinned.values()) == ([kept.nbytes] if kind is DeviceKind.CUDA else [])
    sizes = [nbytes for nbytes, _ in at]
    assert sizes == sorted(sizes) and at[1] == at[2]
    kept.close()
    assert driver.pinned == {}


class NoMemory(FakeDriver):
    def allocate(self, nbytes: int) -> Tensor:
        raise UsageError("the GPU has too little")


def unread(*_: object) -> None:
    raise OSError("the weights cannot be read")


@pytest.mark.parametrize("fails", ["weights", "pins", "device"])
def test_an_arena_is_given_back_whatever_fails(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = {"weights": FakeDriver(), "pins": FailingPins(pieces=0), "device": NoMemory()}[fails]
    kept = KeptMemory(driver)
    with pytest.MonkeyPatch.context() as patch:
        if fails == "weights":
            patch.setattr(prepared, "fill", unread)
        with pytest.raises((OSError, CannotPin, UsageError)):
            ready(20_000, kept)
    if fails != "device":
        assert driver.pinned == {}
    if fails == "weights":
        run = ready(20_000, kept)
        assert logits(run).isfinite().all(), "it is lent again"
        run.close()
    else:
        with pytest.raises((CannotPin, UsageError), match=r"no more can be pinned|too little"):
            ready(20_000, kept)
    kept.close()
    assert driver.pinned == {}


def untouched(*_: object, **__: object) -> Any:
    raise AssertionError("memory was touched")


@pytest.mark.parametrize("way", ["prepared", "loaded"])
def test_what_would_leave_the_machine_too_little_is_refused_before_anything_is_touched(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (prepared, loaded_model):
        monkeypatch.setattr(module, "HostArena", lambda nbytes: HostArena(0) if nbytes == 0 else untouched())
    monkeypatch.setattr(prepared, "fill", untouched)
    monkeypatch.setattr(choose, "CudaDriver", untouched)
    monkeypatch.setattr(prepared, "physical_bytes", lambda: (4 << 30) + 1000)
    calls: dict[str, Callable[[], object]] = {
        "prepared": lambda: ready(20_000),
        "loaded": lambda: LoadedModel(RunOptions(PlanRequest(20_000), device=DeviceKind.CUDA)).grow_to(5000),
    }
    with pytest.raises(CannotPin, match="never pinned, which leaves 1000B") as caught:
        calls[way]()
    assert caught.value.exit_status == 3
    assert "\n" not in str(caught.value)


def test_a_cpu_pins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared, "physical_bytes", lambda: 1000)
    ready(20_000, kind=DeviceKind.CPU).close()


def test_a_container_has_what_it_is_let_have(tmp_path: Any) -> None:
    for name, text in {
        "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    900 kB\n",
        "proc/self/cgroup": "0::/box\n",
        "sys/fs/cgroup/box/memory.max": "512000\n",
        "sys/fs/cgroup/box/memory.current": "1000\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert physical_bytes(tmp_path) == 512000
    (tmp_path / "sys/fs/cgroup/box/memory.max").write_text("max\n")
    assert physical_bytes(tmp_path) == 1000 * 1024
    assert physical_bytes(tmp_path / "nowhere") is None
