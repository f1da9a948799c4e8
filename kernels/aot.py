"""Compile generated kernels for GPUs that are not here, and read what they would use: registers, stack, shared memory.

In: jobs and a compute capability (80, 90). Out: a `Resources` per kernel. Compilation runs in another process with a time limit, because
it does not work where Triton interprets, and because a bad tile can keep the assembler busy for minutes. Run as a module it reads
requests from standard input.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from einpage.einsum_front.dtype import DType
from einpage.einsum_front.job import GatherJob, Job
from einpage.kernels.triton_jobs import launches_of
from einpage.kernels.triton_target import Target

SHARED_LIMIT = {80: 166_912, 90: 232_448}
"""Bytes of shared memory one program may have, by compute capability; the compiler does not refuse more."""
_TYPE = {DType.FP32: "*fp32", DType.BF16: "*bf16", DType.FP16: "*fp16", DType.INT32: "*i32", DType.INT64: "*i64"}


@dataclass(frozen=True, slots=True)
class Resources:
    """What a compiled kernel uses, per program (shared) or thread (the rest)."""

    name: str
    capability: int
    registers: int
    stack_bytes: int
    shared_bytes: int

    @property
    def fits(self) -> bool:
        return self.shared_bytes <= SHARED_LIMIT[self.capability]


def resources(jobs: Sequence[Job], capability: int, timeout_s: float = 300.0) -> list[Resources]:
    """Compile every kernel of `jobs` for sm_`capability`. Raises CalledProcessError or TimeoutExpired where that fails."""
    requests = []
    for job in jobs:
        if isinstance(job, GatherJob):
            continue
        for launch in launches_of(job, Target(capability)):
            types = [_TYPE[job.reads[i].dtype] for i, _, _ in launch.pointers] + [_TYPE[job.result.dtype]] + ["i32"] * len(launch.starts)
            requests.append(
                {
                    "name": job.result.name,
                    "text": launch.text,
                    "types": types,
                    "warps": launch.tiles.warps,
                    "stages": launch.tiles.stages,
                    "capability": capability,
                }
            )
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "einpage.kernels.aot"],
        input=json.dumps(requests),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the ahead-of-time compiler failed:\n{done.stderr[-4000:]}")
    return [Resources(**r) for r in json.loads(done.stdout)]


def _compile(request: dict[str, Any]) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from einpage.kernels.triton_build import build

    function = build(request["text"])
    signature = dict(zip(function.arg_names, request["types"], strict=True))
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    compiled = triton.compile(
        ASTSource(function, signature, {}, aligned),
        target=GPUTarget("cuda", request["capability"], 32),
        options={"num_warps": request["warps"], "num_stages": request["stages"]},
    )
    registers, stack = _usage(compiled.asm["cubin"])
    return Resources(request["name"], request["capability"], registers, stack, compiled.metadata.shared)


def _usage(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack) a thread, as cuobjdump reads them: what spilled, and 32 bytes for the long way round of sin and cos."""
    import triton

    tool = next(Path(triton.__file__).parent.rglob("cuobjdump"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
        f.write(cubin)
        f.flush()
        text = subprocess.run([str(tool), "-res-usage", f.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


if __name__ == "__main__":
    json.dump([asdict(_compile(request)) for request in json.load(sys.stdin)], sys.stdout)
