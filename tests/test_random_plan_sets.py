"""Random decoders, random texts, random budgets: every plan set is judged right, and run in random orders it says what the reference says.

A case follows from (seed, number) alone. `python tests/test_random_plan_sets.py --sets 10000 --runs 1000 --seed 1` prints the counts and
the first failure, with as few parts of its spec as it takes; `--case N` looks at one case.
"""

from __future__ import annotations

import re
import sys
import traceback
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from unittest.mock import patch

import pytest
import torch

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.graph.taskgraph import Kind
from einpage.exec.device.device import Device, left_there
from einpage.exec.dispatch.engine import Dispatcher, Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.serial import random_order
from einpage.exec.load.fill import read_weights
from einpage.exec.planning import text_lengths
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.plan_set import PlannedPhase, PlannedSet, plan_texts, replayed
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run import generation, loaded_model
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.generation import Generation
from einpage.exec.run.loaded_model import LoadedModel
from einpage.exec.run.sampling import Sampler, Sampling
from einpage.memplan.errors import DoesNotFit
from einpage.memplan.graph.memgraph import MemGraph, PlanSet
from einpage.memplan.graph.planfile import load_plan_set, save_plan_set
from einpage.memplan.judge.plan_set import SetReason, judge_set
from einpage.memplan.judge.validate import judge
from einpage.memplan.machine.places import DEVICE
from einpage.memplan.machine.profile import load_machine
from einpage.memplan.residency.loading import loading
from plan_set_mutations import MUTATIONS
from random_generations import CHUNKS, Case, first_lengths, other_lengths, random_case
from single_runs import run_serial

CPU = load_machine("cpu")
WITHIN, TIMES = 2e-5, 4
"""How far a logit may be off: so much, and so many times as far as the reference is in fp32, where rounding errors grow."""


@dataclass(slots=True)
class Tally:
    sets: int = 0
    runs: int = 0
    tokens: int = 0
    """Generated and compared."""
    refused: Counter[str] = field(default_factory=Counter)
    """Mutations, by name."""
    seen: Counter[str] = field(default_factory=Counter)
    """Sets, by what they are about."""

    def __str__(self) -> str:
        refused = ", ".join(f"{name} {n}" for name, n in sorted(self.refused.items()))
        seen = ", ".join(f"{name} {n}" for name, n in sorted(self.seen.items()))
        counts = f"{self.sets} sets judged, {self.runs} runs of {self.tokens} tokens"
        return f"{counts}\nsets: {seen}\nmutants refused: {refused}"


