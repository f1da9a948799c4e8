"""What a training run leaves in its folder: a checkpoint, from which it goes on bit for bit, and at its end the weights, to be run.

In: TrainOptions, and a Trainer between two steps. Out: `checkpoint.safetensors`, every state under its own name in its own dtype, with
the number of the step, the losses so far and a checksum of the spec's math; `model.safetensors` (or `trained.safetensors`, where some
weights do not train), the trained weights under the names and in the order of rows that they were read with. Each is replaced when the new
one is on the disk.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from einpage.checkpoints.files.checkpoint import WeightError, rows_and_columns
from einpage.checkpoints.files.safetensors import SafetensorsFiles, open_safetensors
from einpage.checkpoints.files.write_safetensors import WrittenTensor, metadata_of, write_safetensors
from einpage.einsum_front.base.errors import UsageError, listing
from einpage.einsum_front.base.files import refuse_full, refuse_unwritable, write_atomically
from einpage.einsum_front.base.json_text import JsonError, parsed
from einpage.einsum_front.base.units import refuse_outside
from einpage.einsum_front.graph.program import Source
from einpage.exec.planning.train_step import TrainStep
from einpage.exec.train.trainer import Trainer
from einpage.kernels.layout.torch_dtype import TORCH_DTYPE

CHECKPOINT, MODEL, TRAINED = "checkpoint.safetensors", "model.safetensors", "trained.safetensors"
_BESIDE = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Files beside weights that a run of the trained ones reads too."""


MOST_STEPS = 10**9


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How long, and what is saved. Raises UsageError for what means nothing."""

    steps: int
    """Of the whole run: one that is resumed takes those that are left."""
    out: Path | None = None
    """The folder of checkpoints and of the weights at the end; None: nothing is saved."""
    checkpoint_every: int | None = None
    """Steps; None: at the end alone."""
    resume: bool = False

    def __post_init__(self) -> None:
        refuse_outside("--steps", self.steps, 1, MOST_STEPS)
        if self.checkpoint_every is not None:
            refuse_outside("--checkpoint-every", self.checkpoint_every, 1, MOST_STEPS)
        for option, given in (("--resume", self.resume), ("--checkpoint-every", self.checkpoint_every is not None)):
            if given and self.out is None:
                raise UsageError(f"{option} needs --out, the folder of the checkpoint")

    def prepare_folder(self) -> None:
        """Make the folder. Raises UsageError where nothing can be written there, or an earlier run's checkpoint would be replaced."""
        if self.out is None:
            return
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise UsageError(f"--out {self.out}: the folder cannot be made: {getattr(error, 'strerror', None) or error}") from error
        checkpoint = self.out / CHECKPOINT
        if checkpoint.exists() and not self.resume:
            raise UsageError(f"--out {self.out} holds the checkpoint of an earlier run; say --resume to go on from it, or another folder")
        refuse_unwritable(str(checkpoint))


@dataclass(frozen=True, slots=True)
class TrainCheckpoint:
    """One that was found, and is this spec's."""

    path: Path
    steps: int
    """That were taken."""
    losses: tuple[float, ...]
    """Of each of them."""
    skipped: tuple[int, ...]
    """The numbers, from 1, of those that changed nothing."""
    files: SafetensorsFiles

    def put_into(self, trainer: Trainer) -> None:
        """Go on from there."""
        for state in trainer.states:
            shape = self.files.tensors[state.name]
            rows = self.files.read_rows(state.name, 0, rows_and_columns(shape)[0])
            trainer.put_state(state.name, torch.from_numpy(rows).view(shape))


def save_checkpoint(folder: Path, trainer: Trainer, losses: Sequence[float], skipped: Sequence[int] = ()) -> Path:
    """Raises UsageError where it cannot be written."""
    tensors = [_written(trainer, state.name, state.name, state.shape) for state in trainer.states]
    path = folder / CHECKPOINT
    refuse_full(str(path), sum(tensor.nbytes for tensor in tensors))
    metadata = {
        "format": "einpage training checkpoint 1",
        "spec": trainer.step.program.name,
        "math": math_checksum(trainer.step),
        "dtype": trainer.planned.graph.dtype.value,
        "loss scale": "no" if trainer.step.scale_state is None else "yes",
        "steps": str(len(losses)),
        "losses": json.dumps([repr(loss) for loss in losses]),  # NaN and inf too
        "skipped": json.dumps(list(skipped)),
    }
    write_safetensors(path, tensors, metadata)
    return path


