"""Reads and writes past the page cache: the same bytes by every engine, in sectors as the kernel counts them, errors that say where."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_files import FailingEngine, memory_for, opened, piece_of, random_file, read_bytes_counted, wanted
from einpage.checkpoints.disk import threads
from einpage.checkpoints.disk.block_store import DiskExtent
from einpage.checkpoints.disk.digests import checksum, file_digest
from einpage.checkpoints.disk.direct_file import SECTOR, DiskError, open_direct, open_scratch, sector_span
from einpage.checkpoints.disk.engines import ENGINES, TransferOptions, make_engine
from einpage.checkpoints.disk.transfer import Engine, Transfer, TransferError, after, run_all

EACH_ENGINE = pytest.mark.parametrize("name", ENGINES)


def engine_of(name: str, depth: int) -> Engine:
    """Skips where the system has none."""
    try:
        return ENGINES[name](depth)
    except OSError as error:
        pytest.skip(f"{name}: {error}")


@EACH_ENGINE
@given(data=st.data())
@settings(max_examples=40)
def test_every_piece_is_what_the_file_has(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    engine_of(name, 1).close()
    folder = tmp_path_factory.mktemp("disk")
    sizes = data.draw(st.lists(st.integers(1, 30_000), min_size=1, max_size=3), "bytes of the files")
    contents = [random_file(folder / f"f{i}", n, i) for i, n in enumerate(sizes)]
    choice = TransferOptions(name, data.draw(st.integers(1, 9), "depth"), SECTOR * data.draw(st.integers(1, 20), "sectors a block"))
    with opened([folder / f"f{i}" for i in range(len(sizes))], choice) as (store, bases):
        pieces = []
        for _ in range(data.draw(st.integers(1, 8), "pieces")):
            i = data.draw(st.integers(0, len(sizes) - 1))
            start = data.draw(st.integers(0, sizes[i] - 1))
            pieces.append((i, start, piece_of(bases[i] + start, data.draw(st.integers(1, sizes[i] - start)))))
        store.read([piece for *_, piece in pieces])
        for i, start, piece in pieces:
            assert np.array_equal(wanted(piece), contents[i][start : start + piece.nbytes])
        assert store.read_bytes == sum(len(piece.memory) for *_, piece in pieces)


@EACH_ENGINE
def test_a_wait_ends_where_there_is_more_to_begin(name: str, tmp_path: Path) -> None:
    """Of each thread that waits, one after the other: what one has asked the system for ends with it."""
    random_file(tmp_path / "f", SECTOR)
    engine, file, memory, answers = engine_of(name, 2), open_direct(tmp_path / "f"), memory_for(SECTOR), list[object]()

    def wait(transfer: Transfer | None) -> Thread:
        def body() -> None:
            if transfer is not None:
                engine.begin(1, transfer)
            answers.append(engine.ended())

        thread = Thread(target=body, daemon=True)
        thread.start()
        return thread

    wait(Transfer(file.fd, 0, memory.ctypes.data, SECTOR, SECTOR)).join(30)
    for _ in range(2):
        waiting = wait(None)
        waiting.join(0.05)
        assert waiting.is_alive(), "nothing has ended"
        engine.wake()
        waiting.join(30)
    assert answers == [[(1, None)], [], []]
    engine.close()
    file.close()


@EACH_ENGINE
def test_the_kernel_counts_the_sectors(name: str, tmp_path: Path) -> None:
    data = random_file(tmp_path / "f", 5 << 20)
    with opened([tmp_path / "f"], TransferOptions(name, 4, 128 << 10)) as (store, _):
        if "through the page cache" in store.path:
            pytest.skip(f"{tmp_path} has no O_DIRECT")
        pieces = [piece_of(start, n) for start, n in ((3, 9), (512, 512), (511, 2), (1_000_001, 3_000_000))]
        before = read_bytes_counted()
        store.read(pieces)
        assert read_bytes_counted() - before == store.read_bytes == 512 + 512 + 1024 + len(pieces[3].memory)
        assert all(np.array_equal(wanted(p), data[p.offset : p.offset + p.nbytes]) for p in pieces)


@EACH_ENGINE
@given(data=st.data())
@settings(max_examples=25)
def test_what_is_written_is_read_back(name: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    engine_of(name, 1).close()
    folder = tmp_path_factory.mktemp("disk")
    random_file(folder / "f", 1000)
    with opened([folder / "f"], TransferOptions(name, 3, 4 * SECTOR), 64 * SECTOR, folder) as (store, (_, base)):
        mirror = np.zeros(64 * SECTOR, np.uint8)
        for seed in range(data.draw(st.integers(1, 6))):
            first = data.draw(st.integers(0, 63))
            nbytes = data.draw(st.integers(1, (64 - first) * SECTOR))
            written = piece_of(base + first * SECTOR, nbytes)
            written.memory[:] = np.random.default_rng(seed).integers(0, 256, len(written.memory), np.uint8)
            store.write([written])
            mirror[first * SECTOR : first * SECTOR + len(written.memory)] = written.memory
            back = piece_of(base + first * SECTOR, nbytes)
            store.read([back])
            assert np.array_equal(wanted(back), wanted(written))
        whole = piece_of(base, 64 * SECTOR)
        store.read([whole])
        assert np.array_equal(whole.memory, mirror)


def test_what_a_file_has_is_only_read(tmp_path: Path) -> None:
    random_file(tmp_path / "f", 4096)
    with opened([tmp_path / "f"], TransferOptions()) as (store, _), pytest.raises(AssertionError, match="only read"):
        store.write([piece_of(0, 10)])


@EACH_ENGINE
def test_the_systems_own_error_ends_all_and_is_the_first(name: str, tmp_path: Path) -> None:
    """/proc/self/mem answers EIO where nothing is mapped, a closed descriptor EBADF: real errors of real system calls."""
    engine = engine_of(name, 4)
    fd = os.open("/proc/self/mem", os.O_RDONLY)
    data = random_file(tmp_path / "f", 8192)
    good = os.open(tmp_path / "f", os.O_RDONLY)
    memory = memory_for(16384)
    address = memory.ctypes.data
    bad = Transfer(fd, 4096, address, 4096, 4096)
    with pytest.raises(TransferError) as found:
        run_all(engine, [Transfer(good, 0, address + 4096, 4096, 4096), bad, Transfer(good, 4096, address + 8192, 4096, 4096)])
    assert found.value.number == errno.EIO and found.value.transfer == bad
    run_all(engine, [Transfer(good, 0, address, 8192, 8192)])
    assert np.array_equal(memory[:8192], data), "after an error the engine goes on, and nothing is in flight"
    engine.close()
    os.close(fd)
    os.close(good)


@EACH_ENGINE
def test_a_full_device_is_said(name: str) -> None:
    engine = engine_of(name, 2)
    fd = os.open("/dev/full", os.O_WRONLY)
    memory = memory_for(4096)
    with pytest.raises(TransferError) as found:
        run_all(engine, [Transfer(fd, 0, memory.ctypes.data, 4096, 4096, True)])
    assert found.value.number == errno.ENOSPC
    engine.close()
    os.close(fd)


def test_a_short_answer_is_asked_for_again() -> None:
    transfer = Transfer(3, 1000, 5000, 100, 90)
    assert after(transfer, 100) is None and after(transfer, 90) is None
    assert after(transfer, 40) == Transfer(3, 1040, 5040, 60, 50)
    assert after(transfer, -errno.EINTR) == transfer
    with pytest.raises(TransferError, match="the file ends within bytes 1000 to 1090"):
        after(transfer, 0)
    with pytest.raises(TransferError) as full:
        after(Transfer(3, 0, 0, 100, 100, True), 0)
    assert full.value.number == errno.ENOSPC


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.EIO, r"f: 512 bytes at 512 cannot be read: Input/output error"), (errno.ENOSPC, r"the disk is full; free some of it")],
)
def test_an_error_names_file_and_place(number: int, said: str, tmp_path: Path) -> None:
    data = random_file(tmp_path / "f", 4096)
    choice = TransferOptions(block_bytes=SECTOR)
    with opened([tmp_path / "f"], choice, reads=FailingEngine(make_engine(choice), 1, number)) as (store, _):
        with pytest.raises(DiskError, match=said) as found:
            store.read([piece_of(0, 2000)])
        assert "\n" not in str(found.value) and found.value.exit_status == 2
        again = piece_of(0, 4096)
        store.read([again])
        assert np.array_equal(again.memory, data)
    assert (tmp_path / "f").read_bytes() == data.tobytes(), "the source is untouched"


def test_what_raises_in_a_thread_is_the_reads_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug of ours too: the transfer has ended, nobody waits for it, and there is room for another."""
    data, do = random_file(tmp_path / "f", 4096), threads._do

    def fails_once(transfer: Transfer) -> None:
        monkeypatch.setattr(threads, "_do", do)
        raise MemoryError

    monkeypatch.setattr(threads, "_do", fails_once)
    with opened([tmp_path / "f"], TransferOptions("preadv threads", 1, SECTOR)) as (store, _):
        with pytest.raises(MemoryError):
            store.read([piece_of(0, 2000)])
        again = piece_of(0, 4096)
        store.read([again])
        assert np.array_equal(again.memory, data)
        store.drain()


