"""The GPU at hand: which tables of tiles kernels are written by, and whether Triton's kernels can run on it at all."""

from __future__ import annotations

import os

import torch

from einpage.kernels.tiles.target import AS_IT_IS, Choices, Target, table_of
from einpage.kernels.tiles.tiles import SHARED_LIMIT


def current_target(choices: Choices = AS_IT_IS) -> Target:
    """The GPU at hand; the default where there is none or Triton's kernels are interpreted."""
    if os.environ.get("TRITON_INTERPRET") == "1" or not torch.cuda.is_available():
        return Target(choices=choices)
    major, minor = torch.cuda.get_device_capability()
    multiprocessors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return Target(table_of(10 * major + minor, shared_bytes()), multiprocessors=multiprocessors, choices=choices)


def shared_bytes() -> int:
    """Of shared memory that one program may have on the GPU at hand. Raises whatever Triton does where it does not work."""
    from triton.runtime import driver

    return int(driver.active.utils.get_device_properties(torch.cuda.current_device())["max_shared_mem"])


def why_not_triton() -> str | None:
    """Why compiled kernels cannot run on the GPU at hand; None where they can."""
    try:
        shared = shared_bytes()
    except Exception as error:  # no Triton, no C compiler, a driver it does not know: whatever it is, no kernel will run
        return f"Triton does not work here: {type(error).__name__}: {error}"
    least = min(SHARED_LIMIT.values())
    if shared < least:
        return f"{torch.cuda.get_device_name(0)} has {shared} bytes of shared memory a program; tiles are chosen for {least} and more"
    return None
