"""A checkpoint's metadata against a spec: right, or refused with the key's name, never silently wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf.constants
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import einpage
from checkpoint_metadata import GPT2, SILENT, SPECS, TINY, TOKENS, assuming, logits_of, saved, warnings_about
from command_line import facts
from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.match.metadata_keys import general_key, metadata_keys, row_of
from einpage.checkpoints.match.resolve import open_weights
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.spec.reader import load_document, read_document
from einpage.exec.cli import main

STEEP = {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(
    ("spec", "model_type", "config"),
    [
        ("llama", "llama", {**TINY, "rope_parameters": STEEP, "rms_norm_eps": 1e-3, "head_dim": 32, "tie_word_embeddings": True}),
        ("llama", "mistral", {**TINY, "sliding_window": None}),
        ("gpt2", "gpt2", GPT2),
    ],
)
def test_what_runs_is_right(tmp_path: Path, spec: str, model_type: str, config: dict[str, object]) -> None:
    with torch.no_grad():
        wanted = saved(tmp_path, model_type, **config)(torch.tensor(TOKENS)).logits
    assert (logits_of(spec, tmp_path) - wanted).abs().max() < 2e-4 * wanted.abs().max()


REFUSED = [
    ("granite", {}, "model_type", "attention_multiplier"),
    ("granite", {"attention_multiplier": 0.25, "residual_multiplier": 0.22}, "model_type", "residual_multiplier"),
    ("granite", {"embedding_multiplier": 12.0}, "model_type", "embedding_multiplier"),
    ("granite", {"logits_scaling": 8.0}, "model_type", "logits_scaling"),
    ("helium", {}, "model_type", None),
    ("ernie4_5", {}, "model_type", None),
    ("smollm3", {}, "model_type", "no_rope_layers"),
    ("cohere", {}, "model_type", "logit_scale"),
    ("cohere2", {}, "model_type", "layer_types"),
    ("olmo2", {}, "model_type", None),
    ("gemma", {}, "hidden_act", "hidden_act"),
    ("gemma2", {}, "model_type", "final_logit_softcapping"),
    ("gemma3_text", {}, "model_type", "query_pre_attn_scalar"),
    ("qwen2", {}, "model_type", None),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 2}, "model_type", "sliding_window"),
    ("qwen3", {}, "model_type", None),
    ("phi", {}, "model_type", "partial_rotary_factor"),
    ("phi3", {}, "model_type", None),
    ("stablelm", {}, "model_type", "partial_rotary_factor"),
    ("minicpm3", {}, "model_type", "scale_emb"),
    ("apertus", {}, "model_type", "hidden_act"),
    ("mixtral", {}, "model_type", "num_experts_per_tok"),
    ("llama4_text", {}, "model_type", "attn_temperature_tuning"),
    ("llama4", {}, "model_type", "text_config.attn_temperature_tuning"),
    ("mistral", {"sliding_window": 8}, "sliding_window", "sliding_window"),
    (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
        "rope_parameters.rope_type",
        "rope_parameters.factor",
    ),
    ("llama", {"hidden_act": "gelu"}, "hidden_act", "hidden_act"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor", "partial_rotary_factor"),
]


@pytest.mark.parametrize(("model_type", "overrides", "assumed", "known"), REFUSED)
def test_other_math_is_refused_by_its_key(
    tmp_path: Path, model_type: str, overrides: dict[str, object], assumed: str, known: str | None
) -> None:
    """With llama.yaml, and with the spec of an author who assumed nothing: there a model's name alone is a warning."""
    from transformers import AutoConfig

    sizes = {} if model_type in ("gemma3_text", "llama4", "llama4_text") else TINY
    AutoConfig.for_model(model_type, **{**sizes, **overrides}).save_pretrained(tmp_path)
    save_file({"model.norm.weight": np.ones(64, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightError, match=f"`{assumed}` is .*; the spec is right"):
        einpage.load_spec("llama", weights=tmp_path)
    metadata, bare = open_weights(str(tmp_path)).config(), assuming("llama", "{hidden_act: silu}")
    if known is None:
        assert [f"`model_type` is '{model_type}'" in warning for warning in warnings_about(bare, metadata)] == [True]
    else:
        with pytest.raises(
            WeightError, match=f"`{re.escape(known)}` is .*(, and changes .*; no line of the spec|; the spec is right for silu)"
        ):
            warnings_about(bare, metadata)


@pytest.mark.parametrize("key", ["norm_type", "normalization_type", "layernorm_type"])
@pytest.mark.parametrize("kind", ["layernorm", "rmsnorm"])
def test_a_kind_of_norm_is_refused_where_no_spec_says_its_own(tmp_path: Path, key: str, kind: str) -> None:
    from transformers import AutoConfig

    AutoConfig.for_model("llama", **{**TINY, key: kind}).save_pretrained(tmp_path)
    save_file({"model.norm.weight": np.ones(64, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(WeightError, match=f"`{key}` is '{kind}', and changes the kind of norm"):
        einpage.load_spec("llama", weights=tmp_path)


@pytest.mark.parametrize("name", SILENT)
def test_true_checkpoints_run_without_a_word(name: str) -> None:
    assert warnings_about(load_document(SPECS / "llama.yaml"), SILENT[name]) == ()


@pytest.mark.parametrize("name", ["TinyLlama", "SmolLM2", "Mistral"])
def test_metadata_that_name_no_model_are_said(name: str) -> None:
    """Helium and Ernie 4.5 have LLaMA's tensors and keys: where nothing names the model, nothing tells them from LLaMA."""
    nameless = {key: value for key, value in SILENT[name].items() if key not in ("model_type", "architectures")}
    (said,) = warnings_about(load_document(SPECS / "llama.yaml"), nameless)
    assert "name no model" in said
    for no_name in (None, [], ["llama"]):
        (said,) = warnings_about(load_document(SPECS / "llama.yaml"), {**nameless, "model_type": no_name})
        assert "name no model" in said


def test_gpt2_configurations() -> None:
    document = load_document(SPECS / "gpt2.yaml")
    whole = {
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "n_embd": 768,
        "n_head": 12,
        "n_layer": 12,
        "n_positions": 1024,
        "n_ctx": 1024,
    }
    whole |= {
        "attn_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "vocab_size": 50257,
        "summary_type": "cls_index",
    }
    whole |= {"task_specific_params.text-generation.do_sample": True, "reorder_and_upcast_attn": False, "n_inner": None}
    assert warnings_about(document, whole) == ()
    with pytest.raises(WeightError, match=r"`scale_attn_by_inverse_layer_idx` is True; the spec is right for false"):
        warnings_about(document, {**whole, "scale_attn_by_inverse_layer_idx": True})
    with pytest.raises(WeightError, match=r"`model_type` is 'gpt_bigcode'"):
        warnings_about(document, {**whole, "model_type": "gpt_bigcode"})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.expert_count", 8, "`llama.expert_count` is 8; the spec is right for 0"),
        ("llama.expert_used_count", 2, "`llama.expert_used_count` is 2, and changes experts"),
        ("llama.rope.dimension_count", 32, "`llama.rope.dimension_count` is 32; the spec is right for head"),
        ("llama.rope.scaling.type", "yarn", "`llama.rope.scaling.type` is 'yarn'; the spec is right for none"),
        ("llama.rope.scaling.factor", 2.0, "`llama.rope.scaling.factor` is 2.0, and changes how positions are scaled"),
        ("llama.rope.scale_linear", 4.0, "`llama.rope.scale_linear` is 4.0, and changes how positions are scaled"),
        ("llama.attention.sliding_window", 127, "`llama.attention.sliding_window` is 127; the spec is right for 0 or >= reach (128)"),
        ("llama.attention.scale", 0.1, "`llama.attention.scale` is 0.1, and changes the scale of the scores"),
        ("llama.logit_scale", 0.1, "`llama.logit_scale` is 0.1, and changes a scale"),
        ("general.architecture", "granite", "`general.architecture` is 'granite'; the spec is right for llama"),
    ],
)
def test_gguf_keys_that_change_the_math(key: str, value: object, said: str) -> None:
    with pytest.raises(WeightError, match=re.escape(said)):
        warnings_about(load_document(SPECS / "llama.yaml"), {**SILENT["GGUF"], key: value})


def gguf_without_scaling(**more: object) -> dict[str, object]:
    scaling = {"type": "none", "factor": 8.0, "original_context_length": 64, **more}
    return {**SILENT["GGUF"], **{f"llama.rope.scaling.{key}": value for key, value in scaling.items()}, "llama.rope.scale_linear": 8.0}


DEFAULT = {"factor": 8.0, "original_max_position_embeddings": 64, "low_freq_factor": 1.0, "attention_factor": 2.0}


@pytest.mark.parametrize("name", ["llama", "bare"])
@pytest.mark.parametrize("word", ["rope_type", "type"])
@pytest.mark.parametrize("under", ["rope_scaling", "rope_parameters"])
def test_factors_beside_no_scaling_are_not_read(under: str, word: str, name: str) -> None:
    """As in transformers, and in llama.cpp, where the type `none` leaves a factor without effect."""
    document = load_document(SPECS / "llama.yaml") if name == "llama" else assuming("llama", "{hidden_act: silu, model_type: llama}")
    config = {key: value for key, value in SILENT["LLaMA-2"].items() if key != "rope_scaling"}
    for none in ("default", "none"):
        scaling = {f"{under}.{key}": value for key, value in {**DEFAULT, word: none}.items()}
        assert warnings_about(document, {**config, **scaling}) == ()
    for refused in ({word: "linear"}, {word: "default", "mrope_section": [4, 4]}, {}):
        scaling = {f"{under}.{key}": value for key, value in {**DEFAULT, **refused}.items()}
        with pytest.raises(WeightError, match="changes how positions are scaled"):
            warnings_about(document, {**config, **scaling})


def test_factors_beside_no_scaling_are_not_read_in_gguf() -> None:
    document = load_document(SPECS / "llama.yaml")
    assert warnings_about(document, gguf_without_scaling()) == ()
    with pytest.raises(WeightError, match=r"`llama.rope.scaling.attn_factor` is 2.0, and changes how positions are scaled"):
        warnings_about(document, gguf_without_scaling(attn_factor=2.0))
    with pytest.raises(WeightError, match=r"`llama.rope.scaling.factor` is 8.0, and changes how positions are scaled"):
        warnings_about(document, gguf_without_scaling(type="linear"))


@pytest.mark.parametrize("kinds", [["sliding_attention"] * 4, ["sliding_attention", "full_attention"] * 2])
def test_a_window_is_refused_by_its_width_alone(tmp_path: Path, kinds: list[str]) -> None:
    """Kinds of layers change nothing where the window is as wide as the sequence."""
    config = {**TINY, "sliding_window": len(TOKENS[0])}
    with torch.no_grad():
        wanted = saved(tmp_path, "mistral", **config)(torch.tensor(TOKENS)).logits
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**said, "layer_types": kinds}))
    assert (logits_of("llama", tmp_path) - wanted).abs().max() < 2e-4 * wanted.abs().max()
    (tmp_path / "config.json").write_text(json.dumps({**said, "layer_types": kinds, "sliding_window": len(TOKENS[0]) - 1}))
    with pytest.raises(WeightError, match=r"`sliding_window` is 11; the spec is right for >= reach"):
        logits_of("llama", tmp_path)
    with pytest.raises(WeightError, match=r"`layer_types` is .*; the spec is right for full_attention or sliding_attention"):
        warnings_about(load_document(SPECS / "llama.yaml"), {**SILENT["Mistral"], "layer_types": ["chunked_attention"]})


