"""Fixtures for every test, and what Triton's interpreter needs: it must be switched on before any kernel's module is imported.

In Triton 3.6 to 3.9 the interpreter keeps bf16 as bit patterns and is silently wrong with them: `tl.dot` multiplies the patterns and a
cast to bf16 cuts
bits off. Both are put right here, in the interpreter only; compiled kernels are not touched.
"""

from __future__ import annotations

import faulthandler
import gc
import os
from collections.abc import Generator, Iterator

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads of torch that wait do not take the cores of the other workers
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what the code says now (make golden)")


def pytest_collection_finish() -> None:
    """Take what the session itself holds (libraries, 9,000 tests) from the garbage collector: a run that has memory given back searches
    every object, which takes most of a second here and next to nothing in a process of a user's."""
    gc.collect()
    gc.freeze()


GRACE_S = 60.0
STDERR = pytest.StashKey[int]()
"""The descriptor, before what tests write to it is captured."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """What pytest-timeout cannot end, for it raises an exception in the main thread (a loop of compiled code, a test that uses its timer),
    ends its process a minute later, with where every thread was."""
    marker, ini = item.get_closest_marker("timeout"), item.config.getini("timeout")
    seconds = item.config.getoption("timeout") or (marker.args[0] if marker else float(ini))
    faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=item.config.stash[STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


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
