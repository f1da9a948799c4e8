"""Run in a process of its own, with a stub of the CUDA driver: each kernel launched by Triton's own dispatch, and as it is bound.

Prints a line of JSON a kernel: whether all that reached the driver was the same, how many tensor maps were made by each, and what a launch
took. The environment has the folder of the stub (TRITON_LIBCUDA_PATH, LD_LIBRARY_PATH) and no TRITON_INTERPRET.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
import triton
from triton.backends.nvidia.driver import CudaDriver

from einpage.kernels.launch.kernel import TritonKernel, triton_kernel
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import Tiles
from kernels_build import ld, view
from kernels_cases import BF, CONTRACTS, contract
from kernels_maps import MAPS
from kernels_naive import Case

STREAM = 0x1234
PRODUCTS = ("project_fp16", "gated_bf16", "batched_bf16")
BYTES = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8}


class Stub:
    """The library that Triton has loaded, seen from Python."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)

    def expect(self, sizes: list[int]) -> None:
        """How many bytes each parameter has."""
        ctypes.c_int.in_dll(self._library, "stub_count").value = len(sizes)
        (ctypes.c_int * 64).in_dll(self._library, "stub_sizes")[: len(sizes)] = sizes

    def number(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, name).value

    def last(self) -> tuple[bytes, bytes]:
        """The configuration and the parameters of the last launch."""
        values = (ctypes.c_ubyte * (64 * 128)).in_dll(self._library, "stub_values")
        return bytes((ctypes.c_uint64 * 8).in_dll(self._library, "stub_config")), bytes(values)


def parameter_sizes(compiled: Any) -> list[int]:
    """Of the kernel's parameters as the driver gets them: a descriptor is its map, its shape and its strides; a constant is none."""
    found: list[int] = []
    for kind in compiled.src.signature.values():
        if kind.startswith("tensordesc"):
            rank = kind[kind.index("[") :].count(",") + 1
            found += [128, *[4] * rank, *[8] * rank]
        elif kind != "constexpr":
            found.append(8 if kind.startswith("*") else BYTES[kind])
    return found


def seconds_each(call: Callable[[], object], times: int = 2000) -> float:
    began = perf_counter()
    for _ in range(times):
        call()
    return (perf_counter() - began) / times


def compared(stub: Stub, name: str, case: Case, kernel: TritonKernel) -> dict[str, object]:
    operands, result = case.operands(), case.poisoned()
    same, maps = True, [0, 0]
    slow: list[str] = []
    took = [0.0, 0.0]
    for function, launch in kernel.launches:
        arguments, options = kernel._arguments(launch, operands, result)
        compiled = function.warmup(*arguments, grid=(launch.programs,), **options)
        stub.expect(parameter_sizes(compiled))
        before = stub.number("stub_maps")
        function[(launch.programs,)](*arguments, **options)
        by_triton = stub.last()
        maps[0] += stub.number("stub_maps") - before
        took[0] += seconds_each(lambda f=function, p=launch.programs, a=arguments, o=options: f[(p,)](*a, **o))  # type: ignore[misc]
    bound = kernel.bind(operands, result, STREAM)
    launches, before = stub.number("stub_launches"), stub.number("stub_maps")
    bound.call()
    same = stub.last() == by_triton and stub.number("stub_launches") - launches == len(kernel.launches)
    bound.call()
    maps[1] = stub.number("stub_maps") - before
    took[1] = seconds_each(bound.call)
    slow += [bound.why_slow] if bound.why_slow is not None else []
    return {"name": name, "same": same, "maps": maps, "slow": slow, "us": [round(t * 1e6, 2) for t in took]}


def square() -> Case:
    """A product whose factors the copy engine reads."""
    reads = (view("h", 64, 192, dtype=BF), view("w", 128, 192, dtype=BF))
    return contract(ld("h", *"sm"), ld("w", *"fm"), "m", "sf", {"s": 64, "f": 128, "m": 192}, reads, dtype=BF)


def main(library: str) -> None:
    active = CudaDriver()
    active.get_current_device = lambda: 0
    active.set_current_device = lambda device: None
    active.get_device_capability = lambda device=0: (9, 0)
    active.get_current_stream = lambda device: STREAM
    triton.runtime.driver.set_active(active)
    stub = Stub(library)
    by_descriptor = Target(90, product=Tiles(64, 64, 64, 4, 3, descriptors=True))
    names: list[tuple[str, Callable[[], Case], Target]] = [
        *((name, MAPS[name], Target(90)) for name in ("rms_norm", "rotation")),
        *((name, CONTRACTS[name], by_descriptor) for name in PRODUCTS),
        ("square", square, by_descriptor),
    ]
    for name, make, target in names:
        case = make()
        kernel = triton_kernel(case.job, target)
        assert isinstance(kernel, TritonKernel)
        print(
            json.dumps({**compared(stub, name, case, kernel), "descriptors": sum(len(x.descriptors) for _, x in kernel.launches)}),
            flush=True,
        )


if __name__ == "__main__":
    torch.manual_seed(0)
    main(sys.argv[1])
