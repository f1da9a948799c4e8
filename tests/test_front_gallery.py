"""The gallery of specs against transformers: a tiny random model of each, saved and read with its own configuration; chunks; mutants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import einpage
from checkpoint_metadata import GPT2, TINY, TOKENS, logits_of, saved
from einpage.einsum_front.base.errors import EinpageError
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import read_document
from einpage.einsum_front.spec.sizes import Setting
from specs_small import SPECS
from test_front_specs import Edit, error, weights_from

TOLERANCE = 2e-5
ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e2}, "full_attention": {"rope_type": "default", "rope_theta": 1e6}}
STEEP = {"rope_type": "default", "rope_theta": 500.0}
GATED = {**TINY, "num_hidden_layers": 2, "tie_word_embeddings": False, "rms_norm_eps": 1e-3, "rope_parameters": STEEP}
GATED_EDITS = (
    ("t <= at[b]+s", "t < at[b]+s"),
    ("theta**(-e/half)", "(theta*1.1)**(-e/half)"),
    ("silu(", "gelu("),
    ("sqrt(head)", "sqrt(half)"),
)
WINDOWED_EDITS = (*GATED_EDITS, ("at[b]+s - t < window", "at[b]+s - t <= window"))


@dataclass(frozen=True)
class Model:
    """A model of transformers at a tiny size, and changes to its spec that its logits reject."""

    config: dict[str, Any]
    model_type: str = ""
    edits: tuple[Edit, ...] = ()
    others: tuple[dict[str, Any], ...] = field(default=())
    """Other configurations that must be right, too."""


MODELS = {
    "llama": Model(GATED),
    "gpt2": Model(GPT2),
    "mistral": Model({**GATED, "sliding_window": 4}, edits=WINDOWED_EDITS, others=({"sliding_window": None}, {"head_dim": 32})),
    "qwen3": Model({**GATED, "head_dim": 32}, edits=(*GATED_EDITS, (" * qn[z,e]", ""), ("z,e]**2) + eps", "z,e]**2) + 0.3"))),
    "phi3": Model(
        {**GATED, "sliding_window": 4, "pad_token_id": 0},
        edits=(*WINDOWED_EDITS, ("heads+kv_heads+k", "heads+k"), ("k*group+g", "g*kv_heads+k"), ("w13[0,f,m]", "w13[1,f,m]")),
        others=({"sliding_window": None, "num_key_value_heads": 4},),
    ),
    "gemma3": Model(
        {**TINY, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 32, "rope_parameters": ROPES, "num_hidden_layers": 2,
         "layer_types": ["sliding_attention", "full_attention"], "rms_norm_eps": 1e-3},
        "gemma3_text",
        edits=(("at[b]+s<t+w", "at[b]+s<=t+w"), ("sqrt(query)", "sqrt(head)"), ("near, theta)", "theta, near)"), (" * sqrt(model)", ""),
               ("gelu_tanh(", "silu("), ("norm4[m]", "norm3[m]")),
    ),
    "opt": Model(
        {"vocab_size": 96, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "max_position_embeddings": 20, "word_embed_proj_dim": 64},
        edits=(("t <= at[b]+s", "t < at[b]+s"), ("at[b]+s+2", "at[b]+s+1"), ("relu(", "gelu("), (" + shift2[m]", ""),
               ("bv[h,d]", "bq[h,d]")),
    ),
    "mixtral": Model(
        {**GATED, "num_local_experts": 4, "sliding_window": 4},
        edits=(*WINDOWED_EDITS, ("better[b,s,i] < 2", "better[b,s,i] < 3"), ("share[b,s,c] *", "0.5 *")),
        others=({"sliding_window": None},),
    ),
}  # fmt: skip
EDITS = [(name, edit) for name, model in MODELS.items() for edit in model.edits]


@dataclass(frozen=True)
class Saved:
    """A model as it was saved."""

    folder: Path
    logits: Tensor
    """Of TOKENS."""
    settings: dict[str, Setting]
    """What its metadata say of the spec's sizes, scalars and lists."""
    tensors: dict[str, Tensor]