@contextmanager
def model_of(case: Case) -> Iterator[Callable[[Mapping[str, int]], Model]]:
    """Its model at any sizes, with the buckets of the case."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "random.yaml"
        path.write_text(case.decoder.text, encoding="utf-8")

        @cache
        def opened(sizes: tuple[tuple[str, int], ...]) -> Model:
            return open_model(path, dict(sizes), f"random:{case.seed}")

        with (
            patch.object(text_lengths, "LEAST_POSITIONS", case.positions),
            patch.object(text_lengths, "READ_POSITIONS", case.read_positions),
            patch.object(text_lengths, "CHUNKS", CHUNKS),
        ):
            yield lambda sizes: opened(tuple(sizes.items()))


def planned(model_at: Callable[[Mapping[str, int]], Model], case: Case, dtype: DType) -> tuple[PlannedSet, PlanRequest]:
    """A set for the budget of the case, or the least that works where that is more: each refusal says more than the one before."""
    budget = case.budget_bytes
    while True:
        request = PlanRequest(budget, dtype=dtype)
        try:
            return plan_texts(model_at, CPU, request, case.texts), request
        except DoesNotFit as error:
            least = error.misfit.smallest_budget
            if least is None or least <= budget:
                raise
            budget = least


def check_judged(case: Case, tally: Tally) -> None:
    """A set is right and the same when it is read again; each loop keeps the weights of the next one; what is made wrong is refused."""
    with model_of(case) as model_at:
        plans = planned(model_at, case, case.dtype)[0]
    found = plans.plan_set
    violation = judge_set(found)
    assert violation is None, violation
    check_saved(found)
    check_weights_stay(found)
    check_served(plans)
    random = Random(case.seed)
    for mutation, reasons in MUTATIONS.items():
        mutant = mutation(found, random)
        if mutant is not None:
            wrong = judge_set(mutant)
            assert wrong is not None and wrong.reason in reasons, f"{mutation.__name__}: {wrong}"
            tally.refused[mutation.__name__] += 1
    tally.sets += 1
    about: dict[str, object] = {
        "least budget": found.phases[0].memgraph.budget_bytes > case.budget_bytes,
        "whole states": case.decoder.is_whole,
    }
    about |= {"chunks": plans.texts.chunk, "unequal prompts": plans.texts.spread, "lookup": plans.texts.lookup}
    about |= {"several loops": len(plans.buckets) > 1, "chunks for the budget": plans.texts.chunk and not case.texts.chunk}
    tally.seen.update(name for name, is_so in about.items() if is_so)


def check_saved(plans: PlanSet) -> PlanSet:
    """Saved, read and saved again: the same bytes; and the judge passes what was read."""
    with TemporaryDirectory() as folder:
        first, again = Path(folder) / "set.json", Path(folder) / "again.json"
        save_plan_set(first, plans, {})
        read = load_plan_set(first).plans
        save_plan_set(again, read, {})
        assert first.read_bytes() == again.read_bytes()
    assert judge_set(read) is None
    return read


def check_weights_stay(plans: PlanSet) -> None:
    """From token to token every weight that a pass begins with is there already, at its offset; and a loop that reads prompts has a first
    pass that ends so."""
    for had, has in pairwise(phase.memgraph for phase in plans.phases if not phase.reads):
        assert resident(has).items() <= resident(had).items()
    for memgraph in (phase.memgraph for phase in plans.phases if phase.reads and phase.memgraph.loops):
        first = loading(memgraph)
        assert judge(first) is None
        assert not resident(first)
        assert left_there(first, memgraph) == {r for r in memgraph.start if memgraph.residencies[r].place == DEVICE}


def resident(memgraph: MemGraph) -> dict[str, tuple[object, int]]:
    """Box and offset of each weight that is on the device at the start, by tile."""
    tensors = memgraph.graph.tensors
    there = [(tensors[r.tensor], r) for r in map(memgraph.residencies.__getitem__, memgraph.start) if r.place == DEVICE]
    return {t.name: (t.box, int(r.extents[0].offset)) for t, r in there if t.kind is Kind.WEIGHT}


def check_served(plans: PlannedSet) -> None:
    """Each position after the shortest prompt (from 0 on, with chunks) has a plan that says it serves it."""
    texts = plans.texts
    if not plans.buckets:
        return
    for at in range(0 if texts.chunk else texts.shortest, texts.positions - texts.spread):
        bucket = plans.bucket_at(at).bucket
        assert bucket.past <= at and min(at + texts.spread, texts.positions - 1) <= bucket.past + bucket.extra


def check_run(case: Case, tally: Tally) -> None:
    """Runs a set, perhaps as it is read from a file, twice: logits behind every token are the reference's, and so are the tokens."""
    random = Random(f"run {case.seed}")
    with model_of(case) as model_at:
        plans, request = planned(model_at, case, DType.FP32)
        if random.random() < 0.4:
            plans = replayed(check_saved(plans.plan_set), plans.texts, model_at, CPU, request)
        options = RunOptions(request, dispatch=Dispatch.SERIAL, poison=True)
        held = Generation(plans, options, LoadedModel(options))
        vocab = dict(case.decoder.sizes)["vocab"]
        is_greedy = random.random() < 0.7
        for lengths, max_new in ((first_lengths(plans.texts), plans.texts.max_new), other_lengths(random, plans.texts)):
            few = random.sample(range(vocab), 5)  # so that texts repeat themselves, and something is looked up
            prompts = [random.choices(few if random.random() < 0.7 else range(vocab), k=length) for length in lengths]
            sampling = Sampling() if is_greedy else Sampling(temperature=1.0, seed=case.seed)
            found = generated(held, prompts, max_new, sampling, random)
            for n, prompt in enumerate(prompts):
                check_text(model_at, prompt, [row for number, row in found if number == n], is_greedy)
            tally.tokens += len(found)
    tally.runs += 1


Row = tuple[int, torch.Tensor, int]
"""How many tokens stand before one, its logits, and what was taken."""


def generated(
    held: Generation, prompts: Sequence[Sequence[int]], max_new: int, sampling: Sampling, random: Random
) -> list[tuple[int, Row]]:
    """(sequence, row) of every token, each pass in an order of its own. Where a loop follows the one before, no weight is loaded."""
    rows: list[tuple[int, Row]] = []
    entered: list[tuple[PlannedPhase, int]] = []

    class Recording(Sampler):
        def __init__(self, sampling: Sampling, number: int = 0) -> None:
            super().__init__(sampling, number)
            self.number = number

        def next(self, logits: torch.Tensor, ids: Sequence[int]) -> int:
            token = super().next(logits, ids)
            rows.append((self.number, (len(ids), logits.clone(), token)))
            return token

    class Shuffled(Dispatcher):
        def run(self, device: Device, hooks: Hooks = SILENT) -> Measured:
            return run_serial(self.memgraph, device, hooks, order=random_order(self.memgraph, random.randrange(1 << 30)))

    preload = generation.ReadyPhase.preload

    def watched(ready: generation.ReadyPhase) -> int:
        entered.append((ready.phase, preload(ready)))
        return entered[-1][1]

    with (
        patch.object(generation, "Sampler", Recording),
        patch.object(loaded_model, "dispatcher_type", lambda kind, dispatch: Shuffled),
        patch.object(generation.ReadyPhase, "preload", watched),
    ):
        said = list(held.tokens(prompts, max_new, sampling))
    assert len(said) == max_new
    borders = [phase.bucket.past for phase in held.plans.buckets]
    for (had, _), (has, loaded) in pairwise(entered):
        is_next = not had.bucket.is_read and not has.bucket.is_read and has.bucket.past in borders[1:]
        if is_next and borders[borders.index(has.bucket.past) - 1] == had.bucket.past:
            memgraph = has.planned.memgraph
            tensors = [memgraph.graph.tensors[t] for t in memgraph.resident]
            assert loaded == sum(t.nbytes for t in tensors if t.kind is not Kind.WEIGHT)
    return rows


