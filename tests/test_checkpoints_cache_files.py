"""The folder of packed weights: whole files or none, within a limit, whoever is killed while one is written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from einpage.checkpoints.disk.cache_files import DEFAULT_LIMIT, CacheFolder
from einpage.checkpoints.disk.direct_file import DiskError, open_direct


def make(folder: CacheFolder, key: str, nbytes: int = 10_000, fill: bytes = b"x") -> Path:
    def write(fd: int) -> Mapping[str, object]:
        os.pwrite(fd, fill * nbytes, 0)
        return {"n": nbytes}

    path, index = folder.make(key, nbytes, write)
    assert index == {"n": nbytes}
    return path


def names(folder: CacheFolder) -> list[str]:
    return [file.path.name for file in folder.files()]


def test_a_file_is_found_by_its_key(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path / "blocks")
    assert folder.find("a") is None and folder.files() == () and folder.clear() == 0
    path = make(folder, "a")
    assert path.read_bytes()[:10_000] == b"x" * 10_000
    assert folder.find("a") == (path, {"n": 10_000}) and folder.find("b") is None
    nbytes = path.stat().st_size
    assert folder.clear() == nbytes
    assert folder.find("a") is None


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    for at, key in enumerate("abc"):
        os.utime(make(folder, key), (at, at))
    folder.set_limit(35_000)
    assert names(folder) == ["a.blocks", "b.blocks", "c.blocks"]
    assert folder.find("a") is not None
    make(folder, "d")
    assert names(folder) == ["c.blocks", "a.blocks", "d.blocks"], "a was used after b"
    folder.set_limit(12_000)
    assert names(folder) == ["d.blocks"] and folder.limit() == 12_000


def test_who_has_a_file_open_keeps_it(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    with make(folder, "a").open("rb") as file:
        folder.clear()
        assert folder.files() == () and file.read(3) == b"xxx"


def test_who_has_a_file_open_sees_no_change_where_another_finds_it(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    path = make(folder, "a")
    os.utime(path, ns=(100, 100))
    file = open_direct(path)
    assert folder.find("a") is not None and folder.files()[0].used_s > 1, "it counts as used"
    file.refuse_changed()
    file.close()


def test_more_than_the_limit_is_refused_before_anything_goes(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    assert folder.limit() == DEFAULT_LIMIT
    make(folder, "a")
    folder.set_limit(20_000)
    with pytest.raises(
        DiskError, match=r"take 29.3KiB, more than the limit of 19.53KiB.*say `einpage cache --limit 29.3KiB`, or more"
    ) as found:
        make(folder, "b", 30_000)
    assert names(folder) == ["a.blocks"] and "\n" not in str(found.value)


@pytest.mark.parametrize("damage", [b"", b"short", b"y" * 40_000])
def test_a_file_that_is_not_whole_is_made_again(damage: bytes, tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    path = make(folder, "a")
    path.write_bytes(damage)
    assert folder.find("a") is None
    make(folder, "a")
    assert folder.find("a") is not None
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert folder.find("a") is None, "cut off"


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)

    def write(fd: int) -> Mapping[str, object]:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(DiskError, match=r"a\.blocks: cannot be written: the disk is full"):
        folder.make("a", 10, write)
    assert [*tmp_path.iterdir()] == []


KILLED = """
import os, signal, sys
from pathlib import Path
from einpage.checkpoints.disk.cache_files import CacheFolder
def write(fd):
    os.pwrite(fd, b"x" * 5000, 0)
    os.kill(os.getpid(), signal.SIGKILL)
CacheFolder(Path(sys.argv[1])).make("a", 10_000, write)
"""


def test_who_is_killed_in_mid_write_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    parts = [*tmp_path.iterdir()]
    assert len(parts) == 1 and parts[0].suffix == ".part" and folder.find("a") is None
    path = make(folder, "a")
    assert [*tmp_path.iterdir()] == [path], "what was left is evicted"


def test_a_file_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)

    def write(fd: int) -> Mapping[str, object]:
        os.pwrite(fd, b"x" * 10, 0)
        make(folder, "b")
        folder.clear()
        return {}

    folder.make("a", 10, write)
    assert names(folder) == ["a.blocks"]


def test_the_name_appears_when_all_is_written(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path)

    def write(fd: int) -> Mapping[str, object]:
        assert folder.find("a") is None
        return {}

    folder.make("a", 10, write)
    assert folder.find("a") is not None
