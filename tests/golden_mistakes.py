"""Mistakes that users make and what the command line answers: one broken spec, file or word at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.spec.reader import read_document
from einpage.exec.cli import main

SPEC = """\
einpage: 1
name: small
sizes: {batch: 4, model: 8, hidden: 2 * model, half: model // 2}
axes: {b: batch, m: model, n: model, h: hidden, z: 2, e: half}
inputs: {x: {axes: b m}}
weights:
  w: {axes: h m, from: fc1.weight}
  v: {axes: n h, from: fc2.weight}
body:
  - y[b,h] = gelu(x[b,m] * w[h,m])
  - r[b,n] = x[b,n] + y[b,h] * v[n,h]
outputs: {r: {axes: b m}}
"""

STATEMENT = "- y[b,h] = gelu(x[b,m] * w[h,m])"

IN_SPEC: dict[str, tuple[str, str]] = {
    "an axis nobody declared": ("w[h,m])", "w[h,q])"),
    "a tensor nobody declared": ("w[h,m])", "wt[h,m])"),
    "too few indices": ("w[h,m])", "w[m])"),
    "extents that differ": ("w[h,m])", "w[m,h])"),
    "a sum that is not written": ("gelu(x[b,m] * w[h,m])", "x[b,m] + w[h,m]"),
    "a value only partly defined": (STATEMENT, "- y[b,1] = sum[m](x[b,m])"),
    "a read before its definition": (STATEMENT, "- y[b,h] = k[b,h]"),
    "a bracket left open": ("w[h,m])", "w[h,m]"),
    "an index out of range": ("w[h,m])", "w[16,m])"),
    "sizes in a circle": ("half: model // 2", "half: third, third: half"),
    "a division by zero": ("half: model // 2", "half: model // 0"),
    "an output only partly defined": ("- r[b,n] = x[b,n] + y[b,h] * v[n,h]", "- r[b,0] = sum[n](x[b,n])"),
    "a key there is not": ("outputs:", "output:"),
    "a value of one iteration": (
        STATEMENT,
        "- repeat: 2\n    as: l\n    body:\n      - y[l,h] = gelu(x[l,m] * w[h,m])",
    ),
    "a list that is too short": ("body:\n", "lists: {k: {over: 2, as: i, default: i + 1}}\nbody:\n  - k2[b] = k[2] * sum[m](x[b,m])\n"),
    "a state that nothing sets": ("body:\n", "state: {k: {axes: b h}}\nbody:\n"),
    "YAML that is not a mapping": (SPEC, "- 1\n- 2\n"),
    "YAML that would make an object": ("name: small", "name: !!python/object:os.system {}"),
}
"""What of SPEC is replaced by what, before `einpage show`."""

STATEMENTS = (
    # numpy and PyTorch
    "y[b,m] = x[:, 0, m]",
    "y[b,m] = x[b, ..., m]",
    "y[b,s,n] = x[b,s,m] @ w[n,m]",
    "y[b,s,n] = x[b,s,m] * w.T[m,n]",
    "y[b,s,m] = torch.exp(x[b,s,m])",
    "y[b,s,m] = x[b,s,m].float()",
    "y[b,s,m] = softmax(x[b,s,m], dim=-1)",
    "y[b,s] = sum[m](x[b,s,m], keepdim=True)",
    "y[b,s] = sum[m] x[b,s,m]",
    "y[b,s] = argmax[m](x[b,s,m])",
    "y[b,s] = argmax(x[b,s,m])",
    "y[b,s] = var[m](x[b,s,m])",
    "y[b,s] = cumsum[s](x[b,s,m])",
    "y[b,s,m] = log_softmax[m](x[b,s,m])",
    "y[b,s,m] = softplus(x[b,s,m])",
    "y[b,s,m] = floor(x[b,s,m])",
    "y[b,s,m] = sign(x[b,s,m])",
    "y[b,s,m] = log2(s + 1)",
    "y[b,s,m] = square(x[b,s,m])",
    "y[b,s,m] = clamp(x[b,s,m], 0, 1)",
    "y[b,s,m] = pow(x[b,s,m], 2)",
    "y[b,s,m] = GELU(x[b,s,m])",
    "y[b,s,m] = sigmiod(x[b,s,m])",
    "y[b,s,m] = hardfoo(x[b,s,m])",
    "y[b,s,m] = rms_norm(x[b,s,m])",
    "y[b,s,n] = matmul(x, w)",
    "y[b,s,m] = cat(x, x)",
    "y[b,s,m] = sqrt(x[b,s,m], eps)",
    "y[b,s,m] = where(x[b,s,m] > 0, x[b,s,m])",
    "y[b,s] = max(x[b,s,m])",
    "y[b,s,m] = max(x[b,s,m], 0, 1)",
    # indices
    "y[b,s,m] = x[b,s-1,m]",
    "y[b,s,m] = where(s >= 1, x[b,s-2,m], 0)",
    "y[b,s,m] = where(t <= s, x[b,s-t,m], x[b,t-s-2,m]) * x[b,t,m]",
    "y[b,s,m] = g[s]",
    "y[b,s,m] = x[b,s,-1]",
    "y[b,s,m] = x[b,s/2,m]",
    "y[b,s,m] = x[b][s][m]",
    "y[b s m] = x[b s m]",
    "y[b,s,m] = x[bsm]",
    "y[b,s,m] = x(b,s,m)",
    "y[b,s,m] = X[b,s,m]",
    "y[b,s+1,m] = x[b,s,m]",
    # Python
    "y[b,s,t] = where(0 <= t < 3, 1, 0)",
    "y[b,s,m] = x[b,s,m] if s > 0 else 0",
    "if s > 0: y[b,s,m] = 1",
    "y[b,s,m] = where(s > 1 && s < 2, 1, 0)",
    "y[b,s,m] = where(True, x[b,s,m], 0)",
    "y[b,s,m] = None",
    "y[b,s,m] = e ** x[b,s,m]",
    "y[b,s,m] = 1e * x[b,s,m]",
    "y[b,s,m] = 2x[b,s,m]",
    "y[b,s,m] = 2 (x[b,s,m])",
    "y[b,s,m] = x[b,s,m] ^ 2",
    "y[b,s,m] -= x[b,s,m]",
    "y[b,s,m] = x[b,s,m] => 2",
    'y[b,s,m] = f"{s}"',
    "y[b,s,m] = x[b,s,m] − 2",
)
"""Statements as people who know other languages write them."""

OVER = """\
einpage: 1
name: small
sizes: {batch: 2, seq: 4, model: 6}
axes: {b: batch, s: seq, t: seq, m: model, n: model}
inputs: {x: {axes: b s m}}
weights: {w: {axes: n m, from: w}, g: {axes: m, from: g}}
body:
"""
"""What STATEMENTS are about."""

IN_WORDS: dict[str, str] = {
    "no such spec": "show nowhere.yaml",
    "a size nobody declared": "show small.yaml --set hiden=3",
    "a size that is not a number": "show small.yaml --set model=nan",
    "a setting without a value": "show small.yaml --set model",
    "an output nobody declared": "show small.yaml --outputs y",
    "a letter that cannot be cut": "show small.yaml --split q=2",
    "more pieces than there can be": "show small.yaml --split h=99",
    "no budget at all": "plan small.yaml --budget 0",
    "a budget in no unit": "plan small.yaml --budget 64parsecs",
    "a machine there is not": "plan small.yaml --budget 1MiB --machine a1000",
    "a plan into a folder there is not": "plan small.yaml --budget 1MiB --out nowhere/plan.json",
    "a budget that is too small": "plan small.yaml --budget 1KiB",
    "weights nowhere": "run small.yaml --budget 1MiB --weights nowhere.safetensors",
    "weights of another model": "run small.yaml --budget 1MiB --machine cpu --weights other.safetensors --input x=x.npy",
    "weights cut short": "run small.yaml --budget 1MiB --machine cpu --weights short.safetensors --input x=x.npy",
    "an input of another shape": "run small.yaml --budget 1MiB --machine cpu --weights random:1 --input x=wide.npy",
    "an input left out": "run small.yaml --budget 1MiB --machine cpu --weights random:1",
    "a plan that is none": "verify small.yaml",
}
"""Command lines over the right spec and the files of `files`."""


def command(*words: str) -> tuple[int, str, str]:
    """The exit status of a command, what it prints to stdout and what to stderr."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(words)
    return status, out.getvalue(), err.getvalue()


def files() -> None:
    """Checkpoints and inputs, right and wrong, in the working directory."""
    weights = {"fc1.weight": np.zeros((16, 8), np.float32), "fc2.weight": np.zeros((8, 16), np.float32)}
    save_file(weights, "short.safetensors")
    whole = Path("short.safetensors").read_bytes()
    Path("short.safetensors").write_bytes(whole[:-100])
    save_file({"fc1.weight": np.zeros((16, 9), np.float32), "fc3.weight": np.zeros(3, np.float32)}, "other.safetensors")
    np.save("x.npy", np.zeros((4, 8), np.float32))
    np.save("wide.npy", np.zeros((4, 9), np.float32))


def mistakes_text() -> str:
    """Every mistake under its name: the command, what it prints, its exit status. Writes into the working directory."""
    return "\n".join(_sections())


def statements_text() -> str:
    """Every statement of STATEMENTS, under it what is wrong with it and what to do."""
    return "\n".join(_refused(statement) for statement in STATEMENTS) + "\n"


def _refused(statement: str) -> str:
    quoted = statement.replace("'", "''")
    with pytest.raises(SpecError) as caught:
        elaborate(read_document(f"{OVER}  - '{quoted}'\noutputs: {{y: {{axes: b s m}}}}\n", "small.yaml"))
    e = caught.value
    assert e.cure or e.expected, f"{statement}: {e.message}, and nothing to do about it"
    said = (e.message, *(f"{label}: {text}" for label, text in (("expected", e.expected), ("cure", e.cure)) if text))
    return "\n    ".join((statement, *said))


def _sections() -> Iterator[str]:
    files()
    for what, (old, new) in IN_SPEC.items():
        assert SPEC.count(old) == 1, what
        Path("small.yaml").write_text(SPEC.replace(old, new), encoding="utf-8")
        yield _section(what, "show small.yaml")
    Path("small.yaml").write_text(SPEC, encoding="utf-8")
    for what, words in IN_WORDS.items():
        yield _section(what, words)


def _section(what: str, words: str) -> str:
    status, out, err = command(*words.split())
    assert status in (2, 3) and not out, f"{what}: status {status}\n{out}{err}"
    return f"# {what}\n$ einpage {words}\n{err}exit {status}\n"
