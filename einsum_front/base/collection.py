"""Python's search for garbage cycles, paused where a large graph is built: there are none, and each search visits all of it.

A seventh of the time to refuse a budget for 500 layers went into it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def garbage_collection_paused() -> Iterator[None]:
    """No search for garbage cycles inside; also a decorator. As it was before, afterwards."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()
