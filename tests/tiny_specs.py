"""Specs that are planned and run in a hundredth of a second: a product, and models of language of one matrix."""

from __future__ import annotations

SPEC = b"""einpage: 1
name: small
sizes: {rows: 3, width: 4}
axes: {r: rows, i: width, o: width}
inputs:
  x: {axes: r i}
  n: {axes: r, dtype: int32, default: 1}
weights:
  w: {axes: o i, from: w.weight}
body:
  - y[r,o] = x[r,i] * w[o,i] + n[r]
outputs:
  y: {axes: r o}
"""
LANGUAGE = b"""einpage: 1
name: language
sizes: {batch: 1, seq: 4, vocab: 300, width: 8}
scalars: {eps: 1.0e-5}
config: {eps: llama.attention.layer_norm_rms_epsilon, width: hidden_size}
axes: {b: batch, s: seq, v: vocab, i: width}
inputs:
  tokens: {axes: b s, dtype: int32}
weights:
  embed: {axes: v i, from: [embed.weight, token_embd.weight]}
body:
  - logits[b,v] = embed[tokens[b,seq-1], i] * embed[v,i] + eps
outputs:
  logits: {axes: b v}
"""
GENERATING = b"""einpage: 1
name: generating
sizes: {batch: 1, seq: 4, past: 0, room: 0, reach: past + room + seq, vocab: 300, width: 8}
axes: {b: batch, s: seq, t: reach, v: vocab, i: width}
inputs:
  tokens: {axes: b s, dtype: int32, range: 0 .. vocab - 1}
  lengths: {axes: b, dtype: int32, default: seq, range: 1 .. seq}
  at: {axes: b, dtype: int32, default: past, range: past .. past + room}
weights:
  embed: {axes: v i, from: embed.weight}
state:
  k: {axes: b t i, along: t}
body:
  - x[b,s,i] = embed[tokens[b,s], i]
  - k[b,at[b]+s,i] = x[b,s,i]
  - a[b,s,t] = softmax[t](where(t <= at[b]+s, x[b,s,i] * k[b,t,i], -inf))
  - y[b,s,i] = a[b,s,t] * k[b,t,i]
  - logits[b,v] = y[b,lengths[b]-1,i] * embed[v,i]
outputs:
  logits: {axes: b v}
"""
LEARNING = GENERATING.replace(b"outputs:\n", b"outputs:\n  all_logits: {axes: b s v}\n").replace(
    b"outputs:\n", b"  - all_logits[b,s,v] = y[b,s,i] * embed[v,i]\noutputs:\n"
)
