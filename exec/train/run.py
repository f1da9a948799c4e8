"""A training run: steps one after the other, losses, checkpoints; what it took, counted.

In: a TrainStep, its Batches and RateSchedule, where to save. Out: a TrainResult. Every step is the same plan: the learning rate is an
input.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from math import isfinite
from statistics import median

import numpy as np
import torch

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.arena import used_extents
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.planning.judged_plan import MachineSource, Planned, compacted
from einpage.exec.run.choose import RunOptions
from einpage.exec.run.prepared import within_device
from einpage.exec.run.report import weight_warnings
from einpage.exec.system.process_memory import peak_resident_bytes
from einpage.exec.train.planned_step import StepBytes, bytes_of_step, plan_step
from einpage.exec.train.saved import TrainOptions, found_checkpoint, save_checkpoint, save_weights
from einpage.exec.train.setup import TrainSetup
from einpage.exec.train.trainer import StepDone, Trainer
from einpage.memplan.machine.machine import Machine


@dataclass(frozen=True, slots=True, eq=False)
class TrainResult:
    """A finished run."""

    planned: Planned
    bytes: StepBytes
    """What each step moved."""
    losses: tuple[float, ...]
    """Of every step from the first on, those before a checkpoint that was resumed among them."""
    skipped: tuple[int, ...] | None
    """Of these, the numbers (from 1) of those that changed nothing, since a gradient was not finite; None where losses are not scaled."""
    resumed_at: int
    """Steps that were taken before this run."""
    done: tuple[StepDone, ...]
    """By this run."""
    measured: Measured
    """The last step."""
    options: RunOptions
    trained: tuple[int, int]
    """Weights that train, numbers in them."""
    states: dict[str, torch.Tensor]
    """Weights and what is kept for them at the end, by name; of a run that saves them, none."""
    saved: tuple[str, ...]
    """Files that were written."""
    peak_rss_bytes: int
    threads: int
    warnings: tuple[str, ...]
    loss_scale: float | None = None
    """At the end."""

    @property
    def wall_s(self) -> float:
        """Of a step, the median."""
        return median(step.wall_s for step in self.done)

    @property
    def tokens_per_s(self) -> float:
        """Over all steps; checkpoints not counted."""
        return sum(step.tokens for step in self.done) / sum(step.wall_s for step in self.done)

    def _scale_facts(self) -> dict[str, object]:
        if self.skipped is None:
            return {}
        return {"skipped_steps": list(self.skipped), "loss_scales": [step.loss_scale for step in self.done], "loss_scale": self.loss_scale}

    def facts(self) -> dict[str, object]:
        """What `train --json` prints. Sizes are bytes, times seconds; all but the losses of one step."""
        measured = self.measured
        return {
            **self.planned.facts,
            "steps": len(self.losses),
            "resumed_at": self.resumed_at,
            "losses": [loss if isfinite(loss) else None for loss in self.losses],
            **self._scale_facts(),
            "predicted_without_second_runs_s": self.planned.once_s,
            "rates": [step.rate for step in self.done],
            "step_wall_s": [step.wall_s for step in self.done],
            "wall_s": self.wall_s,
            "tokens_per_s": self.tokens_per_s,
            "trained_weights": self.trained[0],
            "trained_parameters": self.trained[1],
            "arena_bytes": self.planned.memgraph.budget_bytes,
            "arena_used_bytes": sum(extent.nbytes for extent in used_extents(self.planned.memgraph)),
            "dispatch": self.options.dispatch.value,
            "device": self.options.device.value,
            "threads": self.threads,
            **{f"step_{name}_bytes": nbytes for name, nbytes in asdict(self.bytes).items()},
            "step_frozen_written_bytes": 0,
            **{f"measured_{queue.name}_bytes": nbytes for queue, nbytes in measured.moved_bytes.items()},
            **{f"measured_{queue.name}_s": seconds for queue, seconds in measured.busy_s.items()},
            "peak_rss_bytes": self.peak_rss_bytes,
            "saved": list(self.saved),
            "warnings": list(self.warnings),
        }


def train_model(
    setup: TrainSetup,
    machine: Machine | MachineSource,
    how: TrainOptions,
    weights: str,
    watch: Callable[[StepDone], None] | None = None,
    hooks: Hooks = SILENT,
    loading: Callable[[str, int], None] | None = None,
    planned_hook: Callable[[Planned], None] | None = None,
) -> TrainResult:
    """Plan the step, load the weights, and take the steps. `weights` is where they were read from; `watch` is told of every
    step.

    Raises the errors of plan_step and the engines; UsageError for a checkpoint that is not this spec's, DoesNotFit where the host has too
    little memory.
    """
    step, batches, schedule, options = setup.step, setup.batches, setup.schedule, setup.options
    found = found_checkpoint(how.out, step, options.plan.dtype.value) if how.resume and how.out is not None else None
    begun = 0 if found is None else found.steps
    if begun >= how.steps:
        raise UsageError(f"--steps {how.steps}: the checkpoint is of step {begun} already; say more")
    batches.refuse_no_target(range(begun, how.steps))
    first = batches.at(begun)
    planned = compacted(plan_step(step, within_device(machine, options.plan.budget_bytes), options.plan))
    if planned_hook is not None:
        planned_hook(planned)
    losses, done, saved = [*(found.losses if found is not None else ())], list[StepDone](), dict[str, None]()
    skipped = [*(found.skipped if found is not None else ())]
    with closing(Trainer(step, planned, options, loading)) as trainer:
        if found is not None:
            found.put_into(trainer)
        for number in range(begun, how.steps):
            arrays = first if number == begun else batches.at(number)
            rate = None if schedule is None else schedule.at(number + 1)
            if rate is not None:
                arrays[step.rate_input] = np.array(rate, np.float32)
            scale, ran = trainer.loss_scale, trainer.take(arrays, hooks)
            measured = ran.measured
            losses.append(ran.loss)
            skipped += [number + 1] if ran.overflowed else []
            tokens = batches.tokens_at(number)
            done.append(StepDone(number + 1, ran.loss, rate, measured.wall_s, tokens, ran.overflowed, scale))
            if watch is not None:
                watch(done[-1])
            is_last = number + 1 == how.steps
            if how.out is not None and (is_last or (how.checkpoint_every and (number + 1) % how.checkpoint_every == 0)):
                saved[str(save_checkpoint(how.out, trainer, losses, skipped))] = None
        if how.out is not None:
            saved[str(save_weights(how.out, trainer, weights))] = None
        states = {} if how.out is not None else {state.name: trainer.state(state.name) for state in trainer.states}
        not_finite, scale = trainer.not_finite, trainer.loss_scale
    bad = [n for n, loss in enumerate(losses, 1) if not isfinite(loss) and n not in set(skipped)]
    warnings = [*step.model.warnings, *weight_warnings(not_finite, options.plan.dtype)]
    if bad:
        warnings.append(f"the loss is {losses[bad[0] - 1]} from step {bad[0]} on; a smaller --lr may keep it finite")
    if scale is not None and scale < 1 and losses and len(losses) in skipped:
        warnings.append(
            f"the last step was skipped at loss scale {done[-1].loss_scale:g}: gradients are not finite, however small the scale"
        )
    sizes = {w.name: w.shape for w in step.program.weights}
    return TrainResult(
        planned=planned,
        bytes=bytes_of_step(planned.memgraph),
        losses=tuple(losses),
        skipped=None if scale is None else tuple(skipped),
        resumed_at=begun,
        done=tuple(done),
        measured=measured,
        options=options,
        trained=(len(step.trained), sum(int(np.prod(sizes[name])) for name in step.trained)),
        states=states,
        saved=tuple(saved),
        peak_rss_bytes=peak_resident_bytes(),
        threads=torch.get_num_threads(),
        warnings=tuple(warnings),
        loss_scale=scale,
    )
