"""The real model's file: what is in it, its figures, and the order of its Q and K rows, against independent computations."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from gguf import GGUFReader

from einpage.checkpoints.match.metadata import spec_settings
from einpage.checkpoints.match.resolve import Resolved, open_weights
from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import Span
from einpage.einsum_front.graph.job import Box
from einpage.einsum_front.graph.program import Source, Weight
from einpage.einsum_front.graph.taskgraph import Kind, TaskGraph, Tensor, TensorId, Value
from einpage.einsum_front.spec.reader import load_document
from einpage.exec.load.fill import fill, read_weight
from smollm2 import smollm2_path
from specs_small import SPECS

GGUF_QK = ((0, 1, 3, 2), (4,))
"""`(k g e z) m` of a weight with axes `(k g z e) m`."""


def dequantised_by_hand(name: str) -> np.ndarray:
    """A Q4_1 tensor from the format's definition: blocks of 32 as fp16 scale, fp16 minimum, 16 bytes of nibbles, low ones first."""
    (tensor,) = [t for t in GGUFReader(smollm2_path()).tensors if t.name == name]
    assert tensor.tensor_type.name == "Q4_1"
    blocks = np.frombuffer(bytes(tensor.data), np.uint8).reshape(-1, 20)
    scale, minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32).T
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    return (nibbles * scale[:, None] + minimum[:, None]).reshape(tuple(tensor.shape[::-1]))


def test_shapes_and_settings() -> None:
    checkpoint = open_weights(str(smollm2_path()))
    shapes = checkpoint.tensors
    assert len(shapes) == 272
    assert sum(int(np.prod(s)) for s in shapes.values()) == 134_515_008
    assert shapes["token_embd.weight"] == (49152, 576)
    assert shapes["blk.29.ffn_down.weight"] == (576, 1536)
    assert shapes["blk.0.attn_k.weight"] == (192, 576)
    assert shapes["output_norm.weight"] == (576,)
    sizes = {"vocab": 49152, "model": 576, "layers": 30, "heads": 9, "kv_heads": 3, "ffn": 1536}
    assert spec_settings(load_document(SPECS / "llama.yaml"), checkpoint) == {**sizes, "theta": 100000.0, "eps": 1e-5}
    assert checkpoint.damage == ()


def test_rows_are_dequantised_as_the_format_says() -> None:
    checkpoint = open_weights(str(smollm2_path()))
    expected = dequantised_by_hand("blk.7.ffn_up.weight")
    np.testing.assert_array_equal(checkpoint.read_rows("blk.7.ffn_up.weight", 0, 1536), expected)
    np.testing.assert_array_equal(checkpoint.read_rows("blk.7.ffn_up.weight", 1000, 1003), expected[1000:1003])


@pytest.mark.parametrize(("name", "kv", "group"), [("q", 3, 3), ("k", 3, 1)])
def test_rows_of_q_and_k_are_deinterleaved(name: str, kv: int, group: int) -> None:
    """FACTS: view each head's rows as (half, 2), swap the last two, flatten: that is the half-split order of the published weights."""
    source = Source(f"blk.3.attn_{name}.weight", GGUF_QK)
    weight = Weight("w", "w", tuple(map(Letter, "kgzem")), (kv, group, 2, 32, 576), (source,), None, Span(1, 1))
    resolved = Resolved(open_weights(str(smollm2_path())), {"w": source})
    stored = dequantised_by_hand(source.name)
    half_split = stored.reshape(kv * group, 32, 2, 576).swapaxes(1, 2).reshape(kv * group * 64, 576)
    np.testing.assert_array_equal(read_weight(resolved, weight).reshape(-1, 576).numpy(), half_split)
    boxes = [Box((k, 0, z, 0, 0), (k + 1, group, z + 1, 32, 576)) for k in range(kv) for z in range(2)]
    tensors = tuple(Tensor(TensorId(i), f"w{i}", "w", box, DType.FP32, Kind.WEIGHT) for i, box in enumerate(boxes))
    value = Value("w", "w", weight.shape, DType.FP32, Kind.WEIGHT, (source,))
    slots = {t.id: torch.full(t.shape, torch.nan) for t in tensors}
    fill(TaskGraph("test", DType.FP32, (), (value,), tensors, (), (), ()), resolved, slots)
    for tensor in tensors:
        k, _, z, _, _ = tensor.box.start
        rows = half_split.reshape(kv, group, 2, 32, 576)[k : k + 1, :, z : z + 1]
        np.testing.assert_array_equal(slots[tensor.id].numpy(), rows, err_msg=tensor.name)


def test_opening_costs_little_and_imports_no_torch() -> None:
    script = (
        "import sys\n"
        "from einpage.exec.system.process_memory import peak_resident_bytes\n"
        "from einpage.checkpoints.match.resolve import open_weights\n"
        "before = peak_resident_bytes()\n"
        "checkpoint = open_weights(sys.argv[1])\n"
        "for row in range(0, 49152, 2048): checkpoint.read_rows('token_embd.weight', row, row + 512)\n"
        "print(peak_resident_bytes() - before)\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(smollm2_path())], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24 << 20, f"{int(done.stdout)} bytes more at the peak: the file is 96 MiB, these rows 28 MiB"
