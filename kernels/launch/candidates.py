"""What is worth timing, or compiling, beside the tile in use: every tile that the tables offer for a job, and both ways of fp32.

In: a job, a target. Out: targets, each with one tile forced; the target as it is comes first. A tile that the job cannot be written with is
none: what would be compiled is another one of the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.graph.job import AttentionJob, ContractJob, GatherJob, Job, MapJob, OverflowJob, PairsJob
from einpage.kernels.launch.kernel import launches_of
from einpage.kernels.on_triton.attention import attention_shape
from einpage.kernels.on_triton.contract import product_of
from einpage.kernels.tiles.attention_tiles import AttentionShape
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.product_tiles import ProductShape
from einpage.kernels.tiles.target import Target


def shape_of(job: ContractJob | AttentionJob) -> ProductShape | AttentionShape:
    """What the choice of a tile for `job` depends on."""
    return product_of(job) if isinstance(job, ContractJob) else attention_shape(job)


def candidates(job: Job, target: Target) -> list[Target]:
    """`target`, then `target` with each other tile and way of fp32. Raises Unsupported where the job cannot be written at all."""
    found = [target]
    seen = set() if isinstance(job, GatherJob) else {launch.compiled_as for launch in launches_of(job, target)}
    for other in _offered(job, target):
        assert isinstance(job, ContractJob | AttentionJob)
        *_, launch = launches_of(job, other)  # before it, its flag may be lowered
        if launch.tiles == (other.product or other.attention) and launch.compiled_as not in seen:
            seen.add(launch.compiled_as)
            found.append(other)
    return found


def _offered(job: Job, target: Target) -> Iterator[Target]:
    """Each tile of the tables, for each way in which factors of the job's dtype are multiplied."""
    match job:
        case MapJob() | PairsJob() | GatherJob() | OverflowJob():
            return
        case ContractJob() | AttentionJob():
            shape = shape_of(job)
            ways = list(Fp32Products) if shape.dtype is DType.FP32 else [target.fp32_products]
            for way in ways:
                asked = replace(target, choices=replace(target.choices, fp32_products=way, measured=None))
                if isinstance(shape, ProductShape):
                    yield from (replace(asked, product=tiles) for tiles in asked.products(shape))
                else:
                    yield from (replace(asked, attention=tiles) for tiles in asked.attentions(shape))
        case _:
            assert_never(job)
