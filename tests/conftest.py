"""Fixtures for every test, and what Triton's interpreter needs: it must be switched on before any kernel's module is imported.

In Triton 3.6 to 3.9 the interpreter keeps bf16 as bit patterns and is silently wrong with them: `tl.dot` multiplies the patterns and a
cast to bf16 cuts
bits off. Both are put right here, in the interpreter only; compiled kernels are not touched.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code says now (make golden)")


def pytest_collection_finish() -> None:
    """Take what the session itself holds (libraries, 9,000 tests) from the garbage collector: a run that has memory given back searches
    every object, which takes most of a second here and next to nothing in a process of a user's."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a run caches goes to no user's folder, unless EINPAGE_CACHE says where; the workers of a session share it."""
    with pytest.MonkeyPatch.context() as patch:
        if "EINPAGE_CACHE" not in os.environ:
            base = tmp_path_factory.getbasetemp()
            patch.setenv("EINPAGE_CACHE", str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _interpreter_knows_bf16() -> None:
    """Nothing, where Triton is absent or not interpreting."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        try:
            from triton_bf16 import mend
        except ImportError:
            return
        mend()
