"""Attention of few queries by compiled loops: the naive definition, masks and tiles included, and which attentions are computed so."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from einpage.einsum_front.algebra.expr import Acc
from einpage.einsum_front.base.libraries import MOST_QUERIES
from einpage.kernels.on_llvm.compile import why_not_llvm
from einpage.kernels.on_torch.few_queries import prepare_few_queries
from einpage.kernels.prepare import prepare
from kernels_build import op
from kernels_cases import attention, causal
from kernels_maps import BF
from kernels_naive import Case, assert_right

pytestmark = pytest.mark.skipif(why_not_llvm() is not None, reason=str(why_not_llvm()))
FEW: dict[str, Callable[[], Case]] = {
    "one": lambda: attention(s=(10, 11)),
    "five": lambda: attention(s=(6, 11)),
    "all_keys": lambda: attention(s=(10, 11), score=Acc(0)),
    "wide_heads": lambda: attention(s=(20, 21), e=24),
    "key_tiles": lambda: attention(s=(9, 11), cuts=[3, 7]),
    "long_key_tiles": lambda: attention(s=(199, 200), cuts=[64, 128], e=16, b=1),
    "window": lambda: attention(s=(36, 40), score=causal(Acc(0), op("<", op("-", "s", "t"), 5)), b=1),
    "doubled": lambda: attention(s=(10, 11), epilogue=op("*", Acc(1), 2)),
    "nothing_left": lambda: attention(s=(10, 11), score=causal(Acc(0), op("<", "t", op("-", "s", 20)))),
}


@pytest.mark.parametrize("name", FEW)
def test_few_queries_equal_the_naive_definition(name: str) -> None:
    case = FEW[name]()
    kernel = prepare_few_queries(case.job)
    if kernel is None:
        assert name == "nothing_left", "where a mask hides every key nothing is computed"
        return
    out = case.poisoned()
    kernel(case.operands(), out)
    assert_right(case, out)


def test_a_query_has_the_bits_that_it_has_alone() -> None:
    several, one = attention(s=(6, 11)), attention(s=(10, 11))
    together, alone = several.poisoned(), one.poisoned()
    prepare(several.job)(several.operands(), together)
    prepare(one.job)(several.operands(), alone)
    assert torch.equal(together[:, -1:], alone)


def test_more_queries_and_other_numbers_are_not_theirs() -> None:
    assert 3 * 5 <= MOST_QUERIES < 3 * 6
    assert prepare_few_queries(attention(s=(5, 11)).job) is None
    assert prepare_few_queries(attention(BF, s=(10, 11)).job) is None
