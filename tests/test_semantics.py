"""What a spec says is what a run gives: random specs at several budgets, ways of dispatch and dtypes, against numpy and the spec's text.

The judge, statement_numpy.py, reads the YAML and Python's syntax tree of each statement, knows nothing of einpage, and bounds the
error that the dtype allows. A case is ill-conditioned, counted and not judged where that bound is more than a quarter of the output's
largest number. To see one again: `python tests/test_semantics.py SEED`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import save_file

from bounded_numbers import Array
from einpage.einsum_front.base.dtype import DType
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.prepared import run_model
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.machine.profile import load_machine
from semantic_specs import checkpoint_data, semantic_spec
from statement_numpy import evaluated

ILL = 0.25
"""Of the largest number of an output: where the error may be more, nothing can be said."""
ROOMY = 1 << 20


@dataclass(slots=True)
class Tally:
    """What was compared."""

    specs: int = 0
    runs: Counter[str] = field(default_factory=Counter)
    """By what a run was made with."""
    judged: int = 0
    """Outputs that were compared, and those that were ill-conditioned."""
    ill: int = 0
    wrong: list[str] = field(default_factory=list)
    closest: dict[str, float] = field(default_factory=dict)
    """The largest error found in runs of each dtype, as a part of its bound."""

    def __str__(self) -> str:
        """For a person."""
        runs = ", ".join(f"{n} {word}" for word, n in sorted(self.runs.items()))
        head = f"{self.specs} specs: {runs}; {self.judged} outputs judged, {self.ill} ill-conditioned, {len(self.wrong)} wrong; "
        head += "largest error, of its bound: " + ", ".join(f"{part:.2g} in {dtype}" for dtype, part in sorted(self.closest.items()))
        return "\n\n".join((head, *self.wrong[:5]))


def smallest_budget(model: Model, dtype: DType, outputs: tuple[str, ...]) -> int:
    """Bytes of the smallest budget that works, as the refusal of a smaller one says."""
    with pytest.raises(DoesNotFit) as refused:
        plan_program(model.program, load_machine("cpu"), PlanRequest(1, dtype, outputs))
    assert refused.value.misfit.smallest_budget is not None
    return refused.value.misfit.smallest_budget


def compare(tally: Tally, seed: int, text: str, folder: Path) -> None:
    """One spec in three runs: at the smallest budget, in half as much again, with room for all; dtype and dispatch by lot."""
    random = Random(seed)
    data = checkpoint_data(text, seed)
    (folder / "spec.yaml").write_text(text)
    (folder / "config.json").write_text(json.dumps(data.metadata))
    save_file(dict(data.tensors), folder / "w.safetensors")
    model = open_model(folder / "spec.yaml", weights=str(folder / "w.safetensors"))
    tally.specs += 1
    names = tuple(o.name for o in model.program.outputs)
    dtypes = [random.choice((DType.FP32, DType.FP32, DType.BF16, DType.FP16)) for _ in range(2)]
    least = smallest_budget(model, dtypes[0], names)
    want = {d: evaluated(text, {**data.inputs, **data.tensors}, data.metadata, d.value) for d in set(dtypes)}
    for budget, dtype in ((least, dtypes[0]), (least * 3 // 2, dtypes[0]), (ROOMY, dtypes[1])):
        dispatch = random.choice([*Dispatch])
        options = RunOptions(PlanRequest(budget, dtype, names), dispatch=dispatch, poison=True)
        tally.runs.update(
            (dtype.value, dispatch.value, "smallest budget" if budget == least else "roomy" if budget == ROOMY else "half more")
        )
        found = run_model(model, load_machine("cpu"), options, data.inputs)
        for name in names:
            got = found.outputs[name].double().numpy()
            if said := judged(tally, dtype.value, got, *want[dtype][name]):
                tally.wrong.append(f"seed {seed}: {name} in {dtype.value} in {budget} bytes, {dispatch.value}: {said}\n{text}")


def judged(tally: Tally, dtype: str, got: Array, want: Array, error: Array) -> str | None:
    """What is wrong with an output; None where nothing is."""
    tally.judged += 1
    if got.shape != want.shape:
        return f"shape {got.shape} for {want.shape}"
    if np.isnan(want).any():
        return "the judge finds NaN"
    top = float(np.abs(want[np.isfinite(want)]).max(initial=0.0))
    if error.max(initial=0.0) > ILL * top and (got != want).any():
        tally.judged, tally.ill = tally.judged - 1, tally.ill + 1
        return None
    with np.errstate(invalid="ignore"):
        apart = np.where(got == want, 0.0, np.abs(got - want))
    at = int(np.argmax(np.where(np.isnan(apart), np.inf, apart - error)))
    part = float(np.max(np.divide(apart, error, out=np.zeros_like(apart), where=(apart > 0) & (error > 0)), initial=0))
    tally.closest[dtype] = max(tally.closest.get(dtype, 0.0), part)
    if apart.flat[at] <= error.flat[at]:
        return None
    where = tuple(map(int, np.unravel_index(at, want.shape)))
    return f"{got.flat[at]} for {want.flat[at]} at {where}, where the error is at most {error.flat[at]:.3g}"


def swept(first: int, count: int, most_statements: int) -> Tally:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + count):
            compare(tally, seed, semantic_spec(seed, most_statements), Path(folder))
    return tally


def test_what_a_spec_says_is_what_a_run_gives() -> None:
    tally = swept(0, 40, 3)
    assert not tally.wrong, str(tally)
    assert tally.judged > 20 * tally.ill, str(tally)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(4))
def test_many_specs_say_what_a_run_gives(part: int) -> None:
    tally = swept(1000 * (part + 1), 500, 3)
    print(tally)
    assert not tally.wrong, str(tally)
    assert tally.judged > 20 * tally.ill and tally.runs["smallest budget"] >= 500, str(tally)


if __name__ == "__main__":
    found = swept(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1, 3)
    print(found)
    sys.exit(bool(found.wrong))
