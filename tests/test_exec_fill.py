"""Weights into tiles: order of axes, casts, tiles that cut blocks, memory, and the determinism of random weights."""

from __future__ import annotations

import subprocess
import sys
import threading
from itertools import pairwise, product
from math import prod, sqrt
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.match.resolve import Resolved, open_weights
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Source, Weight
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, Tensor, TensorId, Value
from einpage.exec.load import fill as fill_module
from einpage.exec.load.fill import fill, read_blocks, read_weight

SPAN = Span(1, 1)
TORCH = {DType.FP32: torch.float32, DType.BF16: torch.bfloat16, DType.FP16: torch.float16}


def weight(shape: tuple[int, ...], groups: tuple[tuple[int, ...], ...], name: str = "w") -> Weight:
    return Weight(name, name, tuple(Letter(c) for c in "abcdef"[: len(shape)]), shape, (Source(f"file.{name}", groups),), None, SPAN)


def cut(shape: tuple[int, ...], pieces: tuple[int, ...]) -> list[Box]:
    """The boxes of an even-as-possible cut of each dimension."""
    edges = [[i * n // p for i in range(p + 1)] for n, p in zip(shape, pieces, strict=True)]
    spans = [list(pairwise(e)) for e in edges]
    return [Box(tuple(a for a, _ in c), tuple(b for _, b in c)) for c in product(*spans)]


def tiled(weights: dict[Weight, list[Box]], dtype: DType) -> tuple[TaskGraph, dict[TensorId, torch.Tensor]]:
    """A graph of weight tiles alone, and NaN-filled slots for them."""
    values = tuple(Value(w.name, w.base, w.shape, dtype, Kind.WEIGHT, w.sources) for w in weights)
    places = [(w, box) for w, boxes in weights.items() for box in boxes]
    tensors = tuple(Tensor(TensorId(i), f"{w.name}{box}", w.name, box, dtype, Kind.WEIGHT) for i, (w, box) in enumerate(places))
    graph = TaskGraph("test", dtype, (), values, tensors, (), (), ())
    return graph, {t.id: torch.full(t.shape, torch.nan, dtype=TORCH[dtype]) for t in tensors}


def by_hand(stored: torch.Tensor, weight: Weight) -> torch.Tensor:
    """The weight in its own axes, element by element from the definition of a Source."""
    (source,) = weight.sources
    out = torch.empty(weight.shape)
    for index in product(*map(range, weight.shape)):
        at = []
        for group in source.groups:
            flat = 0
            for d in group:
                flat = flat * weight.shape[d] + index[d]
            at.append(flat)
        out[index] = stored[tuple(at)]
    return out


CASES = [
    weight((6, 5), ((0,), (1,))),
    weight((6, 5), ((1,), (0,))),
    weight((2, 3, 2, 4, 5), ((0, 1, 3, 2), (4,))),
    weight((2, 3, 2, 4, 5), ((4,), (0, 1, 3, 2))),
    weight((3, 4, 2), ((2, 0, 1),)),
    weight((3, 4, 2), ((1,), (0,), (2,))),
    weight((7,), ((0,),)),
]


@pytest.mark.parametrize("dtype", list(TORCH))
@pytest.mark.parametrize("case", CASES, ids=lambda w: str(w.sources[0].groups))
@pytest.mark.parametrize("block_bytes", [1, 100, 2 << 20])
def test_every_tile_holds_its_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Weight, dtype: DType, block_bytes: int) -> None:
    monkeypatch.setattr(fill_module, "BLOCK_BYTES", block_bytes)
    stored = torch.randn([prod(case.shape[d] for d in g) for g in case.sources[0].groups], generator=torch.Generator().manual_seed(0))
    save_file({"file.w": stored}, str(tmp_path / "m.safetensors"))
    resolved = Resolved(open_weights(str(tmp_path)), {"w": case.sources[0]})
    expected = by_hand(stored, case)
    assert torch.equal(read_weight(resolved, case), expected)
    pieces = tuple(min(n, 1 + i % 3) for i, n in enumerate(case.shape, start=1))
    # A whole copy beside the pieces: tiles of one value may overlap, as where a table is gathered and multiplied.
    boxes = [*cut(case.shape, pieces), Box((0,) * len(case.shape), case.shape)]
    graph, slots = tiled({case: boxes}, dtype)
    said: list[tuple[str, int]] = []
    fill(graph, resolved, slots, lambda name, nbytes: said.append((name, nbytes)))
    for tensor in graph.tensors:
        wanted = expected[tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))].to(TORCH[dtype])
        assert torch.equal(slots[tensor.id], wanted), tensor.name
    assert sum(n for _, n in said) == sum(t.nbytes for t in graph.tensors)
    assert {name for name, _ in said} == {"w"}


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", list(TORCH))
def test_casts_are_those_of_torch(tmp_path: Path, stored: torch.dtype, dtype: DType) -> None:
    scales = torch.tensor([1e-8, 1e-3, 1.0, 60000.0])
    data = (torch.randn(4, 500, generator=torch.Generator().manual_seed(1)).clamp(-1, 1) * scales[:, None]).to(stored)
    save_file({"file.w": data}, str(tmp_path / "m.safetensors"))
    case = weight((4, 500), ((0,), (1,)))
    graph, slots = tiled({case: cut(case.shape, (2, 3))}, dtype)
    fill(graph, Resolved(open_weights(str(tmp_path)), {"w": case.sources[0]}), slots)
    for tensor in graph.tensors:
        wanted = data[tuple(slice(a, b) for a, b in zip(tensor.box.start, tensor.box.end, strict=True))].to(TORCH[dtype])
        assert torch.equal(slots[tensor.id], wanted), tensor.name


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_blocks_partition_the_weight_within_their_size(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4), label="shape"))
    order = data.draw(st.permutations(range(len(shape))), label="order")
    bars = sorted(data.draw(st.sets(st.integers(1, len(shape) - 1), max_size=3), label="bars")) if len(shape) > 1 else []
    groups = tuple(tuple(order[a:b]) for a, b in zip([0, *bars], [*bars, len(shape)], strict=True))
    block_bytes = data.draw(st.integers(1, 400), label="block_bytes")
    case = weight(shape, groups)
    random = RandomWeights(0, {}).declare((case,))
    seen = torch.zeros(shape, dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fill_module, "BLOCK_BYTES", block_bytes)
        columns = prod(shape[d] for d in groups[-1])
        for block in read_blocks(random, case.sources[0], shape):
            seen[tuple(slice(a, b) for a, b in zip(block.box.start, block.box.end, strict=True))] += 1
            assert block.data.shape == block.box.shape
            assert block.data.numel() * 4 <= max(block_bytes, columns * 4)
    assert (seen == 1).all()


