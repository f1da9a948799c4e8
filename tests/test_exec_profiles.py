"""The measured profile: sane figures, cached in the cache folder, found again only for the same number of threads."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import pytest
import torch

from einpage.einsum_front.base.dtype import RUN_DTYPES, DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.libraries import NEVER, ONLY_TORCH, FasterFrom, Libraries
from einpage.einsum_front.base.units import Nbytes
from einpage.einsum_front.graph.taskgraph import OpId, Task, TaskId, TensorId
from einpage.exec.measure import cpu as measure
from einpage.exec.measure import kernels_version, probe_runs, products, profiles
from einpage.exec.measure.copies import CopySamples
from einpage.exec.measure.probe_runs import KernelSample, ProbeRuns, Shared, StreamedRuns
from einpage.kernels.instructions.torch_kernel import Operands
from einpage.kernels.multiply.products import Products
from einpage.memplan.machine.kernel_times import AtDistance
from einpage.memplan.machine.machine import Machine, Measurement
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.work import KernelKind, Work, work_of
from strategies import a_machine, changed


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "cache"))
    before = torch.get_num_threads()
    yield tmp_path / "cache"
    torch.set_num_threads(before)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Measuring replaced by an ordinary machine; the list says for how many threads it was asked."""
    asked: list[int | None] = []

    def fake(seconds: float = 0, threads: int | None = None) -> Machine:
        asked.append(threads)
        return a_machine(name="cpu", threads=threads or measure.default_threads())

    monkeypatch.setattr(measure, "measure_cpu", fake)
    return asked


def test_measuring_gives_a_whole_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """With models of three layers, of which an arena still holds less than half."""
    monkeypatch.setattr(probe_runs, "LAYERS_BELOW", ((64, 3),))
    machine = measure.measure_cpu(seconds=0.1, threads=1, rows=(1, 4))
    rates = (
        machine.device_bytes_per_s,
        machine.link(Queue.H2D).bytes_per_s,
        machine.link(Queue.D2H).bytes_per_s,
        *(machine.flops_of(d) for d in RUN_DTYPES),
    )
    assert all(1e6 < rate < 1e16 for rate in rates), rates
    assert 0 < machine.link(Queue.H2D).latency_s < 1 and 0 < machine.launch_latency_s < 1
    assert 0 < machine.device_bytes < machine.host_bytes
    assert machine.threads == 1
    assert torch.get_num_threads() == 1
    times, measured = machine.kernel_times, machine.measured
    assert times is not None and measured is not None
    assert [at.rows for at in times.products.at_rows] == [at.rows for at in times.few_queries.at_rows] == [1, 4]
    assert 0 <= measured.spread < 1e3 and measured.others >= 0 and measured.cores == measure.cores()
    assert all(machine.usual_link(q).bytes_per_s <= machine.link(q).bytes_per_s for q in (Queue.H2D, Queue.D2H))
    profiles.save(machine, measure.cpu_profile(1))
    assert profiles.cached(measure.cpu_profile(1)) == machine


