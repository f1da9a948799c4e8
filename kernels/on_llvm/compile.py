"""LLVM's intermediate representation to machine code of this processor, by llvmlite: milliseconds a function, kept while the process runs.

In: a text and the name of its function, whose parameters are addresses and 64-bit numbers. Out: what calls it, with the interpreter's lock
released, or held, where a call is shorter than it may take to get the lock back from another engine's thread. Where llvmlite is missing, or
the processor converts no f16, there is none: whoever asks has another way.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, TypeAlias

NativeCall: TypeAlias = Callable[..., None]
_lock = Lock()


@cache
def why_not_llvm() -> str | None:
    """Why no function can be compiled here; None where it can."""
    try:
        import llvmlite.binding as llvm  # type: ignore[import-untyped]
    except ImportError as error:
        return f"llvmlite cannot be imported ({error})"
    with _lock:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    if platform.machine() in ("x86_64", "AMD64"):
        return None if llvm.get_host_cpu_features().get("f16c") else "this processor converts no f16"
    return None if platform.machine() in ("aarch64", "arm64") else f"{platform.machine()} was never tried"


def compiled(text: str, name: str, addresses_and_numbers: str, holds_lock: bool = False) -> NativeCall:
    """The function `name` of `text`; a `p` for each address among its parameters and an `n` for each number, in order."""
    kinds = {"p": ctypes.c_void_p, "n": ctypes.c_int64}
    make = ctypes.PYFUNCTYPE if holds_lock else ctypes.CFUNCTYPE
    return make(None, *(kinds[kind] for kind in addresses_and_numbers))(_address(text, name))


@cache
def _address(text: str, name: str) -> int:
    """Of the machine code."""
    assert why_not_llvm() is None
    import llvmlite.binding as llvm

    with _lock:
        module: Any = llvm.parse_assembly(text)
        module.verify()
        cpu, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        machine: Any = llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=3)
        engine: Any = llvm.create_mcjit_compiler(module, machine)
        engine.finalize_object()
        address: int = engine.get_function_address(name)
        _engines.append(engine)
    return address


_engines: list[Any] = []
"""Their machine code lives as long as they do."""
