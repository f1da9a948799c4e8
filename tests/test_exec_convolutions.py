"""Convolutions and shifts as specs, with indices under conditions, against torch's own: whole and split, in little memory, under every
dispatcher, in fp32 and fp16. What the conditions discard is NaN or inf, and a task reads the rows it needs and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from einpage.einsum_front.algebra.expr import Letter
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.fuse.fuse import fuse
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.tile.split import split
from einpage.kernels.prepare import Backend, prepare
from einpage.memplan.plan import plan
from einpage.memplan.problem.footprint import largest_footprint
from kernels_naive import TOLERANCE
from real_bytes import differences, direct, run_on_bytes
from single_runs import run_dynamic, run_serial, run_static
from strategies import a_machine


@dataclass(frozen=True)
class Convolution:
    """A spec and what it computes."""

    spec: str
    want: Callable[[dict[str, Tensor]], Tensor]
    """From inputs and weights by name, in fp64."""
    pieces: dict[str, int] = field(default_factory=lambda: {"s": 3})

    def program(self) -> Program:
        return elaborate(read_document(f"einpage: 1\nname: made\n{self.spec}", "made.yaml"))

    def graph(self, pieces: dict[str, int], dtype: DType) -> TaskGraph:
        return split(fuse(self.program()), {Letter(x): n for x, n in pieces.items()}, dtype)


def causal(x: Tensor, taps: int) -> Tensor:
    """[b, s, i] as [b, i, s] behind taps - 1 zeros."""
    return F.pad(x.transpose(1, 2), (taps - 1, 0))


CASES = {
    "depthwise, as in Mamba": Convolution(
        """sizes: {batch: 2, seq: 40, model: 24, taps: 4}
axes: {b: batch, s: seq, i: model, k: taps}
inputs: {x: {axes: b s i}}
weights: {w: {axes: i k, from: w}, c: {axes: i, from: c}}
body:
  - h[b,s,i] = x[b,s,i] * 2
  - y[b,s,i] = silu(where(s + k >= 3, h[b, s+k-3, i], 0) * w[i,k] + c[i])
outputs: {y: {axes: b s i}}
""",
        lambda v: F.silu(F.conv1d(causal(2 * v["x"], 4), v["w"][:, None], v["c"], groups=24)).transpose(1, 2),
    ),
    "causal, over channels": Convolution(
        """sizes: {batch: 2, seq: 40, model: 12, out: 20, taps: 4}
axes: {b: batch, s: seq, i: model, o: out, k: taps}
inputs: {x: {axes: b s i}}
weights: {w: {axes: o i k, from: w}}
body:
  - h[b,s,i] = x[b,s,i] * 2
  - y[b,s,o] = where(s + k >= 3, h[b, s+k-3, i], 0) * w[o,i,k]
outputs: {y: {axes: b s o}}
""",
        lambda v: F.conv1d(causal(2 * v["x"], 4), v["w"]).transpose(1, 2),
    ),
    "causal, dilated": Convolution(
        """sizes: {batch: 2, seq: 40, model: 12, taps: 3}
axes: {b: batch, s: seq, i: model, k: taps}
inputs: {x: {axes: b s i}}
weights: {w: {axes: i k, from: w}}
body:
  - y[b,s,i] = where(s >= 5 * k, x[b, s - 5*k, i], 0) * w[i,k]
outputs: {y: {axes: b s i}}
""",
        lambda v: F.conv1d(F.pad(v["x"].transpose(1, 2), (10, 0)), v["w"].flip(1)[:, None], groups=12, dilation=5).transpose(1, 2),
    ),
    "two dimensions, padding 1, stride 2": Convolution(
        """sizes: {batch: 2, height: 15, width: 11, high: 8, wide: 6, chans: 6, out: 10, taps: 3}
axes: {b: batch, r: height, q: width, y: high, x: wide, c: chans, o: out, u: taps, v: taps}
inputs: {img: {axes: b c r q}}
weights: {w: {axes: o c u v, from: w}, d: {axes: o, from: d}}
body:
  - h[b,c,r,q] = img[b,c,r,q] * 2
  - p[b,c,y,x,u,v] = where(2*y+u >= 1 and 2*y+u <= height and 2*x+v >= 1 and 2*x+v <= width, h[b, c, 2*y+u-1, 2*x+v-1], 0)
  - z[b,o,y,x] = p[b,c,y,x,u,v] * w[o,c,u,v] + d[o]
outputs: {z: {axes: b o y x}}
""",
        lambda v: F.conv2d(2 * v["img"], v["w"], v["d"], padding=1, stride=2),
        {"y": 2},
    ),
    "transposed, stride 2": Convolution(
        """sizes: {batch: 2, seq: 20, out: 41, model: 12, taps: 3}