def found_checkpoint(folder: Path, step: TrainStep, dtype: str) -> TrainCheckpoint:
    """The checkpoint in `folder`. Raises UsageError where there is none, or it is of another spec or dtype; WeightError for a broken
    one.
    """
    path = folder / CHECKPOINT
    if not path.is_file():
        raise UsageError(f"--resume: there is no {path}; leave --resume out to begin a run")
    metadata, files = metadata_of(path), open_safetensors((path,))
    if files.damage:
        raise WeightError("; ".join(files.damage))
    wanted = {state.name: state.shape for state in step.program.states}
    if "math" not in metadata or "steps" not in metadata:
        raise UsageError(f"--resume: {path} is no checkpoint of a training run; name the --out folder of one")
    if metadata.get("dtype") != dtype:
        raise UsageError(f"--resume: {path} is of a run in {metadata.get('dtype')}; say --dtype {metadata.get('dtype')}")
    scaled = metadata.get("loss scale") == "yes"
    if scaled != (step.scale_state is not None):
        cure = "dynamic, or its numbers" if scaled else "none"
        raise UsageError(f"--resume: {path} is of a run {'with' if scaled else 'without'} a loss scale; say --loss-scale {cure}")
    other = [name for name, shape in wanted.items() if files.tensors.get(name) != shape]
    if metadata["math"] != math_checksum(step) or other or len(files.tensors) != len(wanted):
        why = f"it lacks {listing(other[:3])} as this spec has it" if other else "its statements are others"
        cure = "name its own spec, with the same --set, or another --out"
        raise UsageError(f"--resume: {path} is of another spec, `{metadata.get('spec', '')[:80]}`: {why}; {cure}")
    try:
        losses, steps = parsed(metadata["losses"].encode()), int(metadata["steps"])
        assert isinstance(losses, list) and len(losses) == steps
        numbers = tuple(float(str(loss)) for loss in losses)
        skipped = parsed(metadata.get("skipped", "[]").encode())
        assert isinstance(skipped, list) and all(isinstance(n, int) and 1 <= n <= steps for n in skipped)
    except (JsonError, ValueError, TypeError, KeyError, AssertionError) as error:
        raise WeightError(f"{path}: its metadata are not those that were written; begin the run anew") from error
    return TrainCheckpoint(path, steps, numbers, tuple(skipped), files)


def math_checksum(step: TrainStep) -> str:
    """Of the statements of the model and its loss, and of the states: another spec has another."""
    lines = [*step.math, *(f"{state.name} {state.shape}" for state in step.program.states)]
    return sha256("\n".join(lines).encode()).hexdigest()


def save_weights(folder: Path, trainer: Trainer, weights: str) -> Path:
    """The weights that trained, as they were read; beside all of a model's what a run of them reads besides. Raises UsageError."""
    step = trainer.step
    resolved, trained = step.model.resolved, set(step.trained)
    assert resolved is not None
    whole = all(w.name in trained for w in step.program.weights if w.name not in step.fp32_copies.values())
    tensors: dict[str, WrittenTensor] = {}
    for weight in (w for w in step.program.weights if w.name in trained):
        source = resolved.source_by_weight[weight.name]
        shape = tuple(prod(weight.shape[d] for d in group) for group in source.groups)
        state = step.fp32_copies.get(weight.name, weight.name)
        tensors[source.name] = _written(trainer, state, source.name, shape, source)
    path = folder / (MODEL if whole else TRAINED)
    refuse_full(str(path), sum(tensor.nbytes for tensor in tensors.values()))
    write_safetensors(path, list(tensors.values()), {"format": "pt"})
    if whole:
        _save_beside(folder, weights, step)
    return path


def _save_beside(folder: Path, weights: str, step: TrainStep) -> None:
    """What a folder of weights has beside them, or a file's own metadata."""
    source = Path(weights)
    source = source if source.is_dir() else source.parent
    if (source / "config.json").is_file() and Path(weights).suffix != ".gguf":
        for name in _BESIDE:
            with suppress(FileNotFoundError, shutil.SameFileError):
                shutil.copyfile(source / name, folder / name)
        return
    assert step.model.resolved is not None
    config = {k: v for k, v in step.model.resolved.checkpoint.config().items() if not k.startswith("tokenizer.")}
    if config:
        write_atomically(folder / "config.json", json.dumps(config, indent=1, default=str))


def _written(trainer: Trainer, state: str, name: str, shape: tuple[int, ...], source: Source | None = None) -> WrittenTensor:
    """A state in its own dtype, or a weight of `source` in the run's."""
    dtype = trainer.dtype_of(state) if source is None else trainer.planned.graph.dtype

    def data() -> NDArray[np.uint8]:
        found = trainer.state(state)
        if source is not None:
            found = found.permute([d for group in source.groups for d in group])
            found = found - source.plus if source.plus else found
        return found.to(TORCH_DTYPE[dtype]).contiguous().view(-1).view(torch.uint8).numpy()

    return WrittenTensor(name, dtype, shape, data)
