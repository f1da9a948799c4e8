"""Each shipped spec against an independent implementation of its model, and mutants of the spec that the tolerance rejects.

In fp32, the largest difference is within 1e-5 of the largest reference value. LLaMA and GPT-2 are compared with transformers, random
weights at small sizes; the others with a few lines of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document

SPECS = Path(__file__).parent.parent / "specs"
TOLERANCE = 1e-5
Edit = tuple[str, str]
"""A piece of a spec's text and what a mutant has instead."""


def load(name: str, settings: Mapping[str, int | float | str], edit: Edit | None = None) -> Program:
    text = (SPECS / f"{name}.yaml").read_text()
    if edit is not None:
        assert edit[0] in text, f"specs/{name}.yaml no longer holds {edit[0]!r}"
        text = text.replace(*edit)
    return elaborate(read_document(text, f"{name}.yaml"), settings)


def error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, as a share of the largest expected value."""
    assert found.shape == expected.shape
    return ((found.double() - expected.double()).abs().max() / expected.double().abs().max()).item()


def weights_from(program: Program, checkpoint: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors as the program's weights, by each source's groups, and more by what it says."""
    found: dict[str, Tensor] = {}
    for weight in program.weights:
        source = next(s for s in weight.sources if s.name in checkpoint)
        order = [dim for group in source.groups for dim in group]
        tensor = (checkpoint[source.name] + source.plus).reshape([weight.shape[dim] for dim in order])
        found[weight.name] = tensor.permute([order.index(dim) for dim in range(len(order))])
    return found


def randomise(model: torch.nn.Module) -> dict[str, Tensor]:
    """Weights large enough that everything matters, small enough that fp32 is well conditioned."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in sorted(model.named_parameters()):
        scale = 0.2 if parameter.dim() == 1 else 1.5 / parameter.shape[-1] ** 0.5
        shift = 1.0 if "norm" in name or "ln_" in name else 0.0
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale + shift
    return {name: tensor.detach() for name, tensor in model.state_dict().items()}


LLAMA = {"batch": 2, "seq": 11, "vocab": 97, "model": 48, "layers": 3, "heads": 6, "kv_heads": 2, "ffn": 40, "theta": 500.0, "eps": 1e-3}
LENGTHS = torch.tensor([11, 6], dtype=torch.int32)


def tokens(program: Program) -> Tensor:
    return torch.randint(0, program.sizes["vocab"], (2, program.sizes["seq"]), generator=torch.Generator().manual_seed(3))


def llama_model(*, tied: bool = False, head: int = 8) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=LLAMA["vocab"], hidden_size=48, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2, intermediate_size=40,
        head_dim=head, rms_norm_eps=1e-3, max_position_embeddings=64, tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, attn_implementation="eager",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def llama_error(program: Program, model: LlamaForCausalLM, checkpoint: Mapping[str, Tensor]) -> float:
    ids = tokens(program)
    with torch.no_grad():
        expected = model(ids).logits
    found = evaluate(program, {"tokens": ids, "lengths": LENGTHS}, weights_from(program, checkpoint))
    last = torch.stack([expected[i, n - 1] for i, n in enumerate(LENGTHS)])
    return max(error(found["all_logits"], expected), error(found["logits"], last))


def test_llama_is_llama() -> None:
    model = llama_model()
    assert llama_error(load("llama", LLAMA), model, randomise(model)) < TOLERANCE


def test_llama_with_tied_weights_and_a_head_of_its_own_size() -> None:
    model = llama_model(tied=True, head=12)
    checkpoint = randomise(model)
    del checkpoint["lm_head.weight"]
    program = with_tied_weights(load("llama", {**LLAMA, "head": 12}), checkpoint)
    assert llama_error(program, model, checkpoint) < TOLERANCE


def test_llama_by_gguf_names_and_row_order() -> None:
    """GGUF's Q and K rows have each rotating pair side by side: (half, 2) where Hugging Face has (2, half)."""
    model = llama_model()
    checkpoint = randomise(model)
    program = load("llama", LLAMA)
    gguf: dict[str, Tensor] = {}
    for weight in program.weights:
        theirs, ours = weight.sources
        tensor = checkpoint[theirs.name]
        if weight.base in ("wq", "wk"):
            tensor = tensor.reshape(-1, 2, 4, 48).transpose(1, 2).reshape(tensor.shape)
        gguf[ours.name] = tensor
    assert llama_error(program, model, gguf) < TOLERANCE


@pytest.mark.parametrize(
    "edit",
    [
        ("theta**(-e/half)", "(theta*1.01)**(-e/half)"),
        ("t <= at[b]+s", "t < at[b]+s"),
        ("t <= at[b]+s", "t <= at[b]+s+1"),
        ("x[b,s,m]**2) + eps) * norm1", "x[b,s,m]**2) + 1.1*eps) * norm1"),
        ("- q[b,s,k,g,1,e]*sin", "+ q[b,s,k,g,1,e]*sin"),
        ("sqrt(head)", "sqrt(half)"),
        ('["model.layers.{l}.self_attn.q_proj.weight"', '[{name: "model.layers.{l}.self_attn.q_proj.weight", axes: (g k z e) m}'),
        ('["model.layers.{l}.self_attn.q_proj.weight"', '[{name: "model.layers.{l}.self_attn.q_proj.weight", axes: (k g e z) m}'),
        ("silu(gate[b,s,f]) * up", "gelu(gate[b,s,f]) * up"),
        ("lengths[b]-1", "lengths[b]-2"),
    ],
    ids=lambda edit: edit[1].strip(),
)
def test_a_mutant_of_llama_is_not_llama(edit: Edit) -> None:
    model = llama_model()
    assert llama_error(load("llama", LLAMA, edit), model, randomise(model)) > 3 * TOLERANCE


