"""Host memory that copy engines reach: pieces, copies cut with them, huge pages, what is refused, and what is given back when it fails."""

from __future__ import annotations

import ctypes
import gc
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench import host_memory
from bench.gpu.mapped import huge_bytes
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import Nbytes
from einpage.exec.device import arena as arena_module
from einpage.exec.device import stream_memory, streams
from einpage.exec.device.arena import HUGE_PAGE, HostArena, MappedArena, outputs
from einpage.exec.device.cuda import DirectCopies
from einpage.exec.device.driver import Stream
from einpage.exec.device.stream_judge import unenforced
from einpage.exec.device.stream_memory import CannotPin, KeptMemory, StreamMemory, backed, copy_cuts, refuse_pinning
from einpage.memplan.graph.memgraph import Extent, Offset
from einpage.memplan.graph.simulate import moved_bytes_by_queue
from failing_driver import FailingPins
from fake_driver import FakeDriver, WatchedDevice
from real_bytes import differences, direct, filled_host
from single_runs import run_stream_dynamic, run_stream_static
from stub_driver import WHY_NOT, compiled_stub
from test_exec_cpu import made

GIB = 1 << 30


@given(offset=st.integers(0, 5000), nbytes=st.integers(0, 3000), most=st.integers(1, 700), piece=st.integers(1, 900))
def test_copies_cover_what_moves_and_none_crosses_a_piece(offset: int, nbytes: int, most: int, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_memory, "PIECE_BYTES", piece)
        cuts = list(copy_cuts(offset, nbytes, most))
    assert [a for a, _ in cuts] == [0, *(b for _, b in cuts)][:-1] if cuts else nbytes == 0
    assert nbytes == (cuts[-1][1] if cuts else 0)
    for start, end in cuts:
        assert 0 < end - start <= most
        assert (offset + start) // piece == (offset + end - 1) // piece
    for (a, b), (_, c) in pairwise(cuts):
        assert c - a > most or (offset + b) % piece == 0, "two copies that could be one"


class Pieces(FakeDriver):
    """Every copy between host and device is looked at: the host's bytes have to lie in one registration."""

    def copy(self, stream: Stream, target: torch.Tensor, source: torch.Tensor) -> None:
        at, size = (source, source.nbytes) if int(stream) == 1 else (target, target.nbytes)
        inside = [start <= at.data_ptr() and at.data_ptr() + size <= start + nbytes for start, nbytes in self.pinned.items()]
        assert sum(inside) == (int(stream) != 0), "a copy that no registration holds"
        FakeDriver.copy(self, stream, target, source)


@pytest.mark.parametrize("dispatch", [run_stream_static, run_stream_dynamic])
def test_no_copy_of_a_run_crosses_two_registrations(dispatch: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_memory, "PIECE_BYTES", 512)
    monkeypatch.setattr(streams, "COPY_BYTES", 200)
    for seed in range(12):
        graph, plan, values = made(seed)
        host, driver = filled_host(plan, values), Pieces(seed=seed)
        device = WatchedDevice(plan, host, driver)
        assert sum(driver.pinned.values()) == plan.host_bytes
        assert max(driver.pinned.values()) <= 512
        device.preload()
        device.actions.clear()
        dispatch(plan, device)  # type: ignore[operator]
        assert differences(outputs(plan, host), direct(graph, values)) == []
        assert unenforced(plan, device.actions) == []
        assert device.moved_bytes == moved_bytes_by_queue(plan)
        device.close()
        assert driver.pinned == {}


@pytest.mark.parametrize("pieces", range(4))
@pytest.mark.parametrize("error", [UsageError, RuntimeError])
def test_a_registration_that_fails_gives_back_those_before_it(pieces: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_memory, "PIECE_BYTES", 4096)
    driver = FailingPins(pieces=pieces, error=error)
    expected = CannotPin if error is UsageError else RuntimeError
    with pytest.raises(expected, match="no more can be pinned") as caught:
        StreamMemory(HostArena(4 * 4096), driver, 64)
    assert driver.pinned == {}
    if isinstance(caught.value, CannotPin):
        assert caught.value.exit_status == 3
        assert str(caught.value).startswith(f"{4 * pieces}KiB of the 16KiB" if pieces else "0B of the 16KiB")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wanted", "physical", "refused"),
    [(122, 128, False), (124, 128, False), (125, 128, True), (1, 4, True), (0, 3, False), (1, 3, True), (500, None, False)],
)
def test_four_gib_of_the_machine_are_never_pinned(wanted: int, physical: int | None, refused: bool) -> None:
    total = None if physical is None else physical * GIB
    if not refused:
        refuse_pinning(wanted * GIB, total)
        return
    with pytest.raises(CannotPin, match=f"arena of {wanted}GiB is wanted; of the host's {physical}GiB, 4GiB are never pinned") as caught:
        refuse_pinning(wanted * GIB, total)
    assert caught.value.exit_status == 3 and "\n" not in str(caught.value)


def has_huge_pages() -> bool:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.exists() and "[never]" not in path.read_text(encoding="ascii")