axes: {b: batch, t: seq, s: out, i: model, k: taps}
inputs: {x: {axes: b t i}}
weights: {w: {axes: i k, from: w}}
body:
  - h[b,t,i] = x[b,t,i] * 2
  - y[b,s,i] = where(s >= k and (s - k) % 2 == 0 and (s - k) // 2 < seq, h[b, (s-k) // 2, i], 0) * w[i,k]
outputs: {y: {axes: b s i}}
""",
        lambda v: F.conv_transpose1d(2 * v["x"].transpose(1, 2), v["w"][:, None], stride=2, groups=12).transpose(1, 2),
    ),
    "token shift, as in RWKV": Convolution(
        """sizes: {batch: 2, seq: 40, model: 24}
axes: {b: batch, s: seq, i: model, j: model}
inputs: {x: {axes: b s i}}
weights: {mu: {axes: i, from: mu}, w: {axes: j i, from: w}}
body:
  - h[b,s,i] = x[b,s,i] * 2
  - p[b,s,i] = where(s >= 1, h[b,s-1,i], 0)
  - m[b,s,i] = h[b,s,i] + (p[b,s,i] - h[b,s,i]) * mu[i]
  - y[b,s,j] = m[b,s,i] * w[j,i]
outputs: {y: {axes: b s j}}
""",
        lambda v: (2 * (v["x"] + (F.pad(v["x"], (0, 0, 1, 0))[:, :-1] - v["x"]) * v["mu"])) @ v["w"].T,
    ),
    "a window on both sides": Convolution(
        """sizes: {batch: 2, seq: 40, model: 24}
axes: {b: batch, s: seq, i: model, d: 5}
inputs: {x: {axes: b s i}}
body:
  - h[b,s,i] = x[b,s,i] * 2
  - y[b,s,i] = max[d](where(not (s + d < 2 or s + d >= seq + 2), h[b, s+d-2, i], -inf))
outputs: {y: {axes: b s i}}
""",
        lambda v: F.max_pool1d(2 * v["x"].transpose(1, 2), 5, 1, 2).transpose(1, 2),
    ),
    "two tensors one behind the other": Convolution(
        """sizes: {batch: 2, first: 12, second: 28, seq: first + second, model: 24}
axes: {b: batch, s: seq, f: first, t: second, i: model}
inputs: {a: {axes: b f i}, c: {axes: b t i}}
body:
  - a2[b,f,i] = a[b,f,i] * 2
  - c2[b,t,i] = c[b,t,i] * 2
  - y[b,s,i] = where(s < first, a2[b,s,i], c2[b, s - first, i])
outputs: {y: {axes: b s i}}
""",
        lambda v: 2 * torch.cat([v["a"], v["c"]], 1),
    ),
    "attention with a bias by distance": Convolution(
        """sizes: {batch: 2, seq: 130, heads: 2, head: 16}
axes: {b: batch, s: seq, t: seq, h: heads, d: head}
inputs: {q: {axes: b s h d}, p: {axes: b t h d}, v: {axes: b t h d}}
weights: {far: {axes: h s, from: far}}
body:
  - a[b,h,s,t] = softmax[t](where(t <= s, q[b,s,h,d] * p[b,t,h,d] / 4 + far[h, s-t], -inf))
  - y[b,h,s,d] = a[b,h,s,t] * v[b,t,h,d]
outputs: {y: {axes: b h s d}}
""",
        lambda v: F.scaled_dot_product_attention(*(v[x].transpose(1, 2) for x in "qpv"), v["far"][:, distance(130)] + causal_mask(130)),
        {"s": 2},
    ),
}


def distance(n: int) -> Tensor:
    return (torch.arange(n)[:, None] - torch.arange(n)).clamp(0)


def causal_mask(n: int) -> Tensor:
    return torch.full((n, n), -torch.inf, dtype=torch.float64).triu(1)


def data(program: Program, dtype: DType) -> dict[str, Tensor]:
    """Whatever fp16 holds exactly."""
    torch.manual_seed(0)
    tensors = {x.name: torch.randn(x.shape) / 2 for x in (*program.inputs, *program.weights)}
    return {name: t.half().float() for name, t in tensors.items()} if dtype is DType.FP16 else tensors


def check(name: str, got: Tensor, values: dict[str, Tensor], dtype: DType) -> None:
    want = CASES[name].want({k: v.double() for k, v in values.items()})
    assert got.shape == want.shape
    error = float((got.double() - want).abs().max() / want.abs().max())
    assert error <= TOLERANCE[dtype], f"{name} is off by {error:.1e} of its largest value"


@pytest.mark.parametrize("dtype", [DType.FP32, DType.FP16])
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_in_the_least_memory_under_every_dispatcher(name: str, dtype: DType) -> None:
    """Whole and split; a plan in the least memory moves most. What is planned has the bits of what is not."""
    values = data(CASES[name].program(), dtype)
    arrays = {k: v.numpy() for k, v in values.items()}
    for pieces in ({}, CASES[name].pieces):
        graph = CASES[name].graph(pieces, dtype)
        expected = direct(graph, arrays)
        (got,) = expected.values()
        check(name, got, values, dtype)
        memgraph = plan(graph, a_machine(), largest_footprint(graph)[1])
        for dispatch in (run_serial, run_dynamic, run_static):
            assert differences(run_on_bytes(memgraph, arrays, dispatch), expected) == []


@pytest.mark.interpreter
@pytest.mark.parametrize("name", CASES)
def test_a_convolution_in_triton(name: str) -> None:
    pytest.importorskip("triton")
    values = data(CASES[name].program(), DType.FP32)
    (got,) = direct(CASES[name].graph(CASES[name].pieces, DType.FP32), {k: v.numpy() for k, v in values.items()}, Backend.TRITON).values()
    check(name, got, values, DType.FP32)


SHIFT = """sizes: {seq: 192, model: 8}
axes: {s: seq, i: model, k: 4}
inputs: {x: {axes: s i}}
weights: {w: {axes: i k, from: w}}
body:
  - h[s,i] = x[s,i] + 1
  - y[s,i] = where(s + k >= 3, h[s+k-3, i], 0) * w[i,k]
  - z[s,i] = where(s >= 67 and s + k >= 70, x[s+k-70, i], 0) * w[i,k]
outputs: {y: {axes: s i}, z: {axes: s i}}
"""


def test_a_task_reads_the_rows_it_needs() -> None:
    """Of `h` the tiles with rows 61 to 127 for rows 64 to 127; of the input, which is cut as it is read, those rows alone."""
    program = elaborate(read_document(f"einpage: 1\nname: made\n{SHIFT}", "made.yaml"))
    graph = split(fuse(program, ["y", "z"]), {Letter("s"): 3}, DType.FP32)
    boxes = {
        task.name: [
            (t.box.start[0], t.box.end[0]) for operand in task.operands for i in operand if (t := graph.tensors[i]).value in ("h.0", "x")
        ]
        for task in graph.tasks
    }
    assert boxes["y.0[0:64,0:8]"] == [(0, 64)]
    assert boxes["y.0[64:128,0:8]"] == [(0, 64), (64, 128)]
    assert boxes["y.0[128:192,0:8]"] == [(64, 128), (128, 192)]
    assert [boxes[f"z.0[{s}:{s + 64},0:8]"] for s in (0, 64, 128)] == [
        [(0, 1)],
        [(0, 1), (1, 58), (58, 61)],
        [(58, 61), (61, 64), (64, 125)],
    ]


def test_a_shift_is_a_window_but_for_its_first_rows() -> None:
    """Torch's kernel looks up three rows of 192, and copies nothing of the others: temporaries are a fraction of the operand."""
    spec = "sizes: {seq: 192}\naxes: {s: seq, i: 8}\ninputs: {x: {axes: s i}}\nbody:\n"
    spec += "  - y[s,i] = where(s >= 3, x[s-3,i], 0) * 2\noutputs: {y: {axes: s i}}\n"
    program = elaborate(read_document(f"einpage: 1\nname: made\n{spec}", "made.yaml"))
    graph = split(fuse(program, ["y"]), {}, DType.FP32)
    job = graph.tasks[-1].job
    assert job is not None
    assert prepare(job).scratch_bytes < 192 * 8 * 4 // 8


@pytest.mark.parametrize("worst", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("pieces", [{}, {"s": 3}])
def test_what_a_condition_discards_does_not_leak(worst: float, pieces: dict[str, int]) -> None:
    """Rows that only discarded elements read, the clamped ones among them."""
    case = Convolution(
        """sizes: {seq: 24, model: 8}
axes: {s: seq, i: model, j: model, k: 3}
inputs: {x: {axes: s i}}
weights: {w: {axes: j i, from: w}}
body:
  - y[s,j] = where(s >= 5 and s + k < seq - 3, x[s+k-2, i] * w[j,i], 0) * (k + 1)
  - z[s,j] = where(s >= 5 and s + k < seq - 3, x[s+k-2, i], 0) * (k + 1) * w[j,i]
outputs: {y: {axes: s j}, z: {axes: s j}}
""",
        lambda v: torch.empty(0),
    )
    values = data(case.program(), DType.FP32)
    clean = values["x"].clone()
    values["x"][:3] = values["x"][19:] = worst
    graph = split(fuse(case.program(), ["y", "z"]), {Letter(x): n for x, n in pieces.items()}, DType.FP32)
    x, w = clean.double(), values["w"].double()
    want = torch.zeros(24, 8, dtype=torch.float64)
    for s in range(24):
        for k in range(3):
            if s >= 5 and s + k < 21:
                want[s] += (k + 1) * (w @ x[s + k - 2])
    for name, got in direct(graph, {k: v.numpy() for k, v in values.items()}).items():
        assert (got.double() - want).abs().max() < 1e-5, name