def check_text(model_at: Callable[[Mapping[str, int]], Model], prompt: Sequence[int], rows: Sequence[Row], is_greedy: bool) -> None:
    """The reference runs the whole text at once, in fp64 and without states."""
    text = [*prompt, *(token for _, _, token in rows)]
    assert [before for before, _, _ in rows] == list(range(len(prompt), len(text)))
    model = model_at({"batch": 1, "seq": len(text) - 1, "past": 0, "room": 0})
    assert model.resolved is not None
    given = {"tokens": torch.tensor([text[:-1]])}
    weights = read_weights(model.resolved, model.program)

    def reference(dtype: torch.dtype) -> torch.Tensor:
        return evaluate(model.program, given, weights, dtype, ["all_logits"])["all_logits"][0].double()

    exact, rounded = reference(torch.float64), reference(torch.float32)
    for before, logits, token in rows:
        expected = exact[before - 1]
        error = float((logits.double() - expected).abs().max())
        within = WITHIN + TIMES * float((rounded[before - 1] - expected).abs().max())
        assert error <= within, f"logits after {before} tokens are {error:.3g} off"
        best, second = expected.topk(2).values.tolist()
        if is_greedy and best - second > 2 * within:
            assert token == int(expected.argmax())


class Fault(AssertionError):
    """Which case fails, and as small a one as fails alike."""


def swept(seed: int, sets: int, runs: int, first: int = 0) -> Tally:
    """So many cases judged, and the first so many of them run. Raises Fault for the first that fails."""
    tally = Tally()
    for number in range(first, first + max(sets, runs)):
        case = random_case(seed, number)
        checks = [check_judged] * (number - first < sets) + [check_run] * (number - first < runs)
        for check in checks:
            try:
                check(case, tally)
            except Exception as error:
                small = shrunk(case, check, cause(error))
                raise Fault(f"--seed {seed} --case {number}, {check.__name__}: {error}\n\n{small}") from error
    return tally


def cause(error: Exception) -> tuple[type[Exception], str]:
    """What tells one fault from another: the kind of error, and its message up to the first number."""
    return type(error), re.split(r"\d", str(error))[0]


def shrunk(case: Case, check: Callable[[Case, Tally], None], why: tuple[type[Exception], str]) -> Case:
    """With as few parts as fail in the same way."""
    for smaller in case.smaller():
        try:
            check(smaller, Tally())
        except SpecError:
            continue
        except Exception as error:
            if cause(error) == why:
                return shrunk(smaller, check, why)
    return case


def test_random_sets_are_judged_right_and_run_right() -> None:
    tally = swept(0, 7, 3)
    assert tally.sets >= 6 and tally.tokens > 10


@pytest.mark.parametrize(
    ("seed", "number"),
    [
        pytest.param(1, 252, id="prompts cannot be cut as finely as the last bucket", marks=[pytest.mark.slow]),
        pytest.param(3, 163, id="a bucket cannot be cut as finely as the last", marks=[pytest.mark.slow]),
        pytest.param(1, 1, id="positions end with a bucket of one"),
        pytest.param(2, 164, id="a prompt, of which one token is asked for, fits in chunks only"),
    ],
)
def test_what_was_refused_once_is_planned(seed: int, number: int) -> None:
    tally = swept(seed, 1, 1, number)
    assert (tally.sets, tally.runs) == (1, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(1, 9))
def test_many_random_sets_are_judged_right_and_run_right(seed: int) -> None:
    tally = swept(seed, 190, 40)
    print(tally)
    assert set(tally.refused) == {mutation.__name__ for mutation in MUTATIONS}, "each way to be wrong is met"
    assert tally.sets >= 190
    assert all(tally.seen[name] >= 10 for name in ("chunks", "unequal prompts", "lookup", "several loops", "least budget", "whole states"))


def test_every_reason_has_a_mutation() -> None:
    assert frozenset().union(*MUTATIONS.values()) == set(SetReason)


def main() -> int:
    """Sweep from the command line; 1 where something fails."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=int, default=200)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, metavar="N", help="this one alone, judged and run")
    asked, began = parser.parse_args(), perf_counter()
    sets, runs = (asked.sets, asked.runs) if asked.case is None else (1, 1)
    try:
        print(swept(asked.seed, sets, runs, asked.case or 0))
    except Fault as fault:
        traceback.print_exception(fault.__cause__)
        print(fault)
        return 1
    finally:
        print(f"{perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