def truncated(path: Path) -> None:
    os.truncate(path, 1000)


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def touched(path: Path) -> None:
    os.utime(path, ns=(1, 1))


@pytest.mark.parametrize("change", [truncated, appended, touched])
def test_a_file_that_changes_is_told_by_size_and_time(change: Callable[[Path], None], tmp_path: Path) -> None:
    random_file(tmp_path / "f", 8192)
    with opened([tmp_path / "f"], TransferOptions()) as (store, _):
        store.refuse_changed()
        change(tmp_path / "f")
        with pytest.raises(DiskError, match=r"f: changed while it was in use: it (had 8192 bytes, and has|was written to)"):
            store.refuse_changed()


def test_a_file_that_is_cut_off_while_it_is_read_is_told(tmp_path: Path) -> None:
    random_file(tmp_path / "f", 8192)
    with opened([tmp_path / "f"], TransferOptions()) as (store, _):
        truncated(tmp_path / "f")
        with pytest.raises(DiskError, match="it had 8192 bytes, and has 1000; start again"):
            store.read([piece_of(4096, 4096)])


def test_other_bytes_are_told_when_they_are_read_again(tmp_path: Path) -> None:
    """Size and time as they were: only the contents tell."""
    data = random_file(tmp_path / "f", 8192)
    before = os.stat(tmp_path / "f")
    with opened([tmp_path / "f"], TransferOptions()) as (store, _):
        store.read([piece_of(100, 5000), piece_of(6000, 100)])
        data[5099] ^= 1
        with (tmp_path / "f").open("r+b") as file:
            file.write(data.tobytes())
        os.utime(tmp_path / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
        store.refuse_changed()
        store.read([piece_of(6000, 100)])
        with pytest.raises(DiskError, match="f: changed while it was in use: the 5000 bytes at 100 are not what they were"):
            store.read([piece_of(100, 5000)])


def test_what_was_told_ahead_is_held_against_the_first_read(tmp_path: Path) -> None:
    data = random_file(tmp_path / "f", 4096)
    with opened([tmp_path / "f"], TransferOptions()) as (store, _):
        store.expect({(10, 100): checksum(data[10:110]), (200, 100): checksum(data[201:301])})
        store.read([piece_of(10, 100)])
        with pytest.raises(DiskError, match="the 100 bytes at 200"):
            store.read([piece_of(200, 100)])


@given(st.integers(1, 5000), st.data())
def test_a_checksum_tells_any_changed_byte(nbytes: int, data: st.DataObject) -> None:
    bytes_ = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    first = checksum(bytes_)
    assert checksum(bytes_.copy()) == first and checksum(np.concatenate(([0], bytes_)).astype(np.uint8)[1:]) == first
    bytes_[data.draw(st.integers(0, nbytes - 1))] ^= data.draw(st.integers(1, 255))
    assert checksum(bytes_) != first


def test_scratch_has_no_name_and_all_its_bytes(tmp_path: Path) -> None:
    file = open_scratch(tmp_path / "new", 1 << 20)
    assert [*(tmp_path / "new").iterdir()] == [] and file.nbytes == 1 << 20
    assert os.fstat(file.fd).st_blocks * 512 >= 1 << 20, "allocated, so that no write finds the disk full"
    file.close()


def test_scratch_on_a_full_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    open_files = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DiskError, match=r"5 bytes of scratch cannot be had: the disk is full; free some of it .* EINPAGE_CACHE"):
        open_scratch(tmp_path, 5)
    assert len(os.listdir("/proc/self/fd")) == open_files and [*tmp_path.iterdir()] == []


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=r"none: cannot be read: No such file or directory"):
        open_direct(tmp_path / "none")


