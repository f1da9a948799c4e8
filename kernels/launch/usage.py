"""What generated kernels would use on GPUs that are not here: registers, spills, shared memory, as the compiler for them says.

In: jobs and a compute capability (80, 86, 90). Out: a `Resources` per kernel; kernels of equal text are compiled once. One process compiles
several, each within a time limit; where one takes longer, the process is ended and the kernel counts as not compiled.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import GatherJob, Job, results_of
from einpage.kernels.launch.kernel import launches_of
from einpage.kernels.launch.machine_code import MachineCode
from einpage.kernels.tiles.target import Target
from einpage.kernels.tiles.tiles import SHARED_LIMIT
from einpage.kernels.writer.launch import RESULT, Launch

START_S = 120.0
"""How long the compiling process may take to start."""
_TYPE = {DType.FP32: "*fp32", DType.BF16: "*bf16", DType.FP16: "*fp16", DType.INT32: "*i32", DType.INT64: "*i64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(MachineCode):
    """A compiled kernel and what it uses."""

    job: Job
    """The first that needs the kernel."""
    launch: Launch
    capability: int

    @property
    def stored_bytes(self) -> int:
        """Of a block of the result, what the copy engine writes."""
        return self.launch.stored_elements * self.job.result.dtype.nbytes if self.engine_stores else 0

    @property
    def fits(self) -> bool:
        """Whether it compiled, and takes no more shared memory than a program may have."""
        return not self.error and self.shared_bytes <= SHARED_LIMIT[self.capability]


def resources(jobs: Iterable[Job], target: Target, timeout_s: float = 60.0, skip: Collection[tuple[str, int, int]] = ()) -> list[Resources]:
    """Compile every kernel of `jobs` for `target`, each within `timeout_s` seconds, but for those whose `compiled_as` is in `skip`. Raises
    RuntimeError where no compiler starts."""
    requests: dict[str, tuple[Job, Launch]] = {}
    for job in jobs:
        if not isinstance(job, GatherJob):
            for launch in (x for x in launches_of(job, target) if x.compiled_as not in skip):
                requests.setdefault(json.dumps(_request(job, launch, target.capability)), (job, launch))
    compiler = Compiler()
    try:
        return [
            Resources(job=job, launch=launch, capability=target.capability, **compiler.ask(request, timeout_s))
            for request, (job, launch) in requests.items()
        ]
    finally:
        compiler.close()


def _request(job: Job, launch: Launch, capability: int) -> dict[str, Any]:
    types = [_TYPE[job.reads[i].dtype] for i, _, _ in launch.pointers]
    views = [job.result if d.operand == RESULT else job.reads[d.operand] for d in launch.descriptors]
    types += [f"tensordesc<{_TYPE[v.dtype][1:]}{[*d.block]}>" for v, d in zip(views, launch.descriptors, strict=True)]
    types += [_TYPE[view.dtype] for view in results_of(job)] + ["i32"] * len(launch.starts)
    options = {"warps": launch.tiles.warps, "stages": launch.tiles.stages, "capability": capability}
    return {"text": launch.text, "types": types, **options}


class Compiler:
    """The compiling process, started when first asked."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  (closed in close)

    def ask(self, request: str, timeout_s: float) -> dict[str, Any]:
        """The fields of a MachineCode."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(request + "\n")
        process.stdin.flush()
        answer = self._read(process, timeout_s)
        if answer is None:
            self._end()
            return {"error": f"no answer in {timeout_s:.0f} s"}
        found: dict[str, Any] = json.loads(answer)
        return found

    def close(self) -> None:
        """End the process, if it was started; of no use afterwards."""
        self._end()
        self._errors.close()

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "einpage.kernels.launch.usage_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
            start_new_session=True,
        )
        if self._read(self._process, START_S) != "ready\n":
            self._errors.seek(0)
            raise RuntimeError(f"the ahead-of-time compiler does not start:\n{self._errors.read()[-4000:]}")
        return self._process

    def _read(self, process: subprocess.Popen[str], timeout_s: float) -> str | None:
        """The next line of output; None where none comes in time. Answers are one line to one question, so nothing waits in a buffer."""
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            return process.stdout.readline() or None if selector.select(timeout_s) else None

    def _end(self) -> None:
        """End the process and the assembler it may have started."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process = None
