"""The Python API, with the command line's arguments by name: `einpage.load_spec`, `einpage.plan`, `einpage.run` (docs/python.md).

model = einpage.load_spec("llama", weights="model.gguf", prompt="The capital of France is")
print(einpage.plan(model, budget="64MiB").report.bound_ratio)
print(einpage.run(model, budget="64MiB").facts["top"])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import RUN_DTYPES
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

DEVICES = ("auto", "cpu", "cuda")
Member = TypeVar("Member", bound=Enum)


def load_spec(
    spec: str | Path,
    *,
    set: Mapping[str, str | int | float] | None = None,
    weights: str | Path | None = None,
    prompt: str | Sequence[str] | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
) -> Model:
    """A spec, a file or the name of one that ships, with every size known: from `set`, else from the text at hand (`batch`, `seq`), else
    from the weights' metadata, else as the spec says.

    `weights` is a path or `random:SEED`; nothing of them is loaded yet. The text is `prompt`, or `tokens`: a list of ids for each sequence.
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

    `budget` is bytes, or text as `8GiB`; `machine` a profile's name, a file or a Machine; `dtype` fp32, bf16 or fp16; `split` how many
    pieces a letter is cut into, where the budget is not to choose; `effort` 0 to 3. In the report sizes are bytes, times seconds. torch is
    not imported. Raises DoesNotFit (with the smallest budget that works) or UsageError.
    """
    began = perf_counter()
    request = PlanRequest(
        budget_bytes=parse_bytes(budget),
        dtype=_choice(RUN_DTYPES, dtype, "dtype"),
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
    """Plan, load the weights, run: `.outputs` by name, as tensors in the declared shapes; `.facts` as `run --json` prints them.

    As `plan`; without `machine` for the machine at hand, which is measured once. `device` is auto, cpu or cuda; `dispatch` dynamic, static
    or serial; `inputs` are arrays by name in the declared shapes, for all but the tokens that the model was loaded with.
    Raises what `plan` and the engines raise; InputError for an input that is missing or of another shape; UsageError for a model without
    weights, or where the device is not there.
    """
    from einpage.exec.run.choose import Dispatch, device_for, kernels_for, measured_machine
    from einpage.exec.run.options import RunOptions
    from einpage.exec.run.prepared import run_model

    if model.resolved is None:
        raise UsageError("a model without weights can be planned, not run: give load_spec its weights")
    if device not in DEVICES:
        raise UsageError(f"device {device!r}: expected {' or '.join(DEVICES)}")
    kind = device_for(device).kind
    request = PlanRequest(
        budget_bytes=parse_bytes(budget),
        dtype=_choice(RUN_DTYPES, dtype, "dtype"),
        outputs=tuple(outputs),
        pieces=_letters(split),
        no_fuse=tuple(no_fuse),
        effort=effort,
        passes=passes,
    )
    options = RunOptions(request, perplexity, _choice(Dispatch, dispatch, "dispatch"), kind, kernels_for("auto", kind))
    profile = measured_machine(kind) if machine is None else _machine_named(machine)
    return run_model(model, profile, options, inputs)


def _choice(members: Iterable[Member], value: str, name: str) -> Member:
    """The member with that value. Raises UsageError, listing what there is."""
    member_by_value = {member.value: member for member in members}
    if value not in member_by_value:
        raise UsageError(f"{name} {value!r}: expected {' or '.join(member_by_value)}")
    return member_by_value[value]


def _letters(split: Mapping[str, int] | None) -> dict[Letter, int]:
    return {Letter(letter): n for letter, n in (split or {}).items()}


def _machine_named(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else load_machine(machine)
