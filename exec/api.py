"""The Python API, with the command line's arguments by name: `einpage.load_spec`, `plan`, `run`, `open` and `train` (docs/python.md).

model = einpage.load_spec("llama", weights="model.gguf", prompt="The capital of France is")
print(einpage.plan(model, budget="64MiB").report.bound_ratio)
print(einpage.run(model, budget="64MiB").facts["top"])
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from einpage.checkpoints.match.resolve import open_weights
from einpage.checkpoints.text.tokenizer import TokenizerError, end_tokens, load_tokenizer
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import RUN_DTYPES
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import parse_bytes, shown
from einpage.einsum_front.graph.program import WeightsAs
from einpage.exec.load.inputs import encode_prompts, plain, token_lists
from einpage.exec.planning.judged_plan import Planned, plan_program
from einpage.exec.planning.model import Model, open_model, spec_for
from einpage.exec.planning.request import PlanRequest
from einpage.exec.system.arguments import check_arguments
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.memplan.horizons.recompute import Recompute
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.profile import load_machine

if TYPE_CHECKING:
    import torch

    from einpage.exec.run.open_model import OpenModel
    from einpage.exec.run.prepared import RunResult
    from einpage.exec.train.run import TrainResult
    from einpage.exec.train.trainer import StepDone

DEVICES = ("auto", "cpu", "cuda")
Member = TypeVar("Member", bound=Enum)


def load_spec(
    spec: str | Path,
    *,
    set: Mapping[str, str | int | float] | None = None,
    weights: str | Path | None = None,
    prompt: str | Sequence[str] | None = None,
    tokens: Sequence[Sequence[int]] | Sequence[int] | NDArray[np.integer] | None = None,
) -> Model:
    """Open a spec, a YAML file or the name of one that ships, with every size known: ready to be planned and, with `weights`, to be run.

    A size comes from `set`, else from the text at hand (`batch` sequences, `seq` of the longest), else from the checkpoint's metadata,
    else from the spec. `set` holds sizes and scalars by name; text is an expression of other sizes. `weights` is a .gguf or
    .safetensors file, an index or folder of shards, or `random:SEED`; only headers are read. The text is `prompt`, one or a batch, for
    the checkpoint's own tokenizer, or `tokens`, ids [batch][seq] (or of one sequence, [seq]) in lists, an array or a tensor; shorter
    sequences are padded on the right.

    Raises SpecError for the spec (with file, line and column), WeightError for a checkpoint that cannot be read or does not fit the
    spec, InputError for tokens that do not fit `set`, UsageError for arguments that exclude each other. torch is not imported.
    """
    check_arguments({"spec": spec, "set": set, "weights": weights}, optional=("set", "weights"))
    where = None if weights is None else str(weights)
    if prompt is not None and tokens is not None:
        raise UsageError("prompt and tokens both give the text; use one")
    if prompt is not None:
        if where is None:
            raise UsageError("a prompt needs weights: the tokenizer is theirs")
        prompts = _texts(prompt)
        tokenizer = load_tokenizer(where)
        return open_model(spec, set, where, encode_prompts(tokenizer, prompts), tokenizer)
    lists = None if tokens is None else token_lists(plain(tokens), "tokens")
    return open_model(spec, set, where, lists)


def plan(
    model: Model,
    *,
    budget: str | int,
    machine: str | Machine = "cpu",
    dtype: str = "fp32",
    weights_as: str | None = None,
    outputs: Sequence[str] | None = None,
    split: Mapping[str, int] | None = None,
    no_fuse: Sequence[str] = (),
    plan_seconds: float = 0.0,
    plan_steps: int | None = None,
    warm: bool = False,
    passes: int | None = None,
) -> Planned:
    """A plan of `model` in a device arena of `budget` bytes, judged, with its predicted time line, its bounds and its report.

    `budget` is bytes, or text as `8GiB`; `machine` a profile's name, a file or a Machine; `dtype` fp32, bf16 or fp16; `weights_as` the form
    in which weights wait and travel: "stored", as the checkpoint has them, or "run", in the run's dtype (None: stored on a CPU, where the
    checkpoint is quantised); `outputs` names (None: the first that the spec declares); `split` the pieces of letters for which the budget
    is not to choose; `no_fuse` fusions to leave out; `plan_seconds` for how long a faster plan is searched for at most (0: none), or
    `plan_steps` in how many steps. The device is empty before the first task, or with `warm` holds weights as far as they fit; with
    `passes` the plan ends with the tensors resident that it started with, and is run so many times.

    In the result `memgraph` is the plan, and `report` its figures under the names of `plan --json`: sizes in bytes, times in seconds.
    The same input in as many `report.plan_steps` gives the same plan. Raises DoesNotFit with the task, the bytes and the smallest budget
    that works (`misfit`), UsageError for options that are unknown or exclude each other. torch is not imported.
    """
    began = perf_counter()
    _check_model(model)
    check_arguments({"machine": machine, "warm": warm, "weights_as": weights_as}, optional=("weights_as",))
    profile = _machine_named(machine)
    request = _request(
        budget, dtype, _weights_as(weights_as, profile.is_cpu), outputs, split, no_fuse, plan_seconds, plan_steps, warm, passes
    )
    return plan_program(model.program, profile, request, began)


def run(
    model: Model,
    *,
    budget: str | int,
    machine: str | Machine | None = None,
    dtype: str = "fp32",
    weights_as: str | None = None,
    outputs: Sequence[str] | None = None,
    split: Mapping[str, int] | None = None,
    no_fuse: Sequence[str] = (),
    device: str = "auto",
    dispatch: str | None = None,
    inputs: Mapping[str, ArrayLike | torch.Tensor] | None = None,
    perplexity: bool = False,
    find_nan: bool = False,
    plan_seconds: float = 0.0,
    plan_steps: int | None = None,
    passes: int | None = None,
    fp32_products: str | None = None,
) -> RunResult:
    """Plan `model` as `plan` does, load its weights, and run it once, or `passes` times.

    Without `machine` the plan is for the machine at hand, which is measured once (about 25 s) and its profile cached. `device` is
    auto, cpu or cuda; `dispatch` dynamic (None), static or serial, with the same bits. `inputs` are arrays by name in the declared
    shapes (of numpy, tensors of torch on any device, or nested lists), for all but the tokens that the model was opened with.
    `perplexity` adds the output that has logits for every position [batch, seq, vocab]. That an output holds NaN or inf is in
    `report.warnings`; `find_nan` runs one node after the other, looks at every result, and names in `report.find_nan` the first task that
    it comes from. `fp32_products`, tf32x3 (None) or ieee, is how a GPU multiplies fp32.

    In the result `outputs` are CPU tensors by name in the declared shapes and the run's dtype, `report` what was predicted, counted and
    timed, `facts` the same as `run --json` prints it. Raises what `plan` raises; InputError for an input that is missing, unknown or of
    another shape; UsageError for a model without weights, or where the device is not available or smaller than the budget; DoesNotFit
    where the host has too little memory; NodeError where a node fails.
    """
    from einpage.exec.load.arrays import arrays
    from einpage.exec.run.choose import (
        DeviceKind,
        Dispatch,
        RunOptions,
        choices_for,
        device_for,
        dispatch_of,
        kernels_for,
        measured_machine,
    )
    from einpage.exec.run.prepared import run_model

    _check_model(model)
    arguments = {"machine": machine, "device": device, "dispatch": dispatch, "perplexity": perplexity, "find_nan": find_nan}
    arguments["weights_as"] = weights_as
    check_arguments(arguments, optional=("machine", "dispatch", "weights_as"))
    if model.resolved is None:
        raise UsageError("a model without weights can be planned, not run: give load_spec its weights")
    if device not in DEVICES:
        raise UsageError(f"device {device!r}: expected {' or '.join(DEVICES)}")
    kind = device_for(device).kind
    form = _weights_as(weights_as, kind is DeviceKind.CPU)
    request = _request(budget, dtype, form, outputs, split, no_fuse, plan_seconds, plan_steps, False, passes)
    asked = None if dispatch is None else _choice(Dispatch, dispatch, "dispatch").value
    choices, refused = choices_for(_fp32_products(fp32_products), kind, request.dtype)
    options = RunOptions(
        request,
        perplexity,
        dispatch_of(asked, find_nan),
        kind,
        kernels_for("auto", kind),
        find_nan=find_nan,
        choices=choices,
        tiles_refused=refused,
    )
    given = None if inputs is None else arrays(inputs)
    profile = (lambda: measured_machine(kind)) if machine is None else _machine_named(machine)
    return run_model(model, profile, options, given)


def open(
    spec: str | Path,
    weights: str | Path | None = None,
    *,
    budget: str | int | None = None,
    set: Mapping[str, str | int | float] | None = None,
    machine: str | Machine | None = None,
    dtype: str = "fp32",
    weights_as: str | None = None,
    split: Mapping[str, int] | None = None,
    no_fuse: Sequence[str] = (),
    device: str = "auto",
    dispatch: str | None = None,
    fp32_products: str | None = None,
    host_budget: str | int | None = None,
) -> OpenModel:
    """A model held open: its weights are loaded once, when they are first needed, and it answers as often as it is asked.

    `spec` and `weights` as `load_spec` has them; with `spec` alone, a folder or file of weights, the spec is that of those that ship whose
    math the checkpoint's metadata ask for. `budget` is the device arena (None: on a GPU what is free less 5 %, on the CPU a quarter of the
    free memory); with `host_budget` the host too is an arena of exactly so many bytes, and what fits neither is read from the disk (on a
    CPU alone); the other arguments are those of `run`.

        with einpage.open("model folder", budget="2GiB") as model:
            for piece in model.generate("The capital of France is"):
                print(piece, end="")

    `generate` gives text in pieces as it comes, `tokens` ids, `prefill` the spec's outputs as arrays. Raises UsageError where no spec is
    right for the checkpoint, WeightError, SpecError; what a prompt needs is planned when it is given.
    """
    from einpage.exec.run import choose
    from einpage.exec.run.open_model import OpenModel

    given = {"spec": spec, "weights": weights, "set": set, "machine": machine, "device": device, "dispatch": dispatch}
    check_arguments({**given, "weights_as": weights_as}, optional=("weights", "set", "machine", "dispatch", "weights_as"))
    where = str(spec if weights is None else weights)
    name = spec_for(where) if weights is None else spec
    if device not in DEVICES:
        raise UsageError(f"device {device!r}: expected {' or '.join(DEVICES)}")
    kind = choose.device_for(device).kind
    form = _weights_as(weights_as, kind is choose.DeviceKind.CPU)
    budget = choose.default_budget(kind)[0] if budget is None else budget
    request = _request(budget, dtype, form, None, split, no_fuse, host_budget=host_budget)
    choose.refuse_host_budget(kind, request.host_budget_bytes)
    asked = None if dispatch is None else _choice(choose.Dispatch, dispatch, "dispatch").value
    choices, refused = choose.choices_for(_fp32_products(fp32_products), kind, request.dtype)
    try:
        tokenizer, ends = load_tokenizer(where), end_tokens(where)
    except TokenizerError:
        tokenizer, ends = None, frozenset[int]()
    settings, checkpoint = dict(set or {}), open_weights(where)
    named = None if machine is None else _machine_named(machine)
    for told in filter(None, (refused, None if named is None else named.by_torch_alone())):
        warnings.warn(told, stacklevel=2)
    return OpenModel(
        spec=str(name),
        model_at=lambda sizes, tokens: open_model(name, {**settings, **sizes}, checkpoint, tokens, tokenizer),
        machine=choose.machine_source(kind, named, host_budget is not None),
        options=choose.RunOptions(
            request,
            dispatch=choose.dispatch_of(asked, False),
            dispatch_is_open=asked is None,
            device=kind,
            kernels=choose.kernels_for("auto", kind),
            choices=choices,
        ),
        tokenizer=tokenizer,
        ends=ends,
    )


def train(
    spec: str | Path,
    weights: str | Path,
    *,
    steps: int,
    data: str | None = None,
    tokens: Sequence[Sequence[int]] | Sequence[int] | NDArray[np.integer] | None = None,
    inputs: Mapping[str, ArrayLike | torch.Tensor] | None = None,
    budget: str | int | None = None,
    lr: float | None = None,
    weight_decay: float | None = None,
    schedule: str | None = None,
    warmup: int | None = None,
    batch: int | None = None,
    seq: int | None = None,
    micro_batches: int | None = None,
    set: Mapping[str, str | int | float] | None = None,
    machine: str | Machine | None = None,
    weights_as: str | None = None,
    split: Mapping[str, int] | None = None,
    device: str = "auto",
    dispatch: str | None = None,
    out: str | Path | None = None,
    checkpoint_every: int | None = None,
    resume: bool = False,
    dtype: str = "fp32",
    loss_scale: str | None = None,
    recompute: str = "never",
    watch: Callable[[StepDone], None] | None = None,
) -> TrainResult:
    """Train the weights of `spec`, whose `train:` says which, as `einpage train` does: `steps` steps. Raises as `run`.

    What is learned is a text, `data`, in sequences of `seq`; or `tokens`, lists of ids, each used whole, `batch` a step, again and again;
    or `inputs`, arrays by name in their shapes, or one a step. `budget` is bytes, a size, or a share as "40%" of what a step needs with
    room for everything. `lr` and `weight_decay` replace the spec's; `schedule` is constant (None), linear or cosine, after `warmup` steps.
    `micro_batches` splits a step's sequences. With the folder `out` a checkpoint is written every `checkpoint_every` steps and at the end,
    and weights; `resume` goes on from it. `loss_scale` is "none", "dynamic" (None: in fp16) or numbers ("start=1024,interval=100");
    `recompute` is never, fastest, all or ratio. `watch` is told of every step. Others are those of `run`. In the result `losses` has one
    number a step, `states` weights and what is kept for them by name (none with `out`), `facts()` what `train --json` prints.
    """
    from einpage.exec.load.arrays import arrays
    from einpage.exec.run.choose import DeviceKind, Dispatch, RunOptions, device_for, dispatch_of, kernels_for, measured_machine
    from einpage.exec.train.run import train_model
    from einpage.exec.train.saved import TrainOptions
    from einpage.exec.train.setup import TrainRequest, set_up

    numbers = {"steps": steps, "lr": lr, "weight_decay": weight_decay, "warmup": warmup, "batch": batch, "seq": seq}
    given = {"spec": spec, "weights": weights, "set": set, "machine": machine, "device": device, "dispatch": dispatch, "resume": resume}
    texts = {"weights_as": weights_as, "schedule": schedule, "data": data, "out": out, "budget": budget, "loss_scale": loss_scale}
    numbers |= {"micro_batches": micro_batches, "checkpoint_every": checkpoint_every}
    check_arguments({**given, **numbers, **texts, "recompute": recompute}, optional=[*numbers, *texts, "set", "machine", "dispatch"])
    if device not in DEVICES:
        raise UsageError(f"device {device!r}: expected {' or '.join(DEVICES)}")
    kind = device_for(device).kind
    how = TrainOptions(steps, None if out is None else Path(out), checkpoint_every, resume)
    request = _request(1, dtype, _weights_as(weights_as, kind is DeviceKind.CPU), None, split, (), recompute=recompute)
    asked = None if dispatch is None else _choice(Dispatch, dispatch, "dispatch").value
    setup = set_up(
        TrainRequest(
            spec, str(weights), how, dict(set or {}), data, "data", None if tokens is None else token_lists(plain(tokens), "tokens"),
            {} if inputs is None else arrays(inputs), budget, batch, seq, micro_batches, lr, weight_decay, schedule, warmup, loss_scale,
        ),
        RunOptions(request, dispatch=dispatch_of(asked, False), device=kind, kernels=kernels_for("auto", kind)),
    )  # fmt: skip
    how.prepare_folder()
    profile = (lambda: measured_machine(kind)) if machine is None else _machine_named(machine)
    return train_model(setup, profile, how, str(weights), watch)


def _texts(prompt: object) -> list[str]:
    """One prompt, or several, as a list. Raises UsageError for anything but text."""
    texts: list[str] = []
    for text in prompt if isinstance(prompt, Sequence) and not isinstance(prompt, str | bytes) else [prompt]:
        if not isinstance(text, str):
            raise UsageError(f"a prompt is text, found one of type {type(text).__name__}; token ids go to tokens")
        texts.append(text)
    return texts


def _choice(members: Iterable[Member], value: str, name: str) -> Member:
    """The member with that value. Raises UsageError, listing what there is."""
    member_by_value = {member.value: member for member in members}
    if value not in member_by_value:
        raise UsageError(f"{name} {value!r}: expected {' or '.join(member_by_value)}")
    return member_by_value[value]


def _fp32_products(word: str | None) -> str | None:
    """The word, which says how fp32 is multiplied. Raises UsageError."""
    return None if word is None else _choice(Fp32Products, word, "fp32_products").value


def _check_model(model: object) -> None:
    if not isinstance(model, Model):
        raise UsageError(f"model is {shown(model)}, expected what load_spec returns")


def _request(
    budget: str | int, dtype: str, weights_as: WeightsAs, outputs: Sequence[str] | None, split: Mapping[str, int] | None,
    no_fuse: Sequence[str], plan_seconds: float = 0.0, plan_steps: int | None = None, warm: bool = False, passes: int | None = None,
    host_budget: str | int | None = None, recompute: str = Recompute.NEVER.value,
) -> PlanRequest:  # fmt: skip
    """The plan that these ask for. Raises UsageError for one that is of another kind, or means nothing."""
    lists = {"outputs": outputs, "split": split, "no_fuse": no_fuse}
    numbers = {"plan_seconds": plan_seconds, "plan_steps": plan_steps, "passes": passes, "host_budget": host_budget}
    optional = ("outputs", "split", "plan_steps", "passes", "host_budget")
    check_arguments({"budget": budget, "dtype": dtype, **lists, **numbers}, optional=optional)
    return PlanRequest(
        budget_bytes=parse_bytes(budget if isinstance(budget, str) else int(budget)),
        dtype=_choice(RUN_DTYPES, dtype, "dtype"),
        weights_as=weights_as,
        outputs=tuple(outputs or ()),
        pieces={Letter(letter): int(n) for letter, n in (split or {}).items()},
        no_fuse=tuple(no_fuse),
        plan_seconds=plan_seconds,
        plan_steps=None if plan_steps is None else int(plan_steps),
        warm=warm,
        passes=None if passes is None else int(passes),
        recompute=_choice(Recompute, recompute, "recompute"),
        host_budget_bytes=None if host_budget is None else parse_bytes(host_budget if isinstance(host_budget, str) else int(host_budget)),
    )


def _weights_as(word: str | None, takes_blocks: bool) -> WeightsAs:
    """The form that `word` names, or what is right without it. Raises UsageError for another word, and for what the device cannot do."""
    if word is None:
        return WeightsAs.QUANTISED if takes_blocks else WeightsAs.RUN
    found = _choice((WeightsAs.STORED, WeightsAs.RUN), word, "weights_as")
    if found is WeightsAs.STORED and not takes_blocks:
        raise UsageError("weights_as 'stored': Triton's kernels read numbers; say 'run', or device 'cpu'")
    return found


def _machine_named(machine: str | Machine) -> Machine:
    return machine if isinstance(machine, Machine) else load_machine(machine)
