"""How many Triton sources a split model needs: one for every shape of tile, wherever the tile lies."""

from __future__ import annotations

from typing import Any

import pytest

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.job import GatherJob, Job, MapJob, View
from einpage.einsum_front.tile.split import split
from specs_small import small_program

pytest.importorskip("triton")

from einpage.kernels.launch.kernel import kernel_sources, launches_of
from einpage.kernels.tiles.target import Target

SIZES = {
    "llama": {"seq": 128, "layers": 2, "ffn": 192, "vocab": 192, "heads": 4, "kv_heads": 4, "model": 128},
    "gpt2": {"seq": 128, "layers": 2, "ffn": 192, "vocab": 192, "heads": 4, "model": 128},
}
PIECES = {"llama": {"f": 3, "v": 3, "k": 2, "s": 2}, "gpt2": {"f": 3, "v": 3, "h": 2, "s": 2}}


def split_jobs(name: str) -> set[Job]:
    graph = split(fuse(small_program(name, SIZES[name])), {Letter(x): n for x, n in PIECES[name].items()}, DType.FP32)
    return {task.job for task in graph.tasks if task.job is not None and not isinstance(task.job, GatherJob)}


def shape_of(job: Job) -> tuple[Any, ...]:
    """All that a kernel of `job` may depend on, places left out: names, dtypes, extents, tiles as they lie relative to each other."""
    steps = (job.carry is None, job.last) if hasattr(job, "carry") else ()
    extents = tuple((r.letter, r.extent) for r in job.ranges)
    return (type(job), steps, extents, *(_relative(v) for v in (*job.reads, job.result)))


def _relative(view: View) -> tuple[Any, ...]:
    first = view.boxes[0].start
    places = tuple(tuple(a - b for a, b in zip(box.start, first, strict=True)) for box in view.boxes)
    return view.name, view.dtype, places, tuple(box.shape for box in view.boxes)


@pytest.mark.parametrize("name", PIECES)
def test_one_source_for_every_shape_of_tile(name: str) -> None:
    jobs = split_jobs(name)
    sources_by_shape: dict[tuple[Any, ...], set[tuple[str, ...]]] = {}
    for job in jobs:
        sources_by_shape.setdefault(shape_of(job), set()).add(kernel_sources(job))
    assert len(sources_by_shape) < len(jobs) / 2
    for shape, sources in sources_by_shape.items():
        assert len(sources) == 1, f"{len(sources)} sources for {shape}"


def test_a_letter_used_as_a_number_is_passed_its_start() -> None:
    """Rotations of different rows are one source, and are launched with where their rows start."""
    starts_by_source: dict[str, set[tuple[int, ...]]] = {}
    for job in split_jobs("llama"):
        if isinstance(job, MapJob) and "q" in {v.name for v in job.reads}:
            for launch in launches_of(job, Target()):
                starts_by_source.setdefault(launch.text, set()).add(launch.starts)
    (starts,) = starts_by_source.values()
    assert starts == {(0, 0), (64, 0)}, "of s and e"
