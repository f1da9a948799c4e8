"""The Python API, in the command line's words: `einpage.load_spec`, `einpage.plan`, `einpage.run`.

model = einpage.load_spec("specs/llama.yaml", weights="model.gguf", prompt="The capital of France is")
print(einpage.plan(model, budget="64MiB").report["bound_ratio"])
print(einpage.run(model, budget="64MiB").facts["top"])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import parse_bytes
from einpage.exec.build.judged_plan import Planned, plan_program
from einpage.exec.build.model import Model, open_model
from einpage.exec.build.request import PlanRequest
from einpage.exec.load.inputs import TokenLists, encode_prompts
from einpage.exec.load.tokenizer import load_tokenizer
from einpage.memplan.problem.machine import Machine
from einpage.memplan.problem.profile import load_machine

if TYPE_CHECKING:
    from einpage.exec.run.prepared import RunResult


def load_spec(
    spec: str | Path,
    *,
    set: Mapping[str, str | int | float] | None = None,
    weights: str | Path | None = None,
    prompt: str | Sequence[str] | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
) -> Model:
    """A spec with every size known: from `set`, else from the prompt or tokens (`batch`, `seq`), else from the weights' metadata.

    Raises SpecError, UsageError, WeightError or InputError.
    """
    where = None if weights is None else str(weights)
    if prompt is not None and tokens is not None:
        raise UsageError("prompt and tokens both give the text; use one")
    if prompt is not None:
        if where is None:
            raise UsageError("a prompt needs weights: the tokenizer is theirs")
        tokenizer = load_tokenizer(where)
        return open_model(spec, set, where, encode_prompts(tokenizer, [prompt] if isinstance(prompt, str) else prompt), tokenizer)
    lists = None if tokens is None else TokenLists(tuple(tuple(row) for row in tokens), "tokens")
    return open_model(spec, set, where, lists)


def plan(
    model: Model,
    *,
    budget: str | int,
    machine: str | Machine = "cpu",
    dtype: str = "fp32",
    outputs: Sequence[str] | None = None,
    split: Mapping[str, int] | None = None,
    no_fuse: Sequence[str] = (),
    effort: int = 0,
    warm: bool = False,
    passes: int | None = None,
) -> Planned:
    """A judged plan and its report; with `passes`, of one pass that ends as it began.

    Raises DoesNotFit (with the smallest budget that works) or UsageError. Imports no torch."""
    began = perf_counter()
    request = PlanRequest(
        budget_bytes=parse_bytes(budget),
        dtype=DType(dtype),
        outputs=tuple(outputs or ()),
        pieces=_letters(split),
        no_fuse=tuple(no_fuse),
        effort=effort,
        warm=warm,
        passes=passes,
    )
    return plan_program(model.program, _machine_named(machine), request, began)


def run(
    model: Model,
    *,
    budget: str | int,
    machine: str | Machine | None = None,
    dtype: str = "fp32",
    outputs: Sequence[str] = (),
    split: Mapping[str, int] | None = None,
    no_fuse: Sequence[str] = (),
    device: str = "auto",
    dispatch: str = "dynamic",
    inputs: Mapping[str, NDArray[np.generic]] | None = None,
    perplexity: bool = False,
    effort: int = 0,
    passes: int | None = None,
) -> RunResult:
    """Plan and run: `.outputs` by name, `.facts` as `run --json` prints them. `device` as in `--device`.

    Raises what `plan` and the engines raise; UsageError where the device is not there.
    """
    from einpage.exec.run.choose import Dispatch, device_for, kernels_for, measured_machine
    from einpage.exec.run.options import RunOptions
    from einpage.exec.run.prepared import run_model

    kind = device_for(device).kind
    request = PlanRequest(
        budget_bytes=parse_bytes(budget),
        dtype=DType(dtype),
        outputs=tuple(outputs),
        pieces=_letters(split),
        no_fuse=tuple(no_fuse),
        effort=effort,
        passes=passes,
    )
    options = RunOptions(request, perplexity, Dispatch(dispatch), kind, kernels_for("auto", kind))
    profile = measured_machine(kind) if machine is None else _machine_named(machine)
    return run_model(model, profile, options, inputs)


def _letters(split: Mapping[str, int] | None) -> dict[Letter, int]:
    return {Letter(letter): n for letter, n in (split or {}).items()}


def _machine_named(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else load_machine(machine)
