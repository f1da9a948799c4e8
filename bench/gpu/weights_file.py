"""SmolLM2's file: the one that is named, the one in .cache, or one joined from parts that travelled by themselves.

Parts are what `split -b 48M FILE bench/weights/FILE.` makes (each below 64 MiB), which may arrive one call after another. A file is
believed by its SHA-256 alone. Needs Python and einpage's own errors.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from bench.results import ROOT
from einpage.exec.system.fetch_model import MODEL, SHA256

CACHE = ROOT / ".cache"
PARTS = ROOT / "bench" / "weights"
NBYTES = 98_362_432


class NoModel(Exception):
    """Why there is no file, and what to do."""


def model_file(named: Path | None, cache: Path = CACHE, parts: Path = PARTS, sha256: str = SHA256, nbytes: int = NBYTES) -> Path:
    """The file, whole. Raises NoModel."""
    if named is not None:
        if not named.is_file():
            raise NoModel(f"{named} is no file")
        return named
    path = cache / MODEL
    if path.is_file() and _digest(path) == sha256:
        return path
    found = sorted(parts.glob(f"{MODEL}.*"))
    if not found:
        broken = f"{MODEL} in {cache.name} is not the whole file" if path.is_file() else f"{MODEL} is not in {cache.name}"
        raise NoModel(f"{broken}, no part of it is in {parts.name}, and --model names none")
    if (there := sum(part.stat().st_size for part in found)) < nbytes:
        names = ", ".join(part.suffix for part in found)
        raise NoModel(f"the parts {names} in {parts.name} have {there:,} of {nbytes:,} bytes: bring the others too")
    cache.mkdir(parents=True, exist_ok=True)
    joined = path.with_suffix(".joined")
    with joined.open("wb") as target:
        for part in found:
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)
    if (digest := _digest(joined)) != sha256:
        joined.unlink()
        raise NoModel(f"the parts in {parts.name}, joined, have SHA-256 {digest}, not {sha256}: split the file again")
    joined.replace(path)
    return path


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
