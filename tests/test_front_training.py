"""`train:` in a spec: steps of SGD and AdamW against torch's, LoRA, what is refused, what is shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.differentiate.training import TrainingStep, for_training, training_step, training_text
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.reader import read_document
from einpage.exec.cli import main
from einpage.exec.planning.request import PlanRequest
from einpage.exec.planning.task_graph import build_graph
from einpage.memplan.plan import plan
from real_bytes import run_on_bytes
from single_runs import run_dynamic
from strategies import a_machine

SPEC = """\
einpage: 1
name: words
sizes: {batch: 3, seq: 5, vocab: 11, model: 6, rank: 2}
axes: {b: batch, s: seq, v: vocab, m: model, n: model, r: rank}
inputs:
  tokens: {axes: b s, dtype: int32, range: 0 .. vocab - 1}
weights:
  embed: {axes: v m, from: embed}
  head: {axes: v m, from: head, or: embed}
  lora_a: {axes: r m, from: lora.a}
  lora_b: {axes: m r, from: lora.b}
body:
  - x[b,s,m] = embed[tokens[b,s], m]
  - repeat: 2
    as: l
    weights: {w: {axes: n m, from: "layers.{l}.w"}}
    body:
      - x[b,s,n] += tanh(x[b,s,m] * w[n,m])
  - x[b,s,m] += 0.5 * (lora_b[m,r] * sum[n](lora_a[r,n] * x[b,s,n]))
  - logits[b,s,v] = x[b,s,m] * head[v,m]
outputs: {logits: {axes: b s v}}
train:
  inputs:
    targets: {axes: b s, dtype: int32, range: -1 .. vocab - 1}
  body:
    - top[b,s] = max[v](logits[b,s,v])
    - nll[b,s] = log(sum[v](exp(logits[b,s,v] - top[b,s]))) + top[b,s] - logits[b,s,max(targets[b,s], 0)]
    - loss = sum[b,s](where(targets[b,s] >= 0, nll[b,s], 0)) / sum[b,s](targets[b,s] >= 0)
  loss: loss
  optimiser: adamw
