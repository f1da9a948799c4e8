"""Results go where they were sent: through links, into pipes and devices, whole or not at all, and what stands is said."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from command_line import ran
from einpage.einsum_front.base import files
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import refuse_full, refuse_unwritable, write_atomically, write_each, write_through
from tiny_specs import SPEC

CSV = "id,lower,upper,size\na,0,2,5\nb,1,3,7\n"


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "further").symlink_to(tmp_path / "link")
    write_atomically(tmp_path / "further", "new")
    assert (tmp_path / "real").read_text() == "new" and not (tmp_path / "real").is_symlink()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "further").is_symlink()
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert names(tmp_path) == ["further", "link", "real"]


def test_a_link_that_leads_nowhere_yet_leads_to_the_result(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    refuse_unwritable(str(tmp_path / "link"))
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_text() == "new"


def test_what_is_written_is_renamed_into_place_whole(tmp_path: Path) -> None:
    """A reader that has the old file open keeps all of it; a failure on the way leaves the old file and nothing else."""
    path = tmp_path / "real"
    path.write_text("old")
    (tmp_path / "link").symlink_to("real")
    with path.open() as reader:
        write_atomically(tmp_path / "link", "new")
        assert reader.read() == "old"

    def fails(part: Path) -> None:
        part.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UsageError, match=r"cannot write .*link: No space left on device"):
        write_through(tmp_path / "link", fails)
    assert path.read_text() == "new" and names(tmp_path) == ["link", "real"]


def test_devices_and_pipes_are_written_to_and_stay(tmp_path: Path) -> None:
    write_atomically(Path("/dev/null"), "text")
    assert Path("/dev/null").is_char_device()
    with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left on device"):
        write_atomically(Path("/dev/full"), "text")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("pipe")
    got: list[str] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    refuse_unwritable(str(pipe), "/dev/null", "/dev/null")
    write_atomically(tmp_path / "link", "through")
    reader.join(30)
    assert got == ["through"] and pipe.is_fifo() and names(tmp_path) == ["link", "pipe"]


def test_stdout_by_its_name_is_written_after_what_was_printed(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of a command under `> file`: /dev/stdout is that file, which stays the one that is printed to."""
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")
    buffers = tmp_path / "b.csv"
    buffers.write_text(CSV)
    with capfd.disabled():
        saved = os.dup(1)
        with open(tmp_path / "out", "wb") as out:
            os.dup2(out.fileno(), 1)
        try:
            os.write(1, b"before ")
            write_atomically(link, "the result ")
            os.write(1, b"after")
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert (tmp_path / "out").read_text() == "before the result after"
    assert link.is_symlink()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("n" * 300, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
        ("a\0b", "null"),
        ("folder", "a folder"),
        ("none/x", "does not exist"),
        ("../" * 3 + "n" * 5000, "name too long"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_and_after(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=f"(?s)cannot write .*{said}"):
        refuse_unwritable(f"{tmp_path}/{name}")
    with pytest.raises(UsageError, match="cannot write"):
        write_atomically(Path(f"{tmp_path}/{name}"), "x")
    assert names(tmp_path) == ["folder", "loop"]


def test_a_name_as_long_as_can_be_is_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    refuse_unwritable(str(path))
    write_atomically(path, "x")
    assert names(tmp_path) == [path.name]


def test_a_folder_in_which_nothing_can_be_made_is_found_out_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(files.os, "open", refused)
    with pytest.raises(UsageError, match=r"cannot write .*x: Permission denied"):
        refuse_unwritable(str(tmp_path / "x"))


def test_a_file_in_a_folder_in_which_nothing_can_be_made_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("older and longer")
    monkeypatch.setattr(files.os, "access", lambda place, mode: Path(place) != tmp_path)
    refuse_unwritable(str(path))
    write_atomically(path, "new")
    assert path.read_text() == "new" and names(tmp_path) == ["x"]


def test_a_file_that_is_mounted_is_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_text("older and longer")

    def busy(*_: object) -> None:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(files.os, "replace", busy)
    write_atomically(path, "new")
    assert path.read_text() == "new" and names(tmp_path) == ["x"]


def test_a_full_disk_is_found_out_before(tmp_path: Path) -> None:
    refuse_full(None, 1 << 60)
    refuse_full("/dev/null", 1 << 60)
    refuse_full(str(tmp_path / "x"), 1)
    with pytest.raises(UsageError, match=r"cannot write .*x: it will have 1048576TiB, and its disk has .* left"):
        refuse_full(str(tmp_path / "x"), 1 << 60)


def test_where_a_later_result_fails_what_stands_is_said(tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left on device; written before it: .*first, .*second$"):
        write_each((file, lambda path: write_atomically(path, "x")) for file in (first, None, second, "/dev/full", str(tmp_path / "third")))
    assert names(tmp_path) == ["first", "second"]
    with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left on device$"):
        write_each([("/dev/full", lambda path: write_atomically(path, "x"))])


def test_every_result_of_a_plan_and_a_run_goes_through_its_link(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    spec, x, csv = tmp_path / "spec.yaml", tmp_path / "x.json", tmp_path / "b.csv"
    spec.write_bytes(SPEC)
    x.write_text("[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]")
    csv.write_text(CSV)
    (tmp_path / "real").mkdir()

    def link(name: str) -> str:
        (tmp_path / name).symlink_to(f"real/{name}")
        return str(tmp_path / name)

    common = ("--budget", "1MiB", "--machine", "cpu")
    ran(capsys, "plan", str(spec), *common, "--out", link("plan"), "--timeline", link("plan.html"))
    ran(capsys, "plan", str(spec), "--machine", "cpu", "--sweep", "budget=1MiB:2MiB:2", "--timeline", link("sweep.svg"))
    ran(capsys, "pack", str(csv), "--capacity", "100", "--seconds", "1", "--out", link("packed"))
    words = ("--logits", link("logits"), "--trace", link("trace"), "--timeline", link("run.svg"))
    ran(capsys, "run", str(spec), *common, "--device", "cpu", "--weights", "random:1", "--input", f"x={x}", *words)
    made = names(tmp_path / "real")
    assert made == ["logits", "packed", "plan", "plan.html", "run.svg", "sweep.svg", "trace"]
    assert all((tmp_path / name).is_symlink() and (tmp_path / "real" / name).stat().st_size for name in made)


def test_a_run_whose_outputs_do_not_fit_the_disk_never_begins(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, x = tmp_path / "spec.yaml", tmp_path / "x.json"
    spec.write_bytes(SPEC)
    x.write_text("[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]")
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: SimpleNamespace(free=47))
    monkeypatch.setattr("einpage.exec.run.prepared.fill", lambda *_: pytest.fail("weights were loaded"))
    words = ("run", str(spec), "--budget", "1MiB", "--machine", "cpu", "--device", "cpu", "--weights", "random:1", "--input", f"x={x}")
    _, err = ran(capsys, *words, "--logits", str(tmp_path / "out"), status=2)
    assert "out: it will have 48B, and its disk has 47B left" in err
