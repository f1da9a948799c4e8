"""Mistakes that users make and what the command line answers: one broken spec, file or word at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

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
    "YAML that is not a mapping": (SPEC, "- 1\n- 2\n"),
    "YAML that would make an object": ("name: small", "name: !!python/object:os.system {}"),
}
"""What of SPEC is replaced by what, before `einpage show`."""

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