@pytest.mark.parametrize(("most_s", "turns"), [(float("inf"), 16), (-1.0, 4)])
def test_products_that_last_are_measured_in_fewer_turns(most_s: float, turns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(products, "MOST_S", most_s)
    monkeypatch.setattr(products._TimedProduct, "calls", lambda *_: lambda: asked.append(1) or 1.0)
    assert products._by_library(products.BY_COMPILED, 1, 32, torch.ones(1 << 16)) == 1.0
    assert len(asked) == 2 * turns


@pytest.mark.parametrize(("seconds", "runs"), [(float("inf"), 7), (0.0, 1)])
def test_runs_that_last_are_measured_fewer_times(seconds: float, runs: int) -> None:
    asked: list[int] = []
    assert len(probe_runs._within(seconds, 7, lambda: asked.append(1))) == len(asked) == runs  # type: ignore[arg-type, func-returns-value]


def test_a_profile_is_measured_once(own_cache: Path, quick: list[int | None]) -> None:
    said: list[str] = []
    first = measure.measured_cpu(say=said.append)
    assert len(said) == 2
    assert said[1].endswith(os.listdir(own_cache)[0])
    assert measure.measured_cpu(say=said.append) == first
    assert len(said) == 2
    assert quick == [None]
    measure.measured_cpu(again=True)
    assert quick == [None, None]


def test_the_best_of_several_samples_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that slows down all samples but one changes nothing."""
    at = iter([0, 1, 2, 3])

    def rates(links: object, seconds: float, products: Products) -> tuple[float, ...]:
        one = next(at)
        return tuple(1e12 * (5 if sample == one % 6 else 1) * (1 + sample) for sample in range(6))

    without_runs(monkeypatch)
    monkeypatch.setattr(measure, "_rates", rates)
    machine = measure.measure_cpu(seconds=0.01, threads=1, rows=(1, 4))
    assert [machine.flops_of(d) for d in RUN_DTYPES] == [5e12, 10e12, 15e12]
    assert (machine.device_bytes_per_s, machine.link(Queue.H2D).bytes_per_s, machine.link(Queue.D2H).bytes_per_s) == (20e12, 6e12, 6e12)


def a_run(rows: int, seconds: float) -> ProbeRuns:
    """One product, one attention and one map, of so many seconds each at best, of which a tenth is handover."""
    works = (Work(KernelKind.PRODUCT, rows, 10**6), Work(KernelKind.ATTENTION, rows, 10**6, 1), Work(KernelKind.MAP, 0, 0, 0, 3, 100, 10))
    return ProbeRuns(rows, tuple(KernelSample(w, 10**5, seconds, 0.9 * seconds, 0.3) for w in works), ((10, 1e-3),), 1e-5, 1e-3)


def streamed(run: ProbeRuns) -> StreamedRuns:
    """Each kernel of `run` took 1.5 times as long, all of it beside copies."""
    return StreamedRuns(run.rows, {s.work: Shared(s.seconds, 1.5 * s.seconds, 0.0) for s in run.kernels}, Shared(1.0, 1.0, 0.0))


FAR = (AtDistance(1 << 24, 1.0), AtDistance(1 << 26, 1.5))


def without_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs of models and copies would take, not measured."""
    monkeypatch.setattr(measure, "resident_runs", lambda machine, rows: [a_run(r, 1e-5) for r in rows])
    monkeypatch.setattr(measure, "streamed_runs", lambda machine, rows: [streamed(a_run(r, 1e-5)) for r in rows])
    monkeypatch.setattr(measure, "measured_copies", lambda seconds: CopySamples(2e9, 3e9, 1e-6, 1.5, FAR))


def test_rates_are_the_best_that_anything_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that ran faster in a run than in its probe, and a copy: bounds are made of these."""
    without_runs(monkeypatch)
    monkeypatch.setattr(measure, "_rates", lambda links, seconds, products: (1e9, 1e9, 1e9, 1e9, 1e9, 1e9))
    monkeypatch.setattr(measure.OtherProcesses, "cores", lambda self: 0.75)
    machine = measure.measure_cpu(seconds=0.01, threads=1, rows=(1, 4))
    assert machine.flops_of(DType.FP32) == pytest.approx(10**6 / 9e-6, rel=1e-2)
    assert machine.device_bytes_per_s == pytest.approx(10**5 / 9e-6, rel=1e-2)
    assert machine.link(Queue.H2D).bytes_per_s == 3e9 and machine.usual_link(Queue.H2D).bytes_per_s == 2e9
    times = machine.kernel_times
    assert times is not None and times.copies.together == 1.5 and times.copies.at_distances == FAR
    assert times.maps.beside_copies == pytest.approx(1.5, rel=0.05) and times.start_s == 1e-3
    assert machine.measured == Measurement(0.3, 0.75, measure.cores())
    assert "busy" in (machine.measured.busy() or "")
    assert "busy" in (Measurement(0.02, 0.2, 2).busy() or "") and "busy" in (Measurement(0.2, 0.0, 2).busy() or "")
    assert Measurement(0.02, 0.05, 2).busy() is None


@pytest.mark.parametrize(("disturbed", "runs"), [(0, 3), (3, 4), (5, 6), (100, 11)])
def test_what_was_disturbed_is_run_again(disturbed: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two probes one is disturbed for so many rounds; the other is not asked again."""
    monkeypatch.setattr(probe_runs, "PAUSE_S", 0.0)
    counts = [0, 0]

    class Probe:
        def __init__(self, number: int) -> None:
            self.number = number

        def run(self) -> None:
            counts[self.number] += 1

    probe_runs._in_rounds([Probe(0), Probe(1)], lambda probe: probe.number == 1 or counts[0] > disturbed)  # type: ignore[arg-type, list-item, attr-defined]
    assert counts == [runs, probe_runs.ROUNDS]


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="a system that counts no processor time")
def test_what_other_processes_use_is_counted() -> None:
    """All of what one computes, and nothing of what this one does: there is no more of both than cores."""
    others, began, own, children = measure.OtherProcesses(), perf_counter(), process_time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", "sum(range(3 * 10**7))"], check=True)
    while process_time() - own < 0.3:
        sum(range(10**4))
    used_s = others.cores() * (perf_counter() - began)
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    child_s = now.ru_utime + now.ru_stime - children.ru_utime - children.ru_stime
    assert child_s > 0.2
    assert child_s - 0.1 < used_s < (os.cpu_count() or 1) * (perf_counter() - began) - 0.2


def test_where_no_time_is_counted_it_is_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure.OtherProcesses, "_counted", staticmethod(lambda: None))
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 1.0, 1.0))
    assert measure.OtherProcesses().cores() == 3.0