@pytest.mark.skipif(not has_huge_pages(), reason="this system has no transparent huge pages")
def test_an_arena_lies_on_huge_pages() -> None:
    arena = HostArena(8 * HUGE_PAGE + 4096)
    whole = arena.whole()
    assert whole.data_ptr() % HUGE_PAGE == 0 and whole.nbytes == 8 * HUGE_PAGE + 4096
    assert not whole.any()
    arena.bytes(Extent(Offset(0), Nbytes(arena.nbytes)))[:] = 7
    assert bool((whole == 7).all())
    assert (huge_bytes(whole) or 0) >= 7 * HUGE_PAGE
    plain = MappedArena(8 * HUGE_PAGE, touch=True, huge=False).whole()
    assert (huge_bytes(plain) or 0) < HUGE_PAGE


def test_pages_are_given_back_where_they_are_dropped_wherever_the_arena_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Aligned to more than the system aligns a mapping to by itself, one of several begins within its mapping."""
    monkeypatch.setattr(arena_module, "HUGE_PAGE", 8 * HUGE_PAGE)
    arenas = [HostArena(8 * HUGE_PAGE + HUGE_PAGE, huge=True) for _ in range(8)]
    arena = next(a for a in arenas if a._start > 0)
    assert arena.whole().data_ptr() % (8 * HUGE_PAGE) == 0
    whole = Extent(Offset(0), Nbytes(3 * HUGE_PAGE))
    arena.bytes(whole)[:] = 9
    arena.drop(Extent(Offset(HUGE_PAGE), Nbytes(HUGE_PAGE)))
    found = arena.bytes(whole).reshape(3, HUGE_PAGE)
    assert (found[0] == 9).all() and (found[1] == 0).all() and (found[2] == 9).all()


def test_backing_pages_changes_nothing_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_memory, "BACKED_BYTES", HUGE_PAGE)
    arena = HostArena(4 * HUGE_PAGE, huge=True)
    arena.bytes(Extent(Offset(5000), Nbytes(1000)))[:] = 3
    before = arena.whole().clone()
    backed(arena.whole())
    backed(torch.empty(0, dtype=torch.uint8))
    assert torch.equal(arena.whole(), before)


def test_one_arena_serves_runs_that_come_one_after_the_other() -> None:
    driver = FakeDriver()
    kept = KeptMemory(driver)
    arenas = []
    for nbytes in (5000, 4000, 5000):
        host = kept.lend(nbytes)
        kept.memory(64).close()
        assert list(driver.pinned.values()) == [5000], "the arena stays registered"
        kept.give_back()
        arenas.append(host.whole().data_ptr())
    assert len(set(arenas)) == 1
    assert kept.lend(6000).nbytes == kept.nbytes == 6000
    assert driver.pinned == {}, "the smaller one is given back before there is a larger one"
    kept.memory(64)
    with pytest.raises(AssertionError, match="two runs at once"):
        kept.lend(10)
    kept.give_back()
    kept.close()
    assert driver.pinned == {} and kept.nbytes == 0


def test_an_arena_that_cannot_be_registered_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_memory, "PIECE_BYTES", 4096)
    driver = FailingPins(pieces=1)
    kept = KeptMemory(driver)
    kept.lend(3 * 4096)
    with pytest.raises(CannotPin):
        kept.memory(64)
    kept.give_back()
    assert driver.pinned == {}
    driver.pieces = 9
    kept.lend(3 * 4096)
    kept.memory(64)
    assert sum(driver.pinned.values()) == 3 * 4096
    kept.close()
    gc.collect()
    assert driver.pinned == {}


@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_copies_are_the_drivers_own_with_kept_arguments(tmp_path: Path) -> None:
    library = compiled_stub(tmp_path)
    copies, stub = DirectCopies(str(library)), ctypes.CDLL(str(library))
    source, target = torch.arange(100, dtype=torch.uint8), torch.zeros(60, dtype=torch.uint8)
    call = copies.bound(0x77, target, source[40:])
    assert not target.any()
    for _ in range(2):
        target.zero_()
        call()
        assert torch.equal(target, source[40:])
    assert list((ctypes.c_uint64 * 4).in_dll(stub, "stub_copy")) == [target.data_ptr(), source.data_ptr() + 40, 60, 0x77]
    ctypes.c_int.in_dll(stub, "stub_copy_status").value = 700
    with pytest.raises(RuntimeError, match=r"CUDA error 700 \(cuMemcpyAsync\)"):
        call()
    with pytest.raises(AssertionError, match="a copy of 100 bytes to 60"):
        copies.bound(0x77, target, source)


def test_a_library_without_the_call_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot open"):
        DirectCopies(str(tmp_path / "none.so"))


@pytest.mark.skipif(not has_huge_pages(), reason="this system has no transparent huge pages")
def test_an_arena_is_filled_on_huge_pages_and_without_a_second_copy() -> None:
    """What was filled is compared by the bench itself."""
    found = host_memory.measured(0.5, 1, with_random=False)
    assert found.huge_share > 0.9
    assert found.second_copy_bytes < 64 << 20


@pytest.mark.slow
def test_an_arena_is_filled_about_as_fast_as_two_threads_copy() -> None:
    """On a machine that others disturb, the best of three; the 13 GiB of a real model are `python -m bench.host_memory --gib 13`."""
    found = [host_memory.measured(2, 1, with_random=False) for _ in range(3)]
    print([f"fresh {r.filled_fresh / r.copied_fresh:.2f}, kept {r.filled_again / r.copied_backed:.2f}" for r in found])
    assert max(r.filled_fresh / r.copied_fresh for r in found) >= 0.8