def test_very_many_keys_that_change_the_math_are_counted() -> None:
    with pytest.raises(WeightError) as caught:
        warnings_about(assuming("llama", "{hidden_act: gelu}"), {"hidden_act": "silu", **{f"{'x' * i}_multiplier": 2 for i in range(90)}})
    lines = str(caught.value).splitlines()
    assert len(lines) == 20 and lines[-1] == "  … and 73 more lines"


def test_a_size_that_only_the_tensors_tell_comes_with_the_setting_to_say(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "llama", **{**TINY, "tie_word_embeddings": True})
    said = json.loads((tmp_path / "config.json").read_text())
    del said["vocab_size"]
    (tmp_path / "config.json").write_text(json.dumps(said))
    words = ["show", "llama", "--weights", str(tmp_path)]
    assert main(words) == 2
    cure = capsys.readouterr().err.splitlines()[-1].strip()
    assert cure == "where the tensors are right, their sizes are not the spec's: say --set vocab=96"
    assert main([*words, *cure.split()[-2:]]) == 0


@pytest.mark.parametrize(
    ("shape", "cure"),
    [
        ((5, 4), "--set outer=5"),
        ((5, 6), "--set outer=5 --set inner=6"),
        ((4, 3), None),
        ((3, 4, 1), None),
        ((0, 4), None),
    ],
)
def test_sizes_are_named_only_where_they_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], shape: tuple[int, ...], cure: str | None
) -> None:
    """Not for a tensor that lies transposed, has more dimensions, or nothing in it."""
    spec = small_checkpoint(tmp_path, None, **{"fc.weight": np.ones(shape, np.float32)})
    assert main(["show", str(spec), "--weights", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert ("--set" in said) == (cure is not None) and (cure is None or said.rstrip().endswith(f"say {cure}"))


def test_sizes_are_not_named_where_two_tensors_ask_for_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = small_checkpoint(tmp_path, None, **{"fc.weight": np.ones((5, 4), np.float32), "head.weight": np.ones((6, 4), np.float32)})
    assert main(["show", str(spec), "--weights", str(tmp_path)]) == 2
    assert "--set" not in capsys.readouterr().err
    spec = small_checkpoint(tmp_path, None, **{"fc.weight": np.ones((5, 4), np.float32), "head.weight": np.ones((3, 4), np.float32)})
    assert main(["show", str(spec), "--weights", str(tmp_path)]) == 2
    assert "--set" not in capsys.readouterr().err


def test_all_faults_come_in_one_message_with_the_line_to_write() -> None:
    metadata = {
        "hidden_act": "silu",
        "residual_multiplier": 0.22,
        "mlp_multipliers": [0.5, 0.5],
        "logits_scaling": 1,
        "attention_bias": True,
    }
    with pytest.raises(WeightError) as caught:
        warnings_about(assuming("llama", "{}"), metadata)
    assert str(caught.value).splitlines()[1:] == [
        "  `hidden_act` is 'silu', and changes the activation; no line of the spec accounts for it",
        "  `residual_multiplier` is 0.22, and changes a scale; no line of the spec accounts for it",
        "  `mlp_multipliers` is [0.5, 0.5], and changes a scale; no line of the spec accounts for it",
        "  where the spec's math is right for these values, it says so: "
        "`assume: {hidden_act: silu, residual_multiplier: 0.22, mlp_multipliers: 0.5}`",
    ]


def test_an_assumed_value_is_a_number_over_sizes_and_scalars(tmp_path: Path) -> None:
    text = (SPECS / "llama.yaml").read_text()
    document = read_document(text.replace("partial_rotary_factor: 1", "partial_rotary_factor: [half / head, 1]"), "llama")
    llama = SILENT["LLaMA-2"]
    assert warnings_about(document, {**llama, "partial_rotary_factor": 0.5}) == ()
    assert warnings_about(document, {**llama, "attention_multiplier": 0.08838834764831845}) == ()
    with pytest.raises(WeightError, match=r"`partial_rotary_factor` is 0.25; the spec is right for half / head or 1"):
        warnings_about(document, {**llama, "partial_rotary_factor": 0.25})
    with pytest.raises(WeightError, match=r"`attention_multiplier` is 0.25; the spec is right for head \*\* -0.5"):
        warnings_about(document, {**llama, "attention_multiplier": 0.25})
    with pytest.raises(WeightError, match=r"`hidden_act` is 3; the spec is right for silu"):
        warnings_about(document, {**llama, "hidden_act": 3})
    wrong = read_document(text.replace("partial_rotary_factor: 1", "partial_rotary_factor: half / haed"), "llama")
    with pytest.raises(SpecError, match=r"unknown name `haed`") as caught:
        warnings_about(wrong, {**llama, "partial_rotary_factor": 0.5})
    assert caught.value.source_line.startswith("  partial_rotary_factor: half / haed")


def test_a_mixed_list_is_allowed_element_by_element() -> None:
    document = read_document((SPECS / "mlp.yaml").read_text() + "assume: {layer_types: [full_attention, chunked]}\n", "mlp")
    assert warnings_about(document, {"layer_types": ["chunked", "full_attention"]}) == ()
    with pytest.raises(WeightError, match="`layer_types` is"):
        warnings_about(document, {"layer_types": ["chunked", "sliding_attention"]})


def small_checkpoint(folder: Path, config: dict[str, object] | None, **arrays: Any) -> Path:
    """A checkpoint of the spec `linear`."""
    (folder / "spec.yaml").write_text(
        "einpage: 1\nname: linear\nsizes: {batch: 2, inner: 4, outer: 3}\n"
        "axes: {b: batch, i: inner, o: outer}\nconfig: {inner: hidden_size}\n"
        "inputs:\n  x: {axes: b i, default: 1}\nweights:\n  w: {axes: o i, from: fc.weight}\n  h: {axes: o i, from: head.weight, or: w}\n"
        "body:\n  - y[b,o] = x[b,i] * w[o,i] * h[o,i]\noutputs:\n  y: {axes: b o}\n"
    )
    save_file({"fc.weight": np.ones((3, 4), np.float32), **arrays}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "spec.yaml"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": 4, "dropout": 0.1}, None),
        ({"hidden_size": 4, "frobnicate": 2, "model_type": "linear"}, "`frobnicate` is 2, `model_type` is 'linear'"),
        ({"hidden_size": 4, "frobnicate": None, "gates": []}, None),
        ({"tie_word_embeddings": True}, None),
        ({"tie_word_embeddings": False}, "`tie_word_embeddings` is false, but the checkpoint has no head.weight: w stands in for it"),
        (None, "the checkpoint has no metadata (no config.json beside it)"),
    ],
)
def test_what_cannot_be_known_is_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, object] | None, said: str | None
) -> None:
    spec = small_checkpoint(tmp_path, config)
    words = [str(spec), "--weights", str(tmp_path)]
    found = einpage.load_spec(spec, weights=tmp_path).warnings
    assert len(found) == (said is not None) and all(said in warning for warning in found if said)
    for command in (["run", "--device", "cpu"], ["plan"]) if config is None else ():
        assert facts(capsys, command[0], *words, *command[1:], "--budget", "1MiB", "--machine", "cpu")["warnings"] == [*found]
    assert main(["show", *words]) == 0
    assert capsys.readouterr().err == (f"warning: {found[0]}\n" if found else "")