GPT2 = {"batch": 2, "seq": 9, "vocab": 61, "context": 32, "model": 48, "layers": 2, "heads": 4, "eps": 1e-3}


def gpt2_model() -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=61, n_positions=32, n_embd=48, n_layer=2, n_head=4, layer_norm_epsilon=1e-3, attn_implementation="eager")
    return GPT2LMHeadModel(config).eval()


def gpt2_error(edit: Edit | None = None, rename: Callable[[str], str] = str) -> float:
    model = gpt2_model()
    checkpoint = {rename(name): tensor for name, tensor in randomise(model).items()}
    checkpoint.pop("lm_head.weight")
    program = with_tied_weights(load("gpt2", GPT2, edit), checkpoint)
    ids = tokens(program)
    lengths = torch.tensor([9, 4], dtype=torch.int32)
    with torch.no_grad():
        expected = model(ids).logits
    found = evaluate(program, {"tokens": ids, "lengths": lengths}, weights_from(program, checkpoint))
    last = torch.stack([expected[0, 8], expected[1, 3]])
    return max(error(found["all_logits"], expected), error(found["logits"], last))


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_gpt2_is_gpt2(prefix: str) -> None:
    assert gpt2_error(rename=lambda name: name.replace("transformer.", prefix)) < TOLERANCE


@pytest.mark.parametrize(
    "edit",
    [
        ("t <= at[b]+s", "t < at[b]+s"),
        ("u[b,s,m]**2) + eps)", "u[b,s,m]**2) + 1.1*eps)"),
        ("wpe[at[b]+s, m]", "wpe[at[b]+s+1, m]"),
        ('"transformer.h.{l}.attn.c_attn.weight"', '{name: "transformer.h.{l}.attn.c_attn.weight", axes: m (c d h)}'),
        ('"transformer.h.{l}.attn.c_attn.weight"', '{name: "transformer.h.{l}.attn.c_attn.weight", axes: m (h c d)}'),
        ("gelu_tanh(", "gelu("),
        ("* scale1[m] + shift1[m]", "* scale1[m]"),
        ("- mean[m](x[b,s,m])", "- 0"),
    ],
    ids=lambda edit: edit[1],
)
def test_a_mutant_of_gpt2_is_not_gpt2(edit: Edit) -> None:
    assert gpt2_error(edit) > 3 * TOLERANCE


def random_data(program: Program) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(11)
    inputs = {i.name: torch.randn(i.shape, generator=generator) for i in program.inputs}
    checkpoint: dict[str, Tensor] = {}
    for weight in program.weights:
        shape = []
        for group in weight.sources[0].groups:
            shape.append(int(torch.tensor([weight.shape[dim] for dim in group]).prod()))
        checkpoint[weight.sources[0].name] = torch.randn(shape, generator=generator) / shape[-1] ** 0.5
    return inputs, checkpoint


def mlp(x: Tensor, c: Mapping[str, Tensor]) -> Tensor:
    hidden = torch.nn.functional.gelu(x @ c["fc1.weight"].T + c["fc1.bias"])
    return hidden @ c["fc2.weight"].T + c["fc2.bias"]


def matmul_chain(x: Tensor, c: Mapping[str, Tensor]) -> Tensor:
    for name in sorted(c):
        x = x @ c[name]
    return x


def attention(x: Tensor, c: Mapping[str, Tensor]) -> Tensor:
    q, k, v = (torch.nn.functional.linear(x, c[f"{n}_proj.weight"]).unflatten(-1, (4, 8)).transpose(1, 2) for n in "qkv")
    mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(-2) @ c["o_proj.weight"].T


SMALL = {
    "mlp": ({"batch": 5, "inner": 24, "outer": 9}, mlp),
    "matmul_chain": ({"rows": 7, "width": 16, "depth": 4}, matmul_chain),
    "attention": ({"batch": 2, "seq": 10, "model": 32, "heads": 4}, attention),
}


def small_error(name: str, edit: Edit | None = None) -> float:
    sizes, model = SMALL[name]
    program = load(name, sizes, edit)
    inputs, checkpoint = random_data(program)
    (x,) = inputs.values()
    (found,) = evaluate(program, inputs, weights_from(program, checkpoint)).values()
    return error(found, model(x, checkpoint))


@pytest.mark.parametrize("name", sorted(SMALL))
def test_a_small_spec_is_its_model(name: str) -> None:
    assert small_error(name) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("mlp", ("gelu(", "gelu_tanh(")),
        ("mlp", (" + b2[o]", "")),
        ("matmul_chain", ("w[i,j]", "w[j,i]")),
        ("attention", ("t <= s", "t < s")),
        ("attention", ("from: q_proj.weight", "from: [{name: q_proj.weight, axes: (d h) m}]")),
        ("attention", ("/ sqrt(head)", "")),
    ],
)
def test_a_mutant_of_a_small_spec_is_not_its_model(name: str, edit: Edit) -> None:
    assert small_error(name, edit) > 3 * TOLERANCE
