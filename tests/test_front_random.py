"""Random specs: whatever is fused and however it is cut, a task graph computes what the eager reference computes.

Fusions are switched off, letters cut and the rule on sides lowered at random. `split` verifies each graph it makes.
"""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.fuse import FuseOptions, fuse
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile import template, tiling
from einpage.einsum_front.tile.split import split
from einpage.einsum_front.tile.tiling import most_pieces, tiling_of
from real_bytes import direct
from spec_strategies import random_data, random_spec, specs
from strategies import Pick

TOLERANCE = 1e-5


def check(text: str, pick: Pick, seed: int) -> None:
    """Fuse, cut and run `text` as `pick` says, on data of `seed`."""
    program = elaborate(read_document(text, "made.yaml"))
    options = FuseOptions(*(pick(0, 3) < 3 for _ in range(3)))
    opgraph = fuse(program, [o.name for o in program.outputs], options)
    grain = (2, 1, 4, 64)[pick(0, 3)]
    with patch.object(tiling, "GRAIN", grain), patch.object(template, "GRAIN", grain):
        most = most_pieces(map(tiling_of, opgraph.ops), program.extents)
        pieces = {letter: n for letter, top in most.items() if (n := pick(1, min(top, 4))) > 1}
        graph = split(opgraph, pieces, DType.FP32)
    data = random_data(program, seed)
    tensors = {name: torch.from_numpy(array) for name, array in data.items()}
    got = direct(graph, data)
    for name, want in evaluate(program, tensors, tensors, torch.float64).items():
        error = float((got[name].double() - want).abs().max())
        how = f"{options}\nsplit {pieces} grain {grain} seed {seed}"
        assert error <= TOLERANCE * max(1.0, float(want.abs().max())), f"output {name} is off by {error}\n{text}\n{how}"


@given(st.data(), specs(most_statements=4), st.integers(0, 2**16))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_any_spec_computes_the_reference(data: st.DataObject, text: str, seed: int) -> None:
    check(text, lambda low, high: data.draw(st.integers(low, high)), seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_thousands_of_specs(block: int) -> None:
    for seed in range(200 * block, 200 * (block + 1)):
        check(random_spec(seed, most_statements=6), Random(seed).randint, seed)
