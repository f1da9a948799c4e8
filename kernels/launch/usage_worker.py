"""Compiles kernels for GPUs that are not here, one request a line of standard input, one answer a line of standard output.

A process of its own, because compilation does not work where Triton interprets and because a bad tile can keep the assembler busy for
minutes: whoever asks waits as long as it likes and ends the process then. Torch is not imported.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from einpage.kernels.launch.build import build
from einpage.kernels.launch.machine_code import MachineCode, most_in_a_loop

TENSOR_CORE = r"\b(?:mma\.sync|wgmma\.mma_async)"
ENGINE_LOAD = r"\bcp\.async\.bulk\.tensor\.\w+\.shared"
ENGINE_STORE = r"\bcp\.async\.bulk\.tensor\.\w+\.global"


def compile_one(request: dict[str, Any]) -> MachineCode:
    """What a kernel uses, or the error that compiling it raised."""
    try:
        function = build(request["text"])
        signature = dict(zip(function.arg_names, request["types"], strict=True))
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
        compiled = triton.compile(
            ASTSource(function, signature, {}, aligned),
            target=GPUTarget("cuda", request["capability"], 32),
            options={"num_warps": request["warps"], "num_stages": request["stages"]},
        )
        registers, stack_bytes, spills = _registers(compiled.asm["cubin"])
        ptx = compiled.asm["ptx"]
        tensor_core, narrowest_copy = _instructions(ptx)
        return MachineCode(
            registers=registers,
            stack_bytes=stack_bytes,
            spills=spills,
            shared_bytes=compiled.metadata.shared,
            tensor_core=tensor_core,
            narrowest_copy=narrowest_copy,
            loop_tensor_core=most_in_a_loop(ptx, TENSOR_CORE),
            loop_engine_loads=most_in_a_loop(ptx, ENGINE_LOAD),
            engine_stores=len(re.findall(ENGINE_STORE, ptx)),
        )
    except Exception as error:  # whatever the compiler raises is the answer
        return MachineCode(error=f"{type(error).__name__}: {error}"[-2000:])


def _registers(cubin: bytes) -> tuple[int, int, int]:
    """Registers and bytes of stack a thread, and how many instructions spill to it; sin and cos take stack and spill nothing."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        found = re.search(r"REG:(\d+) STACK:(\d+)", _cuobjdump("-res-usage", f.name))
        assert found is not None
        spills = len(re.findall(r"\b(?:STL|LDL)\b", _cuobjdump("-sass", f.name))) if int(found[2]) else 0
    return int(found[1]), int(found[2]), spills


def _instructions(ptx: str) -> tuple[int, int]:
    """How many tensor-core instructions there are, and the fewest bytes that an asynchronous copy moves (0 where there is none)."""
    copies = [int(n, 0) for n in re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx)]
    return len(re.findall(TENSOR_CORE, ptx)), min(copies, default=0)


def _cuobjdump(what: str, path: str) -> str:
    tool = next(Path(triton.__file__).parent.rglob("cuobjdump"))
    return subprocess.run([str(tool), what, path], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(compile_one(json.loads(line)))), flush=True)