def test_other_kernels_are_another_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = measure.cpu_profile(1)
    assert measure.cpu_profile(1) == before
    monkeypatch.setenv("MKL_ENABLE_INSTRUCTIONS", "SSE4_2")
    other_blas = measure.cpu_profile(1)
    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS")
    monkeypatch.setattr(kernels_version, "FILES", kernels_version.FILES[1:])
    assert len({before, other_blas, measure.cpu_profile(1)}) == 3


def test_a_profile_of_before_is_measured_again(own_cache: Path, quick: list[int | None]) -> None:
    measure.measured_cpu(threads=2)
    path = measure.cpu_profile(2)
    path.write_text(path.read_text() + "usual_slowdown: 1.6\n")
    said: list[str] = []
    assert measure.measured_cpu(threads=2, say=said.append) == a_machine(name="cpu", threads=2)
    assert "usual_slowdown is no longer used" in said[0] and "measured again" in said[0] and str(path) in said[0]
    assert quick == [2, 2] and "usual_slowdown" not in path.read_text()


def test_only_the_kept_profile_is_forgotten(own_cache: Path, quick: list[int | None]) -> None:
    kept = measure.measured_cpu(threads=2)
    assert not profiles.forget(changed(kept, h2d_bytes_per_s=1.0)) and profiles.cached(measure.cpu_profile(2)) == kept
    assert not profiles.forget(replace(kept, threads=None))
    assert profiles.forget(kept) and profiles.cached(measure.cpu_profile(2)) is None
    assert not profiles.forget(kept)


def test_other_threads_are_another_profile(quick: list[int | None]) -> None:
    measure.measured_cpu(threads=3)
    assert profiles.cached(measure.cpu_profile(3)) is not None
    assert profiles.cached(measure.cpu_profile(4)) is None
    assert measure.measured_cpu(threads=4).threads == 4


def test_a_broken_profile_is_measured_again(own_cache: Path, quick: list[int | None]) -> None:
    measure.measured_cpu(threads=2)
    for damaged in ("name: [", "links: &a [*a]", "\x00", "", "threads: 999999999\n"):
        (own_cache / os.listdir(own_cache)[0]).write_text(damaged)
        assert profiles.cached(measure.cpu_profile(2)) is None
        said: list[str] = []
        assert measure.measured_cpu(threads=2, say=said.append) == a_machine(name="cpu", threads=2)
        assert profiles.cached(measure.cpu_profile(2)) == a_machine(name="cpu", threads=2)
        assert said[0].startswith("the profile kept is damaged, so this machine is measured again (about 25 s): ") and "\n" not in said[0]
        assert str(own_cache) in said[0] and len(said) == 2


