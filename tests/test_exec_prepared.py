"""A run that is prepared once and run often: whatever dispatches it, and however often, the outputs are the same to the bit."""

from __future__ import annotations

import torch

from einpage.exec.load.inputs import TokenLists
from einpage.exec.planning.model import Model, open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import Dispatch
from einpage.exec.run.options import RunOptions
from einpage.exec.run.prepared import prepare_run
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine
from specs_small import SMALL, SPECS

MACHINE = load_machine("cpu", threads=1)
OPTIONS = RunOptions(PlanRequest(300 << 10, outputs=("all_logits",)), poison=True)


def small_llama() -> Model:
    tokens = [[1 + (i * j) % 199 for i in range(130)] for j in (3, 7)]
    return open_model(SPECS / "llama.yaml", SMALL["llama"], "random:5", TokenLists(tuple(map(tuple, tokens)), "the test's tokens"))


def test_every_run_of_one_preparation_gives_the_same() -> None:
    prepared = prepare_run(small_llama(), MACHINE, OPTIONS)
    assert prepared.planned.report.d2h_bytes != prepared.outputs()["all_logits"].nbytes, "nothing is spilled: too easy"
    found = []
    for dispatch in (Dispatch.SERIAL, Dispatch.STATIC, Dispatch.DYNAMIC, Dispatch.STATIC):
        (measured,) = prepared.run(dispatch)
        assert measured.moved_bytes[Queue.H2D] == prepared.planned.report.h2d_bytes
        found.append(prepared.outputs()["all_logits"])
    assert not found[0].isnan().any()
    for other in found[1:]:
        assert torch.equal(found[0], other)
