"""Machine code kept between processes: what is loaded is what was compiled, and a file that is not whole is compiled anew."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from einpage.checkpoints.disk.cache_files import CacheFolder
from einpage.kernels.on_llvm import compile as compiling
from einpage.kernels.on_llvm.compile import code_key, compiled, object_file, store_machine_code_in, why_not_llvm

pytestmark = pytest.mark.skipif(why_not_llvm() is not None, reason=str(why_not_llvm()))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[CacheFolder]:
    found = CacheFolder(tmp_path / "code", ".code")
    store_machine_code_in(found)
    yield found
    store_machine_code_in(None)


def made(text: str, name: str) -> list[float]:
    """What the function of `text` makes of 1, 2, 3; compiled anew, or loaded."""
    compiling._address.cache_clear()
    numbers = np.array([1, 2, 3], np.float32)
    compiled(text, name, "pn")(numbers.ctypes.data, len(numbers))
    found: list[float] = numbers.tolist()
    return found


def times_text(factor: float, name: str = "times") -> str:
    """A function that multiplies so many numbers in place."""
    return f"""
define void @{name}(ptr %x, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %p = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %p
  %w = fmul float %v, {factor:.6e}
  store float %w, ptr %p
  %next = add i64 %i, 1
  %done = icmp eq i64 %next, %n
  br i1 %done, label %end, label %loop
end:
  ret void
}}
"""


def test_what_was_compiled_once_is_loaded(folder: CacheFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    text = times_text(2.0)
    assert made(text, "times") == [2, 4, 6]
    kept = folder.read(code_key(text))
    assert kept == object_file(text) and len(folder.files()) == 1

    def never(text: str) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiling, "object_file", never)
    assert made(text, "times") == [2, 4, 6]
    with pytest.raises(AssertionError, match="compiled again"):
        made(times_text(3.0), "times")


@pytest.mark.parametrize("change", ["cut off", "empty", "a bit", "that of another", "writable by others"])
def test_a_file_that_is_not_whole_is_made_anew(change: str, folder: CacheFolder) -> None:
    text, other = times_text(2.0), times_text(3.0)
    assert made(text, "times") == [2, 4, 6] and made(other, "times") == [3, 6, 9]
    path, of_other = (folder.path / f"{code_key(t)}.code" for t in (text, other))
    whole = path.read_bytes()
    match change:
        case "cut off":
            path.write_bytes(whole[:-100])
        case "empty":
            path.write_bytes(b"")
        case "a bit":
            path.write_bytes(whole[:200] + bytes([whole[200] ^ 4]) + whole[201:])
        case "that of another":
            path.write_bytes(of_other.read_bytes())
        case _:
            path.chmod(0o666)
    assert folder.read(code_key(text)) is None
    assert made(text, "times") == [2, 4, 6]
    assert path.read_bytes() == whole and path.stat().st_mode & 0o777 == 0o600


def test_a_folder_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store_machine_code_in(CacheFolder(tmp_path / "file", ".code"))
    try:
        assert made(times_text(2.0), "times") == [2, 4, 6]
    finally:
        store_machine_code_in(None)


def test_the_key_names_the_processor_and_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    text, found = times_text(2.0), set()
    own = compiling._processor()
    for n in range(len(own) + 1):
        changed = tuple(word + "x" if i == n else word for i, word in enumerate(own))
        monkeypatch.setattr(compiling, "_processor", lambda changed=changed: changed)
        found.add(code_key(text))
    monkeypatch.setattr("llvmlite.__version__", "0")
    found.add(code_key(text))
    assert len(found) == len(own) + 2


def test_files_are_limited_and_the_least_recently_used_go(tmp_path: Path) -> None:
    folder = CacheFolder(tmp_path, ".code", 3000)
    for at, key in enumerate("abc"):
        folder.write(key, key.encode() * 900)
        os.utime(tmp_path / f"{key}.code", (at, at))
    assert folder.read("a") == b"a" * 900
    folder.write("d", b"d" * 900)
    assert [file.path.stem for file in folder.files()] == ["c", "a", "d"]
    folder.write("large", b"x" * 3000)
    assert folder.read("large") is None and folder.read("c") == b"c" * 900


RUN = """
import einpage

sizes = {"model": 64, "heads": 4, "kv_heads": 2, "layers": 2, "ffn": 96, "vocab": 200}
llama = einpage.load_spec("llama", set=sizes, weights="random:5", tokens=[[1, 5, 9, 2]])
logits = einpage.run(llama, budget="192KiB", machine="cpu", device="cpu").outputs["logits"]
print(logits.numpy().tobytes().hex())
"""


def test_another_process_compiles_nothing_and_has_the_same_bits(tmp_path: Path) -> None:
    """Texts follow from the job alone: sets of strings are walked in another order by each process."""
    found, files = set(), []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "EINPAGE_CACHE": str(tmp_path)}
        found.add(subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True).stdout)
        files.append([(file.path, file.path.stat().st_ino) for file in CacheFolder(tmp_path / "code", ".code").files()])
    assert files[0] and sorted(files[0]) == sorted(files[1]), "a file was written again"
    assert len(found) == 1