@settings(max_examples=100, deadline=None)
@given(data=st.data(), seed=st.integers(0, 3), shape=st.sampled_from([(1000, 700), (9, 300_000), (100_000,), (7, 11, 13_000), (5, 1)]))
def test_rows_of_random_weights_do_not_depend_on_how_they_are_read(data: st.DataObject, seed: int, shape: tuple[int, ...]) -> None:
    random = RandomWeights(seed, {"w": shape, "other": shape})
    rows = prod(shape[:-1])
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, min(rows, start + 500)))
    whole = whole_random(seed, shape)
    np.testing.assert_array_equal(random.read_rows("w", start, stop), whole[start:stop])
    assert (random.read_rows("other", start, stop) != whole[start:stop]).any()


WHOLE: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}


def whole_random(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    if (seed, shape) not in WHOLE:
        WHOLE[seed, shape] = RandomWeights(seed, {"w": shape}).read_rows("w", 0, prod(shape[:-1]))
    return WHOLE[seed, shape]


def test_random_weights_are_the_same_for_ever() -> None:
    """Figures once printed: they must not change between versions, machines or numpy releases."""
    found = RandomWeights(42, {"model.embed": (1000, 64)}).read_rows("model.embed", 998, 1000)
    np.testing.assert_allclose(found[1, :4], PINNED, rtol=1e-6)


PINNED = (0.19569681584835052, -0.10201262682676315, -0.10155011713504791, 0.050601620227098465)


def test_random_weights_have_a_sane_scale() -> None:
    matrix, vector = whole_random(0, (1000, 700)), whole_random(0, (100_000,))
    assert abs(matrix.mean()) < 1e-3 / sqrt(700) * 3
    assert matrix.std() == pytest.approx(1 / sqrt(700), rel=0.01)
    assert abs(np.corrcoef(matrix[0], matrix[1])[0, 1]) < 0.2
    assert len(np.unique(matrix[:, 0])) > 950
    assert vector.mean() == pytest.approx(1, abs=1e-3)
    assert vector.std() == pytest.approx(0.02, rel=0.02)


MEASURE = """
import sys, torch
from einpage.einsum_front.base.dtype import DType
from einpage.exec.load.fill import fill
from einpage.exec.system.process_memory import peak_resident_bytes
from einpage.checkpoints.match.resolve import Resolved, open_weights
from test_exec_fill import cut, tiled, weight

case = weight((3, 2, 1024, 4096), ((0, 2, 1), (3,)))
graph, slots = tiled({case: cut(case.shape, (3, 1, 4, 4))}, DType.BF16)
checkpoint = open_weights(sys.argv[1])
if not checkpoint.tensors:
    checkpoint = checkpoint.declare((case,))
torch.ones(3).to(torch.bfloat16)
before = peak_resident_bytes()
fill(graph, Resolved(checkpoint, {"w": case.sources[0]}), slots)
print(peak_resident_bytes() - before)
assert not any(t.isnan().any() for t in slots.values())
"""


@pytest.mark.parametrize("kind", ["random", "safetensors"])
def test_filling_holds_no_second_copy(tmp_path: Path, kind: str) -> None:
    """The stored tensor is 96 MiB in fp32; filling its 48 MiB of tiles may take a few blocks more, not a tensor."""
    where = "random:1"
    if kind == "safetensors":
        save_file({"file.w": torch.randn(3 * 1024 * 2, 4096)}, str(tmp_path / "m.safetensors"))
        where = str(tmp_path)
    path = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}\n{MEASURE}", where], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    most = (8 << 20) + (8 << 20) * fill_module._threads()
    assert int(done.stdout) < most, f"{int(done.stdout) >> 20} MiB more at the peak"


