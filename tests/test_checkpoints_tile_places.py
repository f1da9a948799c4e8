"""Where tiles lie on disk: a tile that is read where it is has the bytes that filling it gives, and others are packed."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from einpage.checkpoints.disk.direct_file import PAGE
from einpage.checkpoints.files.checkpoint import StoredAt
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.match.resolve import Resolved, open_weights
from einpage.checkpoints.match.tile_places import files_to_pack, packed_key, start_in, tile_places
from einpage.einsum_front.base.dtype import BlockFormat, DType, ElementType, Stored
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Source
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.exec.load.fill import fill
from test_exec_fill import CASES, cut, tiled

TORCH = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}


def resolved_at(folder: Path, weights: dict, dtype: torch.dtype) -> Resolved:  # type: ignore[type-arg]
    tensors = {}
    for number, weight in enumerate(weights):
        (source,) = weight.sources
        shape = tuple(prod(weight.shape[d] for d in group) for group in source.groups)
        tensors[source.name] = torch.randn(shape, generator=torch.Generator().manual_seed(number)).to(dtype)
    save_file(tensors, folder / "model.safetensors")
    return Resolved(open_weights(str(folder / "model.safetensors")), {w.name: w.sources[0] for w in weights})


@given(data=st.data())
@settings(max_examples=60)
def test_a_tile_that_is_read_where_it_is_is_what_filling_gives(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    weight = data.draw(st.sampled_from(CASES))
    pieces = tuple(data.draw(st.integers(1, n)) for n in weight.shape)
    stored, dtype = data.draw(st.sampled_from([*TORCH])), data.draw(st.sampled_from([*TORCH]))
    graph, slots = tiled({weight: cut(weight.shape, pieces)}, dtype)
    folder = tmp_path_factory.mktemp("w")
    resolved = resolved_at(folder, {weight: ()}, TORCH[stored])
    places = tile_places(graph, resolved)
    fill(graph, resolved, slots)
    whole = (folder / "model.safetensors").read_bytes()
    direct = [t for t in graph.tensors if t.id not in places.packed]
    for tile in direct:
        at = places.offset_by_tensor[tile.id]
        assert whole[at : at + tile.nbytes] == slots[tile.id].view(torch.uint8).numpy().tobytes()
    assert stored == dtype or not direct
    if stored == dtype and weight.sources[0].groups == tuple((d,) for d in range(len(weight.shape))):
        assert bool(direct) or pieces[1:] != (1,) * (len(pieces) - 1), "whole rows of a matrix that stands as it is are read there"
    # no two tiles share a byte, and what is packed lies at pages after the files
    spans = sorted((places.offset_by_tensor[t.id], places.offset_by_tensor[t.id] + t.nbytes) for t in graph.tensors)
    assert all(a <= b for (_, a), (b, _) in pairwise(spans)) and spans[-1][1] <= places.nbytes
    assert all(places.offset_by_tensor[t] >= places.bases[-1] and places.offset_by_tensor[t] % PAGE == 0 for t in places.packed)


F32 = StoredAt(Path("f"), 1000, DType.FP32)
Q = StoredAt(Path("f"), 96, BlockFormat.Q4_1)
SQUARE = Source("w", ((0,), (1,)))
BLOCKS = Stored(BlockFormat.Q4_1, 1, DType.FP32)


@pytest.mark.parametrize(
    ("stored", "source", "shape", "box", "type", "start"),
    [
        (F32, SQUARE, (8, 64), Box((2, 0), (6, 64)), DType.FP32, 1000 + 2 * 64 * 4),
        (F32, SQUARE, (8, 64), Box((2, 16), (3, 32)), DType.FP32, 1000 + 2 * 64 * 4 + 64),
        (F32, SQUARE, (8, 64), Box((2, 16), (4, 32)), DType.FP32, None),
        (F32, SQUARE, (8, 64), Box((0, 0), (8, 64)), DType.BF16, None),
        (F32, Source("w", ((0,), (1,)), plus=1.0), (8, 64), Box((0, 0), (8, 64)), DType.FP32, None),
        (F32, Source("w", ((1,), (0,))), (8, 64), Box((0, 0), (8, 64)), DType.FP32, None),
        (F32, Source("w", ((1,), (0,))), (8, 64), Box((0, 5), (8, 6)), DType.FP32, 1000 + 5 * 8 * 4),
        (StoredAt(Path("f"), 1001, DType.FP32), SQUARE, (8, 64), Box((0, 0), (8, 64)), DType.FP32, None),
        (Q, SQUARE, (8, 64), Box((2, 0), (6, 64)), BLOCKS, 96 + 2 * 40),
        (Q, SQUARE, (8, 64), Box((2, 32), (3, 64)), BLOCKS, 96 + 2 * 40 + 20),
        (Q, SQUARE, (8, 64), Box((2, 0), (6, 64)), DType.FP32, None),
        (Q, SQUARE, (8, 64), Box((2, 0), (6, 64)), Stored(BlockFormat.Q4_0, 1, DType.FP32), None),
        (StoredAt(Path("f"), 0, DType.BF16), SQUARE, (8, 64), Box((1, 0), (2, 64)), Stored(BlockFormat.BF16, 1, DType.FP32), 128),
    ],
)
def test_places_by_hand(stored: StoredAt, source: Source, shape: tuple[int, ...], box: Box, type: ElementType, start: int | None) -> None:
    assert start_in(stored, source, shape, box, type) == start


def key_of(graph: TaskGraph, resolved: Resolved, digest: str = "d") -> str:
    places = tile_places(graph, resolved)
    return packed_key(graph, resolved, places, dict.fromkeys(files_to_pack(graph, resolved, places), digest))


def test_a_packed_file_is_named_by_all_that_its_bytes_follow_from(tmp_path: Path) -> None:
    weight = CASES[1]
    graph, _ = tiled({weight: cut(weight.shape, (2, 1))}, DType.FP32)
    resolved = resolved_at(tmp_path, {weight: ()}, torch.float32)
    others = [
        key_of(tiled({weight: cut(weight.shape, (3, 1))}, DType.FP32)[0], resolved),
        key_of(tiled({weight: cut(weight.shape, (2, 1))}, DType.BF16)[0], resolved),
        key_of(graph, resolved, "other contents"),
        key_of(graph, Resolved(resolved.checkpoint, {weight.name: Source("file.w", ((1,), (0,)), plus=1.0)})),
        key_of(graph, Resolved(RandomWeights(1, dict(resolved.checkpoint.tensors)), resolved.source_by_weight)),
        key_of(graph, Resolved(RandomWeights(2, dict(resolved.checkpoint.tensors)), resolved.source_by_weight)),
    ]
    first = key_of(graph, resolved)
    assert first == key_of(graph, resolved) and len({first, *others}) == 7


def test_random_weights_are_all_packed(tmp_path: Path) -> None:
    weight = CASES[0]
    graph, _ = tiled({weight: cut(weight.shape, (2, 1))}, DType.FP32)
    resolved = Resolved(RandomWeights(0, {"file.w": (6, 5)}), {weight.name: weight.sources[0]})
    places = tile_places(graph, resolved)
    assert places.files == () and places.bases == (0,) and len(places.packed) == 2 and places.nbytes == 2 * PAGE
    assert np.all(np.array([*places.offset_by_tensor.values()]) % PAGE == 0)
