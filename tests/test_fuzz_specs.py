"""Any text at all is a spec, or is refused in one message: `show` and `plan` on shipped and random specs, changed.

Searched longer: `EINPAGE_FUZZ_S=600`, or `python tests/fuzzing.py test_fuzz_specs:SPECS`. tests/test_front_fuzz.py does the same to the
front-end alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from fuzzing import Case, Fuzzer, assert_right_or_refused
from spec_mutations import change_spec
from spec_strategies import random_spec
from tiny_specs import LANGUAGE, SPEC

EVERY_FORM = """\
einpage: 1
name: every form
sizes: {batch: 2, seq: 5, heads: 2, head: 4, half: head // 2, model: heads * head, vocab: 11, layers: 3}
scalars: {act: 0, eps: 1e-5, near: 100.0, far: 1e4}
axes: {b: batch, s: seq, t: seq, h: heads, e: half, z: 2, d: head, m: model, n: model, v: vocab, j: 3}
inputs:
  tokens: {axes: b s, dtype: int32}
  pad: {axes: b, dtype: int64, default: 0}
weights:
  embed: {axes: v m, from: [embed.weight, {name: token_embd.weight, axes: m v}]}
  head_w: {axes: v m, from: head.weight, or: embed}
lists:
  local: {over: layers, as: l, default: (l + 1) % 3 != 0}
config:
  eps: llama.attention.layer_norm_rms_epsilon
  act: {key: hidden_act, values: {silu: 0, gelu: 1}}
  local: [{key: layer_types, values: {sliding: 1, full: 0}}, pattern]
assume: {model_type: small, rotary_dim: head // 2, sliding_window: []}
ignore: ["*.inv_freq"]
body:
  - x[b,s,m] = embed[tokens[b,s], m]
  - repeat: layers
    as: l
    let: {base: "where(local[l], near, far)"}
    weights:
      g: {axes: m, from: ["layers.{l}.norm", {name: "blk.{l}.norm", plus: 1}]}
      wq: {axes: (h d) m, from: "layers.{l}.q"}
      wo: {axes: m (h d), from: "layers.{l}.o"}
      taps: {axes: m j, from: "layers.{l}.conv"}
    body:
      - u[b,s,m] = x[b,s,m] * rsqrt(mean[m](x[b,s,m]**2) + eps) * g[m]
      - c[b,s,m] = where(s + j >= 2, u[b,s+j-2,m], 0) * taps[m,j]
      - q[b,h,s,d] = c[b,s,m] * wq[h,d,m]
      - r[b,h,s,0,e] = q[b,h,s,e+0] * cos(s * base ** (-e / half)) - q[b,h,s,e+half] * sin(s)
      - r[b,h,s,1,e] = q[b,h,s,e+half] * cos(s) + q[b,h,s,e+0] * sin(s)
      - a[b,h,s,t] = softmax[t](where(t <= s and (local[l] == 0 or s - t < 2), r[b,h,s,z,e] * r[b,h,t,z,e] / sqrt(head), -inf))
      - o[b,s,h,d] = a[b,h,s,t] * q[b,h,t,d]
      - x[b,s,m] += where(act == 0, silu(o[b,s,h,d] * wo[m,h,d]), gelu(o[b,s,h,d] * wo[m,h,d]))
  - logits[b,v] = x[b, seq-1, m] * head_w[v,m] + pad[b]
  - most[b] = max[s,m](x[b,s,m]) - min[m](x[b,0,m])
outputs:
  logits: {axes: b v}
  most: {axes: b}
"""
SHOW = ("show", "spec.yaml", "--json")
PLAN = ("plan", "spec.yaml", "--machine", "cpu", "--json", "--budget")


def specs() -> Sequence[Case]:
    shipped = [path.read_text() for path in sorted(Path(__file__).parents[1].glob("specs/*.yaml"))]
    small = [SPEC.decode(), LANGUAGE.decode(), EVERY_FORM, EVERY_FORM, *(random_spec(seed) for seed in range(12))]
    return (
        *(Case(SHOW, {"spec.yaml": text.encode()}) for text in (*shipped, *small)),
        *(Case((*PLAN, "2GiB"), {"spec.yaml": text.encode()}) for text in shipped),
        *(Case((*PLAN, "256KiB"), {"spec.yaml": text.encode()}) for text in small),
    )


def change(random: Random, case: Case) -> Case:
    """The text of the spec changed; now and then a budget that hardly holds anything."""
    text = change_spec(random, case.files["spec.yaml"].decode())
    argv = tuple(random.choice(("1", "2KiB", "1MiB", "1TiB")) if word == "256KiB" and random.random() < 0.3 else word for word in case.argv)
    return replace(case, argv=argv, files={"spec.yaml": text.encode("utf-8", "surrogatepass")})


SPECS = Fuzzer(specs, change)


@pytest.mark.timeout(1800)
def test_any_spec_is_right_or_refused() -> None:
    assert_right_or_refused("test_fuzz_specs:SPECS", 5, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_specs_are_right_or_refused() -> None:
    assert_right_or_refused("test_fuzz_specs:SPECS", 60, seed=1)
