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
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from einpage.kernels.launch.build import build

NOTHING = {"registers": 0, "stack_bytes": 0, "spills": 0, "shared_bytes": 0, "tensor_core": 0, "narrowest_copy": 0, "error": ""}
"""What a kernel uses that does not compile; an answer says all of these."""


def compile_one(request: dict[str, Any]) -> dict[str, Any]:
    """What a kernel uses: registers, stack, spills, shared memory; or the error that compiling it raised."""
    try:
        function = build(request["text"])
        signature = dict(zip(function.arg_names, request["types"], strict=True))
        aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
        compiled = triton.compile(
            ASTSource(function, signature, {}, aligned),
            target=GPUTarget("cuda", request["capability"], 32),
            options={"num_warps": request["warps"], "num_stages": request["stages"]},
        )
        return {**NOTHING, **_usage(compiled.asm["cubin"]), **_instructions(compiled.asm["ptx"]), "shared_bytes": compiled.metadata.shared}
    except Exception as error:  # whatever the compiler raises is the answer
        return {**NOTHING, "error": f"{type(error).__name__}: {error}"[-2000:]}


def _usage(cubin: bytes) -> dict[str, int]:
    """Registers and bytes of stack a thread, and how many instructions spill to it; sin and cos take stack and spill nothing."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        found = re.search(r"REG:(\d+) STACK:(\d+)", _cuobjdump("-res-usage", f.name))
        assert found is not None
        spills = len(re.findall(r"\b(?:STL|LDL)\b", _cuobjdump("-sass", f.name))) if int(found[2]) else 0
    return {"registers": int(found[1]), "stack_bytes": int(found[2]), "spills": spills}


def _instructions(ptx: str) -> dict[str, int]:
    """How many tensor-core instructions there are, and the fewest bytes that an asynchronous copy moves (0 where there is none)."""
    copies = [int(n, 0) for n in re.findall(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], (\w+)", ptx)]
    return {"tensor_core": len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async)", ptx)), "narrowest_copy": min(copies, default=0)}


def _cuobjdump(what: str, path: str) -> str:
    tool = next(Path(triton.__file__).parent.rglob("cuobjdump"))
    return subprocess.run([str(tool), what, path], capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(compile_one(json.loads(line))), flush=True)
