"""What times of the generated kernels depend on beside the GPU: the text of what writes them, and Triton.

In: nothing. Out: a short text, another one whenever one of these has changed. Milliseconds.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from pathlib import Path

WINGS = ("layout", "tiles", "writer", "on_triton")


@lru_cache(maxsize=1)
def triton_kernels_version() -> str:
    """Of the files as they were when first asked, and of Triton."""
    import triton

    digest = hashlib.sha256()
    for wing in WINGS:
        for path in sorted((Path(__file__).parents[1] / wing).glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{digest.hexdigest()[:12]}, triton {triton.__version__}"
