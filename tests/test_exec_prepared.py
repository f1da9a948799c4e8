"""A run that is prepared once and run often: whatever dispatches it, and however often, the outputs are the same to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from einpage.einsum_front.base.libraries import ALWAYS, ONLY_TORCH, Libraries
from einpage.exec.load.inputs import TokenLists
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.prepared import prepare_run
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine
from specs_small import SMALL, SPECS

MACHINE = load_machine("cpu", threads=1)
OTHERS = Libraries(ALWAYS, ALWAYS, ALWAYS)
OPTIONS = RunOptions(PlanRequest(300 << 10, outputs=("all_logits",)), poison=True)


def small_llama(**sizes: int) -> Model:
    tokens = [[1 + (i * j) % 199 for i in range(130)] for j in (3, 7)]
    return open_model(SPECS / "llama.yaml", SMALL["llama"] | sizes, "random:5", TokenLists(tuple(map(tuple, tokens)), "the test's tokens"))


@pytest.mark.parametrize("libraries", [ONLY_TORCH, OTHERS])
def test_every_run_of_one_preparation_gives_the_same(libraries: Libraries) -> None:
    prepared = prepare_run(small_llama(), replace(MACHINE, libraries=libraries), OPTIONS)
    assert prepared.planned.report.d2h_bytes != prepared.outputs()["all_logits"].nbytes, "nothing is spilled: too easy"
    found = []
    for dispatch in (Dispatch.SERIAL, Dispatch.STATIC, Dispatch.DYNAMIC, Dispatch.STATIC):
        (measured,) = prepared.run(dispatch)
        assert measured.moved_bytes[Queue.H2D] == prepared.planned.report.h2d_bytes
        found.append(prepared.outputs()["all_logits"])
    assert not found[0].isnan().any()
    for other in found[1:]:
        assert torch.equal(found[0], other)


def test_passes_and_budgets_of_one_split_give_the_same_bits_by_any_library() -> None:
    machine, model = replace(MACHINE, libraries=OTHERS), small_llama()
    tight = prepare_run(model, machine, OPTIONS)
    pieces = dict(tight.planned.graph.split)
    found = []
    for request in (replace(OPTIONS.plan, pieces=pieces, passes=3), replace(OPTIONS.plan, budget_bytes=64 << 20, pieces=pieces)):
        prepared = prepare_run(model, machine, replace(OPTIONS, plan=request))
        assert prepared.planned.graph.split == tight.planned.graph.split
        for dispatch in Dispatch:
            prepared.run(dispatch)
            found.append(prepared.outputs()["all_logits"])
    for other in found[1:]:
        assert torch.equal(found[0], other)


def test_the_profile_says_how_products_are_computed() -> None:
    """Of the machine, not of the process: two devices beside each other multiply each in its own way."""
    machines = [replace(MACHINE, libraries=libraries) for libraries in (ONLY_TORCH, OTHERS, ONLY_TORCH, Libraries(ALWAYS))]
    prepared = [prepare_run(small_llama(), machine, OPTIONS) for machine in machines]
    logits = []
    for one in prepared:
        one.run(Dispatch.DYNAMIC)
        logits.append(one.outputs()["all_logits"])
    assert torch.equal(logits[0], logits[2])
    for others in (logits[1], logits[3]):
        assert (logits[0] - others).abs().max() <= 1e-5 * logits[0].abs().max()


def test_what_another_library_allocates_is_counted() -> None:
    machines = [replace(MACHINE, libraries=libraries) for libraries in (ONLY_TORCH, Libraries(ALWAYS))]
    wide, options = small_llama(vocab=3000), RunOptions(PlanRequest(16 << 20, outputs=("all_logits",)))
    alone, onednn = (prepare_run(wide, machine, options).device.outside_arena_bytes for machine in machines)
    assert onednn > 2 * alone
