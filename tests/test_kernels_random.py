"""Random jobs: torch kernels in blocks of any size, Triton kernels in the interpreter, both against the naive fp64 definition."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from einpage.einsum_front.job import ContractJob, MapJob
from einpage.kernels.dispatch import Backend, prepare
from einpage.kernels.errors import Unsupported
from einpage.kernels.torch_contract import contract_program
from einpage.kernels.torch_map import map_program
from kernels_naive import Case, assert_near
from kernels_strategies import contract_jobs, map_jobs

LIMITS = st.sampled_from([1, 300, 2000, 8 << 20])
FEW = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))


def on_torch(case: Case, limit: int) -> None:
    assert isinstance(case.job, MapJob | ContractJob)
    program = map_program(case.job, limit) if isinstance(case.job, MapJob) else contract_program(case.job, limit)
    out = case.poisoned()
    program(case.operands(), out, None)
    assert_near(case, out)


def on_triton(case: Case) -> None:
    try:
        kernel = prepare(case.job, Backend.TRITON)
    except Unsupported:
        assume(False)
        return
    out = case.poisoned()
    kernel(case.operands(), out, None)
    assert_near(case, out)


@given(map_jobs(), LIMITS)
@FEW
def test_random_map_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@given(contract_jobs(), LIMITS)
@FEW
def test_random_contract_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@pytest.mark.interpreter
@given(st.one_of(map_jobs(), contract_jobs()))
@FEW
def test_random_jobs_in_triton(case: Case) -> None:
    on_triton(case)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@given(st.one_of(map_jobs(), contract_jobs()), LIMITS)
@MANY
def test_many_random_jobs(case: Case, limit: int) -> None:
    on_torch(case, limit)


@pytest.mark.slow
@pytest.mark.interpreter
@pytest.mark.timeout(3000)
@given(st.one_of(map_jobs(), contract_jobs()))
@settings(MANY, max_examples=500)
def test_many_random_jobs_in_triton(case: Case) -> None:
    on_triton(case)