Saver = Callable[[str], Saved]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Saver:
    """A model by its name, saved once."""

    @cache
    def found(name: str) -> Saved:
        folder, model = tmp_path_factory.mktemp(name), MODELS[name]
        with torch.no_grad():
            logits = saved(folder, model.model_type or name, **model.config)(torch.tensor(TOKENS)).logits
        told = einpage.load_spec(SPECS / f"{name}.yaml", weights=folder, tokens=TOKENS).program
        settings = {**told.sizes, **told.scalars, **told.lists}
        settings = {key: value for key, value in settings.items() if key not in ("reach", "group", "half", "rows")}
        return Saved(folder, logits, settings, load_file(folder / "model.safetensors"))

    return found


def program_of(name: str, model: Saved, edit: Edit | None = None, **settings: Setting) -> tuple[Program, dict[str, Tensor]]:
    """The spec's program at the sizes of a model, and its weights."""
    text = (SPECS / f"{name}.yaml").read_text()
    if edit is not None:
        assert edit[0] in text, f"specs/{name}.yaml no longer holds {edit[0]!r}"
        text = text.replace(*edit)
    program = with_tied_weights(elaborate(read_document(text, f"{name}.yaml"), {**model.settings, **settings}), model.tensors)
    return program, weights_from(program, model.tensors)


@pytest.mark.parametrize("name", MODELS)
def test_a_spec_of_the_gallery_is_its_model(name: str, model_of: Saver) -> None:
    model = model_of(name)
    assert error(logits_of(SPECS / f"{name}.yaml", model.folder), model.logits) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("chunk", [1, 7, 12])
def test_chunks_are_the_whole(name: str, chunk: int, model_of: Saver) -> None:
    """Tokens read `chunk` at a time, by plans with room that end in the middle, and states that hold rubbish where nothing was written."""
    model, tokens, found = model_of(name), torch.tensor(TOKENS), []
    held: dict[str, Tensor] = {}
    at, room = 0, 3
    while at < tokens.shape[1]:
        seq = min(chunk, tokens.shape[1] - at)
        past = at if at % 2 else max(0, at - room)
        program, weights = program_of(name, model, past=past, room=room, seq=seq)
        states: dict[str, Tensor] = {}
        for state in program.states:
            states[state.name] = torch.full(state.shape, 7.0)
            if state.name in held:
                states[state.name][:, :at] = held[state.name][:, :at]
        given = {"tokens": tokens[:, at : at + seq], "at": torch.full((len(TOKENS),), at), **states}
        out = evaluate(program.with_states_as_outputs(), given, weights)
        assert error(out["logits"], out["all_logits"][:, -1]) < TOLERANCE
        held = {name: out[name] for name in states}
        found.append(out["all_logits"])
        at += seq
    assert error(torch.cat(found, 1), model.logits) < TOLERANCE


@pytest.mark.parametrize(("name", "edit"), EDITS, ids=lambda x: x if isinstance(x, str) else x[1])
def test_a_mutant_of_the_gallery_is_not_its_model(name: str, edit: Edit, model_of: Saver) -> None:
    model, given = model_of(name), {"tokens": torch.tensor(TOKENS)}
    program, weights = program_of(name, model, edit)
    assert error(evaluate(program, given, weights, outputs=["all_logits"])["all_logits"], model.logits) > 3 * TOLERANCE


BERT = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "layer_norm_eps": 1e-3,
}
T5 = {"vocab_size": 96, "d_model": 64, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 4}
ENCODERS: dict[str, Model] = {
    "bert": Model(
        BERT,
        edits=(("gelu(", "gelu_tanh("), ("t < lengths[b]", "t < seq"), ("types_of_tokens[b,s], m]", "1, m]"),
               ("tanh(x[b,0,n]", "tanh(x[b,1,n]"),
               ("s < lengths[b], x", "s < seq, x"), ("scale2[m] + sh", "scale2[m] - sh")),
    ),
    "t5": Model(
        T5,
        edits=(("t > s, 16", "t >= s, 16"), (">= 128)", ">= 121)"), (">= 1024)", ">= 1025)"), (">= 8192)", ">= 8282)"),
               ("t < lengths[b]", "t < seq"),
               ("relu(", "gelu("), ("sum[d](q[b,s,h,d] * k[b,t,h,d])", "sum[d](q[b,s,h,d] * k[b,t,h,d]) / sqrt(head)")),
    ),
}  # fmt: skip
LONG = [[1 + i * i % 95 for i in range(140)], TOKENS[0]]
"""Long enough for every kind of distance."""


