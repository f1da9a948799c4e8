"""The tiles that were measured on a GPU, kept beside the profiles: where, and what a run reads.

In: a GPU's name. Out: `MeasuredTiles`, or none; and, where a file is there that cannot be used, the line that says so: the kernels' own
tables are used then.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from einpage.einsum_front.base.errors import UsageError, one_line
from einpage.einsum_front.base.files import read_bytes, write_atomically
from einpage.exec.system.cache_folder import cache_folder
from einpage.kernels.prepare import triton_version
from einpage.kernels.tiles.measured_tiles import MOST_BYTES, MeasuredTiles, measured_tiles_of

MEASURES = "bench/gpu.sh --parts tiles"


def tiles_path(device: str) -> Path:
    """Where the tiles measured on `device`, a GPU's name, are kept."""
    word = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")[:40]
    return cache_folder() / "tiles" / f"{word}-{hashlib.sha256(device.encode()).hexdigest()[:8]}.json"


def kept_tiles(device: str) -> tuple[MeasuredTiles | None, str | None]:
    """The tiles measured on `device`, and what is wrong with the file that has them. No file is nothing wrong."""
    path = tiles_path(device)
    try:
        return measured_tiles_of(read_bytes(path, MOST_BYTES), device, triton_version()), None
    except FileNotFoundError:
        return None, None
    except (UsageError, OSError, ValueError) as error:
        why = one_line((error.strerror if isinstance(error, OSError) else None) or str(error))
        return None, f"the tiles measured on this GPU are not used, the kernels' own are ({path}: {why}); `{MEASURES}` measures them again"


def save_tiles(tiles: MeasuredTiles) -> Path:
    """Write `tiles` where `kept_tiles` reads them; the path. Raises UsageError where that cannot be written."""
    path = tiles_path(tiles.device)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {path.parent}: {error.strerror}; set EINPAGE_CACHE to another one") from error
    write_atomically(path, tiles.text())
    return path