def test_a_cache_that_cannot_be_written_is_told_and_not_fatal(
    quick: list[int | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path / "file" / "cache"))
    said: list[str] = []
    assert measure.measured_cpu(threads=2, say=said.append) == replace(a_machine(name="cpu"), threads=2)
    assert "not kept" in said[1]
    assert "EINPAGE_CACHE" in said[1]
    with pytest.raises(UsageError, match="EINPAGE_CACHE"):
        measure.measured_cpu(threads=2)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert profiles.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("EINPAGE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert profiles.cache_folder() == tmp_path / "xdg" / "einpage"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert profiles.cache_folder() == tmp_path / ".cache" / "einpage"


@pytest.mark.parametrize(
    ("shares", "least"),
    [
        ((1.2, 1.1, 1.0, 0.98), None),
        ((1.2, 1.1, 1.0, 0.5), 2048),
        ((1.2, 0.5, 0.5, 0.5), 512),
        ((0.5, 0.5, 0.5, 0.5), 128),
        ((0.5, 0.5, 1.0, 1.0), 128),
        ((0.9, 1.5, 1.0, 1.0), None),
        ((1.5, 0.8, 1.0, 0.9), 512),
        ((1.2, 1.5, 0.5, 1.1), 1024),
    ],
)
def test_a_library_is_chosen_from_where_it_saves_most_over_all_sizes(
    shares: tuple[float, ...], least: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_by_columns = dict(zip(products.COLUMNS, shares, strict=True))

    def share(libraries: Libraries, rows: int, columns: int, memory: torch.Tensor, *, by_columns: bool = False) -> float:
        return share_by_columns[columns] if (libraries, rows) == (products.BY_ONEDNN, 5) else 0.99

    monkeypatch.setattr(products, "_by_library", share)
    assert products.measured_libraries() == Libraries(FasterFrom(few_rows=None if least is None else products.INNER * least))


LEAST = products.INNER * products.COLUMNS[0]
EVERY = FasterFrom(*(LEAST,) * 5)


@pytest.mark.parametrize(
    ("by_onednn", "by_compiled", "onednn", "compiled"),
    [
        ((0.9,) * 5, (0.8,) * 5, EVERY, EVERY),
        ((0.8,) * 5, (0.9,) * 5, EVERY, NEVER),
        ((0.9, 0.7, 0.9, 0.7, 0.9), (0.8, 0.8, 0.6, 0.8, 0.6), EVERY, FasterFrom(one_row=LEAST, more_rows=LEAST, most_rows=LEAST)),
        ((1.2,) * 5, (0.99, 0.9, 0.99, 0.9, 0.99), NEVER, FasterFrom(few_rows=LEAST, many_rows=LEAST)),
        ((1.2,) * 5, (0.99,) * 5, NEVER, NEVER),
    ],
)
def test_each_shape_class_is_multiplied_by_what_saves_most(
    by_onednn: tuple[float, ...], by_compiled: tuple[float, ...], onednn: FasterFrom, compiled: FasterFrom, monkeypatch: pytest.MonkeyPatch
) -> None:
    def share(libraries: Libraries, rows: int, columns: int, memory: torch.Tensor, *, by_columns: bool = False) -> float:
        at = [*products.ROWS.values()].index(rows)
        if by_columns:
            assert libraries == products.BY_COMPILED
            return 0.9 if rows == 5 else 1.0
        return (by_compiled if libraries == products.BY_COMPILED else by_onednn)[at]

    monkeypatch.setattr(products, "_by_library", share)
    assert products.measured_libraries() == Libraries(onednn, compiled, FasterFrom(few_rows=LEAST))


def test_how_much_longer_what_the_faster_library_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[Libraries, int]] = []

    def share(libraries: Libraries, rows: int, columns: int, memory: torch.Tensor) -> float:
        compared.append((libraries, rows))
        return 0.5

    monkeypatch.setattr(products, "_by_library", share)
    whole = products.INNER * products.COLUMNS[-1]
    for libraries, rows in (
        (ONLY_TORCH, 1),
        (Libraries(FasterFrom(whole + 1)), 1),
        (Libraries(FasterFrom(few_rows=0)), 1),
        (Libraries(FasterFrom(0), FasterFrom(0)), 1),
    ):
        assert products.strided_factor(libraries, rows) == 1.0 and not compared
    assert products.strided_factor(Libraries(FasterFrom(few_rows=whole), FasterFrom(0)), 2) == 2.0
    assert compared == [(products.BY_ONEDNN, 2)]


@pytest.mark.parametrize(("rows", "by_columns"), [(1, False), (1, True), (2, True), (2, False), (17, True), (17, False)])
def test_products_with_a_matrix_that_lies_column_by_column(rows: int, by_columns: bool) -> None:
    job = products.product_job(rows, 8, 40, DType.FP32, by_columns=by_columns)
    work = work_of(Task(TaskId(0), "y", OpId(0), (), TensorId(0), (), 0, Nbytes(0), Nbytes(0), job, gathers=False))
    assert work is not None and work.by_columns is by_columns and not work.strided


def test_no_library_multiplies_what_the_other_has_just_read(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, columns, weights = 3, 8, 5
    multiplied: list[int] = []

    class Listed:
        scratch = ()

        def bind(self, operands: Operands, result: torch.Tensor, scratch: torch.Tensor) -> Callable[[], None]:
            return lambda: multiplied.append(operands[1][0].data_ptr())

    monkeypatch.setattr(products, "TorchKernel", Listed)
    monkeypatch.setattr(products, "prepare", lambda *_, **__: Listed())
    monkeypatch.setattr(products, "CALLS_S", 0.0)
    products._by_library(products.BY_ONEDNN, rows, columns, torch.ones(weights * products.INNER * columns))
    assert len(multiplied) == 2 * (1 + products.TURNS) and len(set(multiplied)) == weights
    assert all(len(set(multiplied[i : i + weights])) == weights for i in range(len(multiplied) - weights))


def test_without_onednn_there_are_only_our_own_kernels_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "linear", lambda: None)
    monkeypatch.setattr(products, "_by_library", lambda libraries, rows, columns, memory, by_columns=False: 0.5)
    assert products.measured_libraries() == Libraries(compiled=EVERY, by_columns=FasterFrom(LEAST, LEAST, LEAST))


def test_without_a_compiler_they_are_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "compiles", lambda: False)
    monkeypatch.setattr(products, "_by_library", lambda libraries, rows, columns, memory, by_columns=False: 0.5)
    assert products.measured_libraries() == Libraries(EVERY)


def test_both_libraries_are_measured() -> None:
    assert 1e-3 < products._by_library(products.BY_ONEDNN, 5, 128, torch.ones(1 << 18)) < 1e3
    assert 1e-3 < products._by_library(products.BY_COMPILED, 1, 128, torch.ones(1 << 18)) < 1e3