"""
TIED = ("embed", "lora.a", "lora.b", "layers.0.w", "layers.1.w")


def read(edits: tuple[tuple[str, str], ...] = ()) -> Document:
    text = SPEC
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return read_document(text, "words.yaml")


def step_of(document: Document, present: tuple[str, ...] = TIED) -> TrainingStep:
    return training_step(with_tied_weights(elaborate(for_training(document)), present), document)


def given(step: TrainingStep, seed: int = 0) -> dict[str, Tensor]:
    """The weights, in fp64."""
    rng = np.random.default_rng(seed)
    return {w.name: torch.from_numpy(rng.uniform(-1, 1, w.shape)) for w in step.program.weights}


def batch(seed: int) -> dict[str, Tensor]:
    rng = np.random.default_rng(seed)
    return {"tokens": torch.from_numpy(rng.integers(0, 11, (3, 5))), "targets": torch.from_numpy(rng.integers(-1, 11, (3, 5)))}


def torch_loss(weights: dict[str, Tensor], data: dict[str, Tensor]) -> Tensor:
    """The model and its loss, written a second time."""
    x = weights["embed"][data["tokens"]]
    for name in ("w@0", "w@1"):
        x = x + torch.tanh(x @ weights[name].T)
    x = x + 0.5 * (x @ weights["lora_a"].T) @ weights["lora_b"].T
    logits = x @ weights.get("head", weights["embed"]).T
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), data["targets"].flatten(), ignore_index=-1)


SGD = ("optimiser: adamw", "optimiser: sgd\n  numbers: {rate: 0.3, decay: 0.1}")
STEEP = ("optimiser: adamw", "optimiser: adamw\n  numbers: {rate: 0.03, beta2: 0.95, decay: 0.2}")
MOMENTUM = (
    "optimiser: adamw",
    "numbers: {rate: 0.2, keep: 1 - 0.1}\n  state: [buf]\n  update:\n    - buf = keep * buf\n    - buf += g\n    - w = w - rate * buf",
)
LORA = ("  loss: loss\n", '  loss: loss\n  weights: ["lora_*"]\n')
OPTIMISERS = {
    "adamw": ((), lambda x: torch.optim.AdamW(x)),
    "adamw with numbers": ((STEEP,), lambda x: torch.optim.AdamW(x, lr=0.03, betas=(0.9, 0.95), weight_decay=0.2)),
    "sgd": ((SGD,), lambda x: torch.optim.SGD(x, lr=0.3, weight_decay=0.1)),
    "written": ((MOMENTUM,), lambda x: torch.optim.SGD(x, lr=0.2, momentum=0.9)),
    "lora": ((LORA, STEEP), lambda x: torch.optim.AdamW(x, lr=0.03, betas=(0.9, 0.95), weight_decay=0.2)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_steps_are_those_of_torch(name: str) -> None:
    """Five steps on other data each: losses, weights, and that frozen weights are no states."""
    edits, make = OPTIMISERS[name]
    step = step_of(read(edits))
    whole = step.program.with_states_as_outputs()
    weights = given(step)
    theirs = {n: x.clone().requires_grad_(n in step.weights) for n, x in weights.items()}
    optimiser = make([x for x in theirs.values() if x.requires_grad])
    assert set(step.weights) == ({"lora_a", "lora_b"} if name == "lora" else set(weights))
    carried: dict[str, Tensor] = {}
    for n in range(5):
        data = batch(n)
        found = evaluate(whole, {**data, **carried}, {**weights, **{k: x for k, x in carried.items() if k in weights}}, torch.float64)
        optimiser.zero_grad()
        loss = torch_loss(theirs, data)
        loss.backward()
        optimiser.step()
        assert abs(float(found.pop("loss") - loss.detach())) <= 1e-12
        carried = found
        for k in step.weights:
            assert float((carried[k] - theirs[k].detach()).abs().max()) <= 1e-9, f"{k} after step {n}"
    assert float(carried["step"]) == 5
    assert set(carried) & set(weights) == set(step.weights)


def test_the_rate_may_change_from_step_to_step() -> None:
    step = step_of(read((SGD,)))
    whole, weights = step.program.with_states_as_outputs(), given(step)
    still = evaluate(whole, {**batch(0), "rate": torch.tensor(0.0)}, weights, torch.float64)
    assert all(torch.equal(still[name], weights[name]) for name in step.weights)


def test_a_step_through_planner_and_kernels() -> None:
    """In fp32, in 4 KiB."""
    step = step_of(read((STEEP,)))
    whole, weights = step.program.with_states_as_outputs(), given(step)
    expected = evaluate(whole, batch(0), weights, torch.float64)
    graph = build_graph(whole, PlanRequest(4096, DType.FP32, outputs=tuple(expected))).graph
    defaults = {i.name: np.full(i.shape, i.default) for i in whole.inputs if i.default is not None}
    values = {**defaults, **{name: x.numpy() for name, x in {**batch(0), **weights}.items()}}
    found = run_on_bytes(plan(graph, a_machine(), 4096), values, run_dynamic)
    for name, x in expected.items():
        assert float((found[name].double() - x).abs().max()) <= 1e-5 * max(float(x.abs().max()), 1e-3), name


def test_weights_that_read_one_tensor_stay_one() -> None:
    document = read((("  head: {axes: v m, from: head, or: embed}", "  head: {axes: v m, from: embed}"),))
    step = step_of(document)
    assert "head" not in step.weights and "embed" in step.weights


def test_what_is_kept_for_a_weight_is_no_other_weight() -> None:
    """The moment of `lora_b` beside a weight that has its name."""
    steps = [step_of(read_document(text, "words.yaml")) for text in (SPEC, SPEC.replace("lora_a", "m_lora_b"))]
    one, other = (evaluate(step.program.with_states_as_outputs(), batch(0), given(step), torch.float64) for step in steps)
    assert len(other) == len(one) and all(torch.equal(x, y) for x, y in zip(one.values(), other.values(), strict=True))


SHIFT = """\
einpage: 1
name: shift
sizes: {batch: 4}
axes: {b: batch}
inputs: {x: {axes: b}}
weights: {c: {axes: "", from: c}}
body: ["y[b] = x[b]"]
outputs: {y: {axes: b}}
train: {body: ["loss = mean[b](y[b]) + c"], loss: loss, optimiser: sgd, numbers: {rate: 0.25}, scale: {start: 8}}
"""


@pytest.mark.parametrize(("scale", "moved"), [(8.0, 0.25), (float("inf"), 0.0)])
def test_a_gradient_that_is_the_scale_itself(scale: float, moved: float) -> None:
    """A bias that is added to the loss: no statement makes its gradient."""
    document = read_document(SHIFT, "shift.yaml")
    step = training_step(elaborate(for_training(document)), document)
    data = {"x": torch.ones(4), "loss_scale": torch.tensor(scale)}
    found = evaluate(step.program.with_states_as_outputs(), data, {"c": torch.tensor(2.0)}, torch.float64)
    assert float(found["c"]) == 2 - moved and float(found["overflow"]) == (moved == 0)


def test_statements_under_train_are_fp32_in_every_run() -> None:
    """Those of a repeat there too; the model's are in the run's dtype."""
    document = read((("    - nll[b,s] =", "    - repeat: 2\n      body: ['top[b,s] += 0 * top[b,s]']\n    - nll[b,s] ="),))
    step = training_step(with_tied_weights(elaborate(for_training(document)), TIED), document, DType.FP16)
    model = [d for d in step.program.definitions if d.name not in step.made]
    assert [d.base for d in model if d.dtype is DType.FP32] == ["top", "top", "top", "nll", "loss"]
    assert all(d.dtype in (DType.FP32, None) for d in model)


REFUSED = {
    "no optimiser": ("  optimiser: adamw\n", "", "`train` lacks `optimiser`"),
    "another optimiser": ("optimiser: adamw", "optimiser: adam", "unknown optimiser `adam`"),
    "no loss": ("  loss: loss\n", "", "`train` lacks `loss`"),
    "another loss": ("loss: loss", "loss: los", "no statement sets the loss `los`"),
    "a loss of many numbers": ("loss: loss", "loss: nll", "the loss `nll` has shape (3, 5)"),
    "a loss without a gradient": ("loss: loss", "loss: count\n  weights: embed", "does not depend on `embed`: it has no gradient"),
    "a loss that no weight reaches": ("loss: loss", "loss: count", "the loss `count` depends on no weight: it has no gradient"),
    "integers trained": ("loss: loss", "loss: loss\n  weights: [tokens]", "the input `tokens` holds whole numbers, and cannot be trained"),
    "a weight there is not": ("loss: loss", "loss: loss\n  weights: [lora*, layer]", "no weight is called `layer`"),
    "a number there is not": ("optimiser: adamw", "optimiser: adamw\n  numbers: {beta: 1}", "`adamw` reads no number `beta`"),
    "an optimiser twice": ("optimiser: adamw", "optimiser: adamw\n  update: [w = w - g]", "statements beside `optimiser: adamw`"),
    "a weight left as it is": ("optimiser: adamw", "update: [m = g]", "no statement of `update` sets the weight, `w`"),
    "a state left as it is": ("optimiser: adamw", "state: [m]\n  update: [w = w - g]", "no statement of `update` sets the state `m`"),
    "an index in an update": ("optimiser: adamw", "update: ['w = w - g[0]']", "it has neither indices nor reductions"),
    "a gradient that is set": ("optimiser: adamw", "update: [g = 1, w = w - g]", "an update cannot set `g`"),
    "an unknown name": ("optimiser: adamw", "update: [w = w - lr * g]", "unknown name `lr` in an update"),
    "a number of the scale there is not": ("optimiser: adamw", "optimiser: adamw\n  scale: {begin: 8}", "has no number `begin`"),
    "a scale that shrinks": ("optimiser: adamw", "optimiser: adamw\n  scale: {growth: 1 / 2}", "`growth` is 0.5"),
    "half a step": ("optimiser: adamw", "optimiser: adamw\n  scale: {interval: 2.5}", "`interval` is 2.5"),
    "a scale that is a word": ("optimiser: adamw", "optimiser: adamw\n  scale: dynamic", "`dynamic`"),
    "a name of training": ("- top[b,s] =", "- step[b,s] = 1\n    - top[b,s] =", "`step` names something in this spec"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_where_it_stands(name: str) -> None:
    old, new, message = REFUSED[name]
    counted = ("    - loss = ", "    - count = sum[b,s](targets[b,s] >= 0)\n    - loss = ")
    with pytest.raises(SpecError) as caught:
        step_of(read((counted, (old, new))))
    assert message in caught.value.message
    assert "^" in str(caught.value)


def test_a_spec_without_training() -> None:
    with pytest.raises(UsageError, match=r"no `train:` says what to train"):
        for_training(read_document(SPEC[: SPEC.index("train:")], "words.yaml"))


def test_a_spec_with_training_runs_as_one_without() -> None:
    document = read()
    assert elaborate(document) == elaborate(read_document(SPEC[: SPEC.index("train:")], "words.yaml"))


def test_what_is_shown() -> None:
    shown = training_text(step_of(read((LORA,))), read())
    assert shown.splitlines()[:3] == [
        "trains      24 parameters in 2 weights of 5",
        "keeps       48 numbers beside them in 4 states, and the number of the step",
        "",
    ]
    assert "  d_lora_b[m,r] = " in shown and "d_embed" not in shown and "next_m_lora_a" in shown
    whole = training_text(step_of(read()), read())
    assert "repeat 0 .. 1  (2 alike)\n  in_x.1[b,s,n] = sum[m](x.0[b, s, m] * w@0[n, m])\n" in whole
    assert "\noutside repeats\n  in_x.3[b,s,r] = " in whole and "next_w.1[n,m] = w@1[n, m] * " in whole


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "words.yaml"
    path.write_text(SPEC)
    assert main(["show", "--train", str(path)]) == 0
    assert "gradients and updates" in capsys.readouterr().out
    assert main(["show", "--train", "--json", str(path)]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["states"]["w@1"] == "next_w.1" and any(line.startswith("d_w.0[") for line in facts["made"])
    assert main(["show", "--train", "--split", "v=2", str(path)]) == 2
    assert "leave out --split" in capsys.readouterr().err
    assert main(["show", "--train", "mlp"]) == 2
    assert "no `train:` says what to train" in capsys.readouterr().err
