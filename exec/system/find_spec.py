"""Where the file of a spec lies. In: a path, or the name of a spec that ships with einpage. Out: a path.

A file at hand comes first: `llama` is the shipped spec unless the working directory holds a file of that name.
"""

from __future__ import annotations

from functools import cache
from os.path import exists, isfile
from pathlib import Path

from einpage.einsum_front.base.errors import UsageError, did_you_mean, listing

SHIPPED = Path(__file__).parents[2] / "specs"


@cache
def spec_names() -> tuple[str, ...]:
    """The specs that ship, sorted."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def spec_path(spec: str | Path) -> Path:
    """The file of `spec`. Raises UsageError for a name that is neither a file nor a shipped spec; a path that leads nowhere is returned as
    it is, unless a spec of that name ships.
    """
    path, names = Path(spec), spec_names()
    if isfile(path):
        return path
    if str(spec) in names:
        return SHIPPED / f"{spec}.yaml"
    if path.name == str(spec) and not path.suffix and not exists(path):
        cure = did_you_mean(str(spec), names)
        raise UsageError(f"no file {str(spec)!r}, and no spec of that name ships{f'; {cure}' if cure else ''} (shipped: {listing(names)})")
    if path.stem in names and not exists(path):
        raise UsageError(f"cannot read the spec {path}: there is no such file; the spec that ships is called `{path.stem}`")
    return path
