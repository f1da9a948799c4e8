"""Random jobs: torch kernels in blocks of any size, Triton kernels in the interpreter, both against the naive fp64 definition."""

from __future__ import annotations

from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.graph.job import AttentionJob, ContractJob, MapJob, PairsJob
from einpage.kernels.on_torch.added_rows import prepare_added_rows
from einpage.kernels.on_torch.attention import prepare_attention
from einpage.kernels.on_torch.contract import prepare_contract
from einpage.kernels.on_torch.map import prepare_map
from einpage.kernels.on_torch.pairs import prepare_pairs
from kernels_naive import Case, assert_near
from kernels_strategies import added_rows_jobs, attention_jobs, contract_jobs, map_jobs, pairs_jobs

LIMITS = st.sampled_from([1, 300, 2000, 8 << 20])
FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
FEWER = settings(FEW, max_examples=15)
MANY = settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))


def on_torch(case: Case, limit: int) -> None:
    match case.job:
        case MapJob() as job:
            program = prepare_map(job, limit)
        case ContractJob() as job:
            program = prepare_contract(job, limit)
        case AttentionJob() as job:
            program = prepare_attention(job, limit)
        case PairsJob() as job:
            program = prepare_pairs(job, limit) if job.products else prepare_added_rows(job, limit)
        case _:
            raise AssertionError(case)
    out = case.poisoned()
    program(case.operands(), out, None)
    assert_near(case, out)


def on_triton(case: Case, small: bool) -> None:
    """In the table's tiles, or in small ones, so that there are several programs and several steps of each loop."""
    from einpage.kernels.launch.kernel import triton_kernel
    from einpage.kernels.tiles.target import Target
    from einpage.kernels.tiles.tiles import Tiles

    tiles = Tiles(16, 16, 16, 4, 1)
    out = case.poisoned()
    triton_kernel(case.job, Target(product=tiles, attention=tiles) if small else None)(case.operands(), out, None)
    assert_near(case, out)


@given(map_jobs(), LIMITS)
@FEW
def test_random_map_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@given(contract_jobs(), LIMITS)
@FEW
def test_random_contract_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@given(attention_jobs(), LIMITS)
@FEWER
def test_random_attention_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@given(added_rows_jobs(), LIMITS)
@FEW
def test_random_added_rows(case: Case, limit: int) -> None:
    on_torch(case, limit)


@pytest.mark.interpreter
@given(added_rows_jobs(), st.booleans())
@FEWER
def test_random_added_rows_in_triton(case: Case, small: bool) -> None:
    on_triton(case, small)


@given(pairs_jobs(), LIMITS)
@FEW
def test_random_jobs_of_pairs(case: Case, limit: int) -> None:
    """The smallest blocks where that makes hundreds, not thousands."""
    assert isinstance(case.job, PairsJob)
    size = prod(r.extent for r in case.job.ranges)
    on_torch(case, limit if size <= 1500 else max(limit, 2000))


@pytest.mark.interpreter
@given(pairs_jobs(), st.booleans())
@settings(FEW, max_examples=25)
def test_random_jobs_of_pairs_in_triton(case: Case, small: bool) -> None:
    on_triton(case, small)


@pytest.mark.interpreter
@given(st.one_of(map_jobs(), contract_jobs()), st.booleans())
@settings(FEW, max_examples=40)
def test_random_jobs_in_triton(case: Case, small: bool) -> None:
    on_triton(case, small)


@pytest.mark.interpreter
@given(attention_jobs(), st.booleans())
@FEWER
def test_random_attention_jobs_in_triton(case: Case, small: bool) -> None:
    on_triton(case, small)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@given(st.one_of(map_jobs(), contract_jobs(), attention_jobs(), pairs_jobs()), LIMITS)
@MANY
def test_many_random_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.timeout(3000)
@given(map_jobs(), st.booleans())
@settings(MANY, max_examples=500)
def test_many_random_expressions_in_triton(case: Case, small: bool) -> None:
    on_triton(case, small)


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.timeout(3000)
@given(st.one_of(contract_jobs(), attention_jobs(), pairs_jobs()), st.booleans())
@settings(MANY, max_examples=500)
def test_many_random_products_and_attentions_in_triton(case: Case, small: bool) -> None:
    on_triton(case, small)