def test_where_there_is_no_ring_threads_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(depth: int) -> Engine:
        raise OSError(errno.EPERM, "not here")

    threads = "preadv threads"
    monkeypatch.setitem(ENGINES, "io_uring", refused)  # type: ignore[arg-type]
    assert make_engine(TransferOptions()).name == make_engine(TransferOptions("io_uring")).name == threads
    assert make_engine(TransferOptions(threads)).name == threads


def test_sectors_hold_what_they_are_for() -> None:
    assert [sector_span(*x) for x in ((0, 1), (511, 1), (511, 2), (512, 512), (1000, 0))] == [
        (0, 512),
        (0, 512),
        (0, 1024),
        (512, 1024),
        (512, 1024),
    ]


def test_memory_of_another_length_is_our_bug(tmp_path: Path) -> None:
    random_file(tmp_path / "f", 4096)
    with opened([tmp_path / "f"], TransferOptions()) as (store, _), pytest.raises(AssertionError):
        store.read([DiskExtent(0, 600, memory_for(512))])


def test_a_digest_is_kept_while_a_file_is_what_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, kept = tmp_path / "f", tmp_path / "kept"
    random_file(path, 3 << 20)
    first = file_digest(path, kept)
    assert not kept.exists(), "a file that was just written may change within the clock's tick"
    monkeypatch.setattr("einpage.checkpoints.disk.digests.UNCHANGED_S", -1e9)
    assert file_digest(path, kept) == first and kept.exists()
    monkeypatch.setattr("hashlib.sha256", None)
    assert file_digest(path, kept) == first, "not read again"
    monkeypatch.undo()
    os.utime(path, ns=(1, 1))
    random_file(path, 3 << 20, 1)
    assert file_digest(path, kept) != first
