"""LLVM's intermediate representation to machine code of this processor, by llvmlite: some 15 ms a function, kept while the process runs,
and in a store for the next process where there is one.

In: a text and the name of its function, whose parameters are addresses and 64-bit numbers. Out: what calls it, with the interpreter's lock
released, or held, where a call is shorter than it may take to get the lock back from another engine's thread. Where llvmlite is missing, or
the processor converts no f16, there is none: whoever asks has another way. What a store holds is an object file, which is loaded as one
that was compiled just now is; its key is a digest of all that it follows from.

    text ──► key ──► store ──┬── found ───────────────────────► object file ──► linked into the process ──► address
                             └── nothing ──► compiled ──► store ──┘
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, Protocol, TypeAlias

NativeCall: TypeAlias = Callable[..., None]
OPTIMISATION = 3
"""LLVM's level."""


class CodeStore(Protocol):
    """Keeps object files between processes, and may lose any."""

    def read(self, key: str) -> bytes | None:
        """What was written for `key`, whole, or None."""

    def write(self, key: str, data: bytes) -> None:
        """Keep `data` for `key`, if that can be done."""


_lock = Lock()
_stores: list[CodeStore] = []
"""The one in use, if any."""


def store_machine_code_in(store: CodeStore | None) -> None:
    """Of functions compiled from now on; None: in no store."""
    with _lock:
        _stores[:] = [] if store is None else [store]


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
        engine: Any = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
        code = _object_file(text)
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        engine.finalize_object()
        address: int = engine.get_function_address(name)
        _loaded.append((engine, code))
    return address


def _object_file(text: str) -> bytes:
    """Of the store, or compiled and put there."""
    key = code_key(text)
    for store in _stores:
        if (found := store.read(key)) is not None:
            return found
    code = object_file(text)
    for store in _stores:
        store.write(key, code)
    return code


def code_key(text: str) -> str:
    """A digest of all that the machine code of `text` follows from."""
    import llvmlite

    told = (llvmlite.__version__, *_processor(), str(OPTIMISATION), text)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def object_file(text: str) -> bytes:
    """`text` compiled for this processor: an ELF file or what the system has in its place."""
    import llvmlite.binding as llvm

    module: Any = llvm.parse_assembly(text)
    module.verify()
    code: bytes = _target_machine().emit_object(module)
    return code


@cache
def _processor() -> tuple[str, str, str, str]:
    """LLVM's version, the system, the processor and its features, as LLVM calls them."""
    import llvmlite.binding as llvm

    version = ".".join(map(str, llvm.llvm_version_info))
    return version, llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def _target_machine() -> Any:
    import llvmlite.binding as llvm

    _, triple, processor, features = _processor()
    return llvm.Target.from_triple(triple).create_target_machine(cpu=processor, features=features, opt=OPTIMISATION)


_loaded: list[tuple[Any, bytes]] = []
"""Engines, whose machine code lives as long as they do, and the object files that they were given."""
