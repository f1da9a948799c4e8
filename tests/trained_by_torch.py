"""Training written a second time: transformers' LLaMA, torch's AdamW, and the low-rank factors of LoRA as they are published, for tests.

In: a step of einpage, whose weights are taken over. Out: the loss of each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from einpage.exec.load.fill import read_weights
from einpage.exec.planning.train_step import TrainStep

IGNORED = -100
"""What transformers takes for no target."""


class WithFactors(nn.Module):
    """A linear map, and alpha ÷ rank times B A beside it (Hu et al., 2021)."""

    def __init__(self, base: nn.Module, a: Tensor, b: Tensor, alpha: float) -> None:
        super().__init__()
        self.base, self.a, self.b, self.scale = base, nn.Parameter(a), nn.Parameter(b), alpha / a.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


def stored_weights(step: TrainStep, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights that a step begins with, by the names and in the shapes of a checkpoint of Hugging Face's."""
    assert step.model.resolved is not None
    found = {}
    for name, x in read_weights(step.model.resolved, step.program).items():
        weight = next(w for w in step.program.weights if w.name == name)
        groups = weight.sources[0].groups
        rows = x.permute([d for group in groups for d in group])
        shape = [int(torch.tensor([weight.shape[d] for d in group]).prod()) for group in groups]
        found[weight.sources[0].name] = rows.reshape(shape).to(dtype)
    return found


def llama(step: TrainStep, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model of a step of specs/llama.yaml or specs/lora/llama.yaml."""
    size, scalar, weights = step.program.sizes, step.program.scalars, stored_weights(step, dtype)
    config = LlamaConfig(
        vocab_size=size["vocab"],
        hidden_size=size["model"],
        intermediate_size=size["ffn"],
        num_hidden_layers=size["layers"],
        num_attention_heads=size["heads"],
        num_key_value_heads=size["kv_heads"],
        head_dim=size["head"],
        rms_norm_eps=scalar["eps"],
        rope_parameters={"rope_theta": scalar["theta"], "rope_type": "default"},
        tie_word_embeddings="lm_head.weight" not in weights,
        max_position_embeddings=2048,
        attn_implementation="eager",
    )
    model = LlamaForCausalLM(config).to(dtype)
    own = {name: x for name, x in weights.items() if ".lora_" not in name}
    if config.tie_word_embeddings:
        own["lm_head.weight"] = own["model.embed_tokens.weight"]
    model.load_state_dict(own)
    if len(own) < len(weights):
        model.requires_grad_(False)
        for n, layer in enumerate(model.model.layers):
            for proj in ("q_proj", "v_proj"):
                name = f"base_model.model.model.layers.{n}.self_attn.{proj}.lora_"
                factors = weights[f"{name}A.weight"], weights[f"{name}B.weight"]
                setattr(layer.self_attn, proj, WithFactors(getattr(layer.self_attn, proj), *factors, scalar["alpha"]))
    return model


def losses_of_torch(
    step: TrainStep,
    sequences: Sequence[Sequence[int]],
    batch: int,
    steps: int,
    rate: Callable[[int], float],
    decay: float,
    dtype: torch.dtype,
) -> list[float]:
    """Of so many steps; `rate` by the number of the step, from 1."""
    model = llama(step, dtype)
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1.0, weight_decay=decay)
    losses = []
    for n in range(steps):
        rows = [sequences[(n * batch + i) % len(sequences)] for i in range(batch)]
        longest = max(map(len, rows))
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        labels = torch.tensor([[*row, *[IGNORED] * (longest - len(row))] for row in rows])
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.param_groups[0]["lr"] = rate(n + 1)
        optimiser.step()
        losses.append(float(loss))
    return losses
