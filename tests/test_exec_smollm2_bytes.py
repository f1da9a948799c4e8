"""Bytes that a prefill of the real model moves, counted by hand: weights once, of the embedding table for the gather only its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from einpage.einsum_front.dtype import DType
from smollm2_run import FRANCE, LLAMA, MIB, WEIGHT_ELEMENTS, arena, open_smollm2, planned

VOCAB, WIDTH = 49152, 576
LENGTHS = 4
"""Bytes of the one sequence's length."""


@pytest.mark.parametrize(("budget", "dtype"), [(64 * MIB, DType.FP32), (24 * MIB, DType.FP32), (64 * MIB, DType.BF16)])
def test_every_weight_comes_in_once_and_only_the_logits_go_out(budget: int, dtype: DType) -> None:
    model = open_smollm2([FRANCE])
    memgraph = planned(model, budget, dtype=dtype).memgraph
    measured, _ = arena().run(memgraph, arena().device(model, memgraph))
    assert measured.measured_h2d_bytes == (WEIGHT_ELEMENTS + len(FRANCE) * WIDTH) * dtype.nbytes + LENGTHS
    assert measured.measured_d2h_bytes == VOCAB * dtype.nbytes


def test_a_table_that_is_only_gathered_from_stays_on_the_host(tmp_path: Path) -> None:
    """Without the head, which is tied to the table and does stream it, five rows are all of the table that crosses."""
    text, outputs = LLAMA.read_text(encoding="utf-8"), "outputs:\n"
    assert text.count(outputs) == 1
    spec = tmp_path / "llama.yaml"
    spec.write_text(text.replace(outputs, "outputs:\n  all_final: {axes: b s m}\n"), encoding="utf-8")
    model = open_smollm2([FRANCE], spec)
    memgraph = planned(model, 64 * MIB, ["all_final"]).memgraph
    measured, _ = arena().run(memgraph, arena().device(model, memgraph))
    rows = len(FRANCE) * WIDTH
    assert measured.measured_h2d_bytes == (WEIGHT_ELEMENTS - VOCAB * WIDTH + rows) * 4
    assert measured.measured_d2h_bytes == rows * 4
