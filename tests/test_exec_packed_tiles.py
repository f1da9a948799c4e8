"""Tiles on disk: packed once, found again, opened with what is read where it is; what is read back is what filling gives."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_files import piece_of, wanted
from einpage.checkpoints.disk.cache_files import CacheFolder
from einpage.checkpoints.disk.direct_file import DiskError
from einpage.checkpoints.disk.engines import TransferOptions
from einpage.checkpoints.match.resolve import Resolved
from einpage.checkpoints.match.tile_places import tile_places
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.taskgraph import TaskGraph, TensorId
from einpage.exec.load import packed_tiles
from einpage.exec.load.fill import fill
from einpage.exec.load.packed_tiles import OpenDisk, open_disk
from test_checkpoints_tile_places import TORCH, resolved_at
from test_exec_fill import CASES, cut, tiled


def disk_of(graph: TaskGraph, resolved: Resolved, folder: Path, scratch: int = 0) -> OpenDisk:
    places = tile_places(graph, resolved)
    return open_disk(graph, resolved, places, scratch, TransferOptions(), folder=CacheFolder(folder))


def assert_reads(disk: OpenDisk, graph: TaskGraph, slots: dict[TensorId, torch.Tensor]) -> None:
    for tile in graph.tensors:
        piece = piece_of(disk.offset_by_name[tile.name], tile.nbytes)
        disk.store.read([piece])
        assert np.array_equal(wanted(piece), slots[tile.id].view(torch.uint8).numpy().reshape(-1)), tile.name


@given(data=st.data())
@settings(max_examples=30)
def test_every_tile_reads_back_to_the_bit(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    weights = {w: cut(w.shape, tuple(data.draw(st.integers(1, n)) for n in w.shape)) for w in [data.draw(st.sampled_from(CASES))]}
    dtype = data.draw(st.sampled_from([*TORCH]))
    graph, slots = tiled(weights, dtype)
    folder = tmp_path_factory.mktemp("w")
    resolved = resolved_at(folder, weights, data.draw(st.sampled_from([*TORCH.values()])))
    fill(graph, resolved, slots)
    for _ in range(2):
        disk = disk_of(graph, resolved, folder / "blocks")
        assert_reads(disk, graph, slots)
        disk.store.close()


@pytest.fixture
def transposed(tmp_path: Path) -> tuple[TaskGraph, Resolved, dict[TensorId, torch.Tensor]]:
    """A weight that stands transposed in its file, so that all of it is packed."""
    weight = CASES[1]
    graph, slots = tiled({weight: cut(weight.shape, (3, 1))}, DType.FP32)
    resolved = resolved_at(tmp_path, {weight: ()}, torch.float32)
    fill(graph, resolved, slots)
    return graph, resolved, slots


Transposed = tuple[TaskGraph, Resolved, dict[TensorId, torch.Tensor]]


def test_it_is_packed_once(transposed: Transposed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, resolved, slots = transposed
    disk_of(graph, resolved, tmp_path / "blocks").store.close()
    monkeypatch.setattr(packed_tiles, "fill", None)
    disk = disk_of(graph, resolved, tmp_path / "blocks")
    assert_reads(disk, graph, slots)
    disk.store.close()


def test_another_checkpoint_in_its_place_is_packed_anew(transposed: Transposed, tmp_path: Path) -> None:
    """Of the same name, shapes, size and times."""
    graph, resolved, slots = transposed
    disk_of(graph, resolved, tmp_path / "blocks").store.close()
    path = tmp_path / "model.safetensors"
    before, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    fill(graph, resolved, slots)
    disk = disk_of(graph, resolved, tmp_path / "blocks")
    assert_reads(disk, graph, slots)
    disk.store.close()


def test_a_damaged_cache_file_is_told(transposed: Transposed, tmp_path: Path) -> None:
    graph, resolved, slots = transposed
    disk_of(graph, resolved, tmp_path / "blocks").store.close()
    (path,) = (tmp_path / "blocks").glob("*.blocks")
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    disk = disk_of(graph, resolved, tmp_path / "blocks")
    with pytest.raises(DiskError, match=r"\.blocks: changed"):
        assert_reads(disk, graph, slots)
    disk.store.close()


def test_tiles_are_filled_a_few_at_a_time(transposed: Transposed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, resolved, slots = transposed
    monkeypatch.setattr(packed_tiles, "AT_ONCE", 1)
    disk = disk_of(graph, resolved, tmp_path / "blocks")
    assert_reads(disk, graph, slots)
    disk.store.close()


def test_what_is_not_finite_is_told_whenever_it_is_opened(tmp_path: Path) -> None:
    weight = CASES[1]
    graph, slots = tiled({weight: cut(weight.shape, (2, 1))}, DType.FP16)
    resolved = resolved_at(tmp_path, {weight: ()}, torch.float32)
    path = tmp_path / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = np.array([1e9], np.float32).tobytes()
    path.write_bytes(data)
    told = fill(graph, resolved, slots)
    assert len(told) == 1 and told[0].beyond
    for _ in range(2):
        disk = disk_of(graph, resolved, tmp_path / "blocks")
        assert disk.not_finite == told
        disk.store.close()


def test_scratch_lies_after_the_weights(transposed: Transposed, tmp_path: Path) -> None:
    graph, resolved, slots = transposed
    disk = disk_of(graph, resolved, tmp_path / "blocks", scratch=8192)
    written = piece_of(disk.scratch, 5000)
    written.memory[:] = 7
    disk.store.write([written])
    again = piece_of(disk.scratch, 5000)
    disk.store.read([again])
    assert np.array_equal(wanted(again), wanted(written))
    assert_reads(disk, graph, slots)
    disk.store.close()


def test_what_fails_while_packing_leaves_nothing_open(transposed: Transposed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, resolved, _ = transposed

    def full(fd: int, data: object, offset: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(packed_tiles, "_write", full)
    count = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DiskError, match="the disk is full"):
        disk_of(graph, resolved, tmp_path / "blocks")
    assert len(os.listdir("/proc/self/fd")) == count and not [*(tmp_path / "blocks").glob("*.part")]
