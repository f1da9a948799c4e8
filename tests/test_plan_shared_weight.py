"""Outputs that share a weight: one pass over it serves them all, whatever their ranks."""

from __future__ import annotations

import pytest

from einpage.einsum_front.algebra.expr import Letter
from einpage.exec.planning.judged_plan import plan_program
from einpage.exec.planning.request import PlanRequest
from einpage.memplan.machine.profile import load_machine
from specs_small import small_program

VOCAB, MODEL = 8000, 64
HEAD_BYTES = VOCAB * MODEL * 4


@pytest.mark.parametrize("rows", [1, 2])
def test_a_head_is_streamed_once(rows: int) -> None:
    """Next-token and all logits of one head, slice by slice together, in a budget that holds a third of it; of two row tiles, one has
    the next token's slices beside its own.
    """
    program = small_program(
        "llama", {"batch": 1, "layers": 1, "vocab": VOCAB, "model": MODEL, "heads": 2, "kv_heads": 2, "ffn": 64, "seq": 128}
    )
    pieces = {Letter("v"): 25, Letter("s"): rows}

    def h2d_bytes(*outputs: str) -> int:
        return plan_program(program, load_machine("h100"), PlanRequest(HEAD_BYTES // 3, outputs=outputs, pieces=pieces)).report.h2d_bytes

    alone, both = max(h2d_bytes("logits"), h2d_bytes("all_logits")), h2d_bytes("logits", "all_logits")
    assert alone > HEAD_BYTES
    assert both < alone + HEAD_BYTES / 10