def encoded(name: str, model: Any) -> dict[str, Tensor]:
    """What transformers says of LONG: `x` or `hidden` of each sequence as far as it goes, flat, and what is pooled."""
    tokens, mask = torch.zeros(2, 140, dtype=torch.long), torch.zeros(2, 140, dtype=torch.long)
    for i, row in enumerate(LONG):
        tokens[i, : len(row)], mask[i, : len(row)] = torch.tensor(row), 1
    with torch.no_grad():
        out = (model.encoder if name == "t5" else model)(tokens, attention_mask=mask)
    found = out.last_hidden_state
    if name == "t5":
        return {"hidden": found}
    means = torch.stack([found[i, : len(row)].mean(0) for i, row in enumerate(LONG)])
    return {"x": found, "pooled": out.pooler_output, "mean_of_tokens": means}


def encoder_error(name: str, folder: Path, spec: Path, wanted: dict[str, Tensor]) -> float:
    model = einpage.load_spec(spec, weights=folder, tokens=LONG)
    assert model.warnings == (), model.warnings
    outputs = einpage.run(model, budget="64MiB", outputs=[*wanted], machine="cpu", device="cpu").outputs
    errors = [
        error(outputs[key][i, : len(row)], value[i, : len(row)])
        for key, value in wanted.items()
        if value.ndim == 3
        for i, row in enumerate(LONG)
    ]
    return max([*errors, *(error(outputs[key], value) for key, value in wanted.items() if value.ndim == 2)])


@pytest.fixture(scope="module")
def encoder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, dict[str, Tensor]]]:
    """An encoder by its name, saved once, and what it says of LONG."""

    @cache
    def found(name: str) -> tuple[Path, dict[str, Tensor]]:
        folder = tmp_path_factory.mktemp(name)
        return folder, encoded(name, saved(folder, name, auto="AutoModel", **ENCODERS[name].config))

    return found


@pytest.mark.parametrize("name", ENCODERS)
def test_an_encoder_of_the_gallery_is_its_model(name: str, encoder_of: Any) -> None:
    folder, wanted = encoder_of(name)
    assert encoder_error(name, folder, SPECS / f"{name}.yaml", wanted) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "edit"),
    [(name, edit) for name, model in ENCODERS.items() for edit in model.edits],
    ids=lambda x: x if isinstance(x, str) else x[1],
)
def test_a_mutant_of_an_encoder_is_not_its_model(name: str, edit: Edit, encoder_of: Any, tmp_path: Path) -> None:
    folder, wanted = encoder_of(name)
    text = (SPECS / f"{name}.yaml").read_text()
    assert edit[0] in text, f"specs/{name}.yaml no longer holds {edit[0]!r}"
    (tmp_path / "mutant.yaml").write_text(text.replace(*edit))
    assert encoder_error(name, folder, tmp_path / "mutant.yaml", wanted) > 3 * TOLERANCE


@pytest.mark.parametrize("name", [*MODELS, *ENCODERS])
def test_a_checkpoint_meets_what_one_spec_assumes(name: str, model_of: Saver, encoder_of: Any) -> None:
    """(A Mistral without a window meets two: it is a LLaMA.)"""
    folder = encoder_of(name)[0] if name in ENCODERS else model_of(name).folder

    def is_met(spec: Path) -> bool:
        try:
            return einpage.load_spec(spec, weights=folder, tokens=TOKENS) is not None
        except EinpageError:
            return False

    assert [spec.stem for spec in sorted(SPECS.glob("*.yaml")) if is_met(spec)] == [name]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "other"), [(name, other) for name, model in MODELS.items() for other in model.others], ids=str)
def test_other_configurations_of_the_gallery(name: str, other: dict[str, Any], tmp_path: Path) -> None:
    with torch.no_grad():
        wanted = saved(tmp_path, MODELS[name].model_type or name, **{**MODELS[name].config, **other})(torch.tensor(TOKENS)).logits
    told = einpage.load_spec(SPECS / f"{name}.yaml", weights=tmp_path, tokens=TOKENS)
    assert told.warnings == (), "a null is told: it is none"
    found = einpage.run(told, budget="64MiB", outputs=["all_logits"], machine="cpu", device="cpu").outputs["all_logits"]
    assert error(found, wanted) < TOLERANCE


@pytest.mark.parametrize("name", [*MODELS, *ENCODERS])
def test_a_spec_of_the_gallery_is_short(name: str) -> None:
    lines = (SPECS / f"{name}.yaml").read_text().splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 120