def test_a_head_beside_tied_embeddings_is_said(tmp_path: Path) -> None:
    spec = small_checkpoint(tmp_path, {"tie_word_embeddings": True}, **{"head.weight": np.ones((3, 4), np.float32)})
    assert einpage.load_spec(spec, weights=tmp_path).warnings == (
        "`tie_word_embeddings` is true, but the checkpoint holds head.weight: that is what the spec's `h` is read from",
    )


def gguf_keys(group: type) -> Iterator[str]:
    for name, value in vars(group).items():
        if isinstance(value, type):
            yield from gguf_keys(value)
        elif isinstance(value, str) and not name.startswith("_"):
            yield value


NO_LANGUAGE_MODELS = ("{arch}.posnet.", "{arch}.convnext.", "{arch}.{dense}_feat_")


def test_every_key_that_llama_cpp_writes_has_a_row() -> None:
    keys = [key for key in gguf_keys(gguf.constants.Keys) if not key.startswith(NO_LANGUAGE_MODELS)]
    assert len(keys) > 200
    assert [key for key in keys if row_of(general_key(key.replace("{arch}", "x"), "x")) is None] == ["general.architecture"]


def test_each_key_has_one_row() -> None:
    globs = [*(row.glob for row in metadata_keys().math), *(glob for glob, _ in metadata_keys().harmless), *metadata_keys().names]
    assert sorted({glob for glob in globs if globs.count(glob) > 1}) == []


@pytest.mark.slow
def test_keys_of_many_language_models_are_known() -> None:
    """Every key that five or more of transformers' causal language models have."""
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    count: dict[str, int] = {}
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        try:
            config = AutoConfig.for_model(model_type).to_dict()
        except (ImportError, ValueError, TypeError, AttributeError, StrictDataclassError):  # a model that wants a package or a setting
            continue
        for key in (key for key, value in config.items() if not isinstance(value, dict)):  # what is nested has rows of its own
            count[key] = count.get(key, 0) + 1
    assert sorted(key for key, n in count.items() if n >= 5 and row_of(key) is None) == ["model_type"]