def threaded(monkeypatch: pytest.MonkeyPatch, threads: int, at_once: int = 2) -> None:
    """Fill with so many threads whatever the size, in small blocks."""
    monkeypatch.setattr(fill_module, "WORTH_THREADS", 0)
    monkeypatch.setattr(fill_module, "_threads", lambda: threads)
    monkeypatch.setattr(fill_module, "BLOCK_BYTES", 512)
    monkeypatch.setattr(fill_module, "BLOCKS_AT_ONCE", at_once)


@pytest.mark.parametrize("threads", [2, 5])
@pytest.mark.parametrize("at_once", [1, 3])
def test_threads_fill_as_one_does_and_tell_it_in_order(threads: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {
        weight((40, 30), ((0,), (1,)), "a"): cut((40, 30), (3, 2)),
        weight((2, 50, 7), ((1, 0), (2,)), "b"): cut((2, 50, 7), (1, 4, 2)),
    }
    random = RandomWeights(5, {}).declare(tuple(weights))
    resolved = Resolved(random, {w.name: w.sources[0] for w in weights})
    found, said = [], []
    for count in (1, threads):
        with pytest.MonkeyPatch.context() as patch:
            threaded(patch, count, at_once)
            graph, slots = tiled(weights, DType.BF16)
            told: list[tuple[str, int, str]] = []
            fill(graph, resolved, slots, lambda name, nbytes: told.append((name, nbytes, threading.current_thread().name)))  # noqa: B023
            found.append([slots[t.id] for t in graph.tensors])
            said.append(told)
    assert all(torch.equal(one, many) for one, many in zip(*found, strict=True))
    assert said[0] == said[1] and len(said[0]) > 8
    assert {name for *_, name in said[1]} == {threading.current_thread().name}, "the caller is told on its own thread"


class Breaking(RandomWeights):
    """Rows from `broken` on cannot be read; what is read is counted."""

    broken = 10**9
    read = 0

    def read_rows(self, name: str, start: int, end: int) -> np.ndarray:
        Breaking.read += 1
        if end > Breaking.broken:
            raise WeightError(f"rows {start}:{end} are gone")
        return RandomWeights.read_rows(self, name, start, end)


@pytest.mark.parametrize("threads", [1, 3])
def test_what_cannot_be_read_is_the_first_and_ends_the_filling(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded(monkeypatch, threads)
    case = weight((4000, 64), ((0,), (1,)))
    graph, slots = tiled({case: cut(case.shape, (4, 1))}, DType.FP32)
    checkpoint = Breaking(0, {"file.w": (4000, 64)})
    monkeypatch.setattr(Breaking, "broken", 21)
    monkeypatch.setattr(Breaking, "read", 0)
    before = torch.get_num_threads()
    with pytest.raises(WeightError, match="rows 20:22 are gone"):
        fill(graph, Resolved(checkpoint, {"w": case.sources[0]}), slots)
    assert Breaking.read < 100, "blocks that nobody began are not read"
    assert not [t for t in threading.enumerate() if t.name.startswith("einpage-fill")]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("threads", [1, 4])
def test_an_interrupt_ends_the_filling(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded(monkeypatch, threads)
    case = weight((4000, 64), ((0,), (1,)))
    graph, slots = tiled({case: cut(case.shape, (1, 1))}, DType.FP32)
    monkeypatch.setattr(Breaking, "read", 0)

    def interrupt(name: str, nbytes: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fill(graph, Resolved(Breaking(0, {"file.w": (4000, 64)}), {"w": case.sources[0]}), slots, interrupt)
    assert Breaking.read < 100
    assert not [t for t in threading.enumerate() if t.name.startswith("einpage-fill")]


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_not_finite_is_told_whoever_found_it(threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threaded(monkeypatch, threads, 1)
    stored = torch.randn(500, 40).half()
    stored[17, 3], stored[17, 5], stored[480, 0] = float("-inf"), float("nan"), float("inf")
    save_file({"file.w": stored}, str(tmp_path / "m.safetensors"))
    case = weight((500, 40), ((0,), (1,)))
    graph, slots = tiled({case: cut(case.shape, (2, 2))}, DType.FP16)
    (found,) = fill(graph, Resolved(open_weights(str(tmp_path)), {"w": case.sources[0]}), slots)
    assert (found.count, found.first, found.value, found.beyond) == (3, (17, 3), float("-inf"), False)


@pytest.mark.parametrize("bits", [0x7BFF, 0xFBFF, 0x0001, 0x8000, 0x7C00, 0xFC00, 0x7C01, 0xFC01, 0x7FFF, 0xFFFF])
@pytest.mark.parametrize("dtype", list(TORCH.values()))
def test_bits_of_fp16_say_whether_it_is_finite(bits: int, dtype: torch.dtype) -> None:
    """The largest numbers of each sign, the smallest, infinities, NaN of both signs."""
    rows = torch.from_numpy(np.array([[0x3C00, bits, 0xBC00]], np.uint16).view(np.float16))
    assert fill_module._is_finite(rows, dtype) == bool(rows.to(dtype).isfinite().all()) == bool(rows.isfinite().all())


def test_every_bit_pattern_of_fp16_is_judged_as_torch_does() -> None:
    patterns = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.float16))
    finite = [fill_module._is_finite(patterns[i : i + 1], torch.float16) for i in range(0, 1 << 16, 61)]
    assert finite == patterns[::61].isfinite().tolist()
