"""What a kernel's steps allocate of torch's allocator."""

from __future__ import annotations

import torch
from torch.profiler import ProfilerActivity, profile

from einpage.kernels.instructions.torch_kernel import TorchKernel
from kernels_naive import Case


def allocated_bytes(call: TorchKernel, case: Case, out: torch.Tensor) -> int:
    """The most bytes that torch's allocator, from which oneDNN takes its own, had given out at once."""
    operands = case.operands()
    call(operands, out, None)  # the first call makes what later ones find again
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call(operands, out, None)
    assert found.profiler is not None
    live = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    assert peak > 0, "the profiler saw nothing allocated"
    return peak
