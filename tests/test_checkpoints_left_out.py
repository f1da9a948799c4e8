"""What a checkpoint's metadata leave out, and windows that no query reaches the end of: right, said or refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from checkpoint_metadata import GPT2, SILENT, SPECS, TINY, TOKENS, Said, assuming, logits_of, saved, warnings_about
from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.match.metadata import spec_settings
from einpage.checkpoints.match.metadata_keys import metadata_keys
from einpage.einsum_front.spec.reader import load_document, read_document


@pytest.mark.parametrize(
    ("spec", "model_type", "config", "dropped", "edited"),
    [
        ("llama", "llama", TINY, ["rms_norm_eps", "hidden_act", "rope_parameters"], {}),
        ("llama", "llama", {**TINY, "num_attention_heads": 32, "num_key_value_heads": 32}, ["num_attention_heads"], {}),
        ("llama", "llama", TINY, [], {"hidden_act": "swish"}),
        ("llama", "mistral", TINY, ["sliding_window", "rms_norm_eps"], {}),
        ("llama", "mistral", TINY, [], {"sliding_window": len(TOKENS[0])}),
        ("gpt2", "gpt2", GPT2, ["activation_function", "layer_norm_epsilon"], {}),
        ("gpt2", "gpt2", GPT2, [], {"activation_function": "gelu_fast"}),
    ],
)
def test_what_a_configuration_leaves_out_or_calls_otherwise_is_right(
    tmp_path: Path, spec: str, model_type: str, config: dict[str, object], dropped: list[str], edited: dict[str, object]
) -> None:
    """Against transformers, opened with the same config.json. Weights are small, so that an epsilon counts."""
    from transformers import AutoModelForCausalLM

    model = saved(tmp_path, model_type, **config)
    for name, parameter in model.named_parameters():
        if re.search("embed|wte|wpe", name):
            parameter.data *= 0.02
    model.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    whole = json.loads(path.read_text())
    assert not set(dropped) - set(whole)
    path.write_text(json.dumps({key: value for key, value in whole.items() if key not in dropped} | edited))
    with torch.no_grad():
        wanted = AutoModelForCausalLM.from_pretrained(tmp_path).eval().float()(torch.tensor(TOKENS)).logits
    assert (logits_of(spec, tmp_path) - wanted).abs().max() < 2e-4 * wanted.abs().max()


@pytest.mark.parametrize(("window", "said"), [(11, "is 11"), (None, "is left out, which for mistral means 4096")])
def test_a_window_shorter_than_the_text_is_refused(window: int | None, said: str) -> None:
    llama = load_document(SPECS / "llama.yaml")
    metadata = {**SILENT["Mistral"], "sliding_window": window}
    if window is None:
        del metadata["sliding_window"]
    limit = window or 4096
    for document in (llama, assuming("llama", "{model_type: mistral, hidden_act: silu}")):
        assert warnings_about(document, metadata, seq=limit) == ()
        with pytest.raises(WeightError, match=f"`sliding_window` {said}[;,]"):
            warnings_about(document, metadata, seq=limit + 1)
    with pytest.raises(WeightError, match=r"the spec is right for >= reach \(4097\)"):
        warnings_about(llama, {**metadata, "sliding_window": 4096}, seq=4097)


WINDOWED = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2, "model_type": "qwen2", "rms_norm_eps": 1e-6}


@pytest.mark.parametrize(
    "metadata",
    [
        WINDOWED,
        {"model_type": "phi3", "sliding_window": 64, "rms_norm_eps": 1e-5},
        {"model_type": "gemma2", "num_attention_heads": 32, "sliding_window": 64, "query_pre_attn_scalar": 128}
        | {"final_logit_softcapping": None, "attn_logit_softcapping": None, "hidden_activation": "silu"},
        {"general.architecture": "phi3", "phi3.attention.sliding_window": 64},
    ],
)
def test_a_window_as_long_as_the_text_is_no_window(metadata: dict[str, object]) -> None:
    """For the spec of an author who said nothing of windows; and a spec that has no size `seq` cannot know."""
    allowed = "{model_type: [qwen2, phi3, gemma2], general.architecture: phi3, hidden_act: silu, query_pre_attn_scalar: head}"
    document = assuming("llama", allowed.replace("hidden_act", "hidden_activation") if "hidden_activation" in metadata else allowed)
    assert [w for w in warnings_about(document, metadata, seq=64) if "does not say" not in w] == []
    with pytest.raises(WeightError, match="sliding_window` is 64"):
        warnings_about(document, metadata, seq=65)
    other = read_document((SPECS / "mlp.yaml").read_text() + f"assume: {allowed}\n", "mlp")
    with pytest.raises(WeightError, match="sliding_window` is 64"):
        warnings_about(other, metadata)


def test_a_number_that_nobody_gives_is_said() -> None:
    llama = load_document(SPECS / "llama.yaml")
    gguf = {key: value for key, value in SILENT["GGUF"].items() if "epsilon" not in key and "freq_base" not in key}
    (said,) = warnings_about(llama, gguf)
    assert said == (  # theta is llama.cpp's 10000
        "the checkpoint does not say, so the spec's own is taken: `eps` = 1e-05 (rms_norm_eps or llama.attention.layer_norm_rms_epsilon); "
        "where that is wrong, say --set NAME=VALUE"
    )
    unknown = assuming("llama", "{model_type: llamalike, hidden_act: silu}")
    metadata = {**SILENT["Mistral"], "model_type": "llamalike", "rms_norm_eps": None}
    (said,) = warnings_about(unknown, metadata)
    assert "`eps` = 1e-05 (rms_norm_eps or" in said and "theta" not in said
    assert warnings_about(unknown, metadata, eps=1e-6) == ()
    assert spec_settings(llama, Said({"model_type": "llama", "text_config.model_type": "mistral"}))["eps"] == 1e-6


def test_a_null_is_told() -> None:
    """That there is no window is said; of a number that no other makes, a null says nothing."""
    mistral = load_document(SPECS / "mistral.yaml")
    assert SILENT["Mistral"]["sliding_window"] is None and warnings_about(mistral, SILENT["Mistral"]) == ()
    (said,) = warnings_about(mistral, {**SILENT["Mistral"], "rms_norm_eps": None})
    assert "`eps` = 1e-05 (rms_norm_eps)" in said


def test_keys_of_mpt_that_change_nothing() -> None:
    """Which transformers writes into every configuration of it: no text, and heads of their own keys."""
    llama = load_document(SPECS / "llama.yaml")
    silent = {**SILENT["LLaMA"], "attn_config.model_type": "", "embedding_fraction": 1.0, "attn_config.attn_type": "multihead_attention"}
    assert warnings_about(llama, silent) == warnings_about(llama, SILENT["LLaMA"])
    with pytest.raises(WeightError, match=r"`attn_config.attn_type` is 'multiquery_attention', and changes the number of heads"):
        warnings_about(llama, {**silent, "attn_config.attn_type": "multiquery_attention"})


def test_what_keys_mean_that_are_left_out() -> None:
    """The rows are transformers' own defaults."""
    from transformers import AutoConfig

    wrong = {}
    for model_type, row in metadata_keys().left_out.items():
        config = AutoConfig.for_model(model_type, **({"use_sliding_window": True} if "use_sliding_window" in row else {}))
        rope = getattr(config, "rope_parameters", None) or {}
        held = {**rope, **rope.get("full_attention", {}), "rope_local_base_freq": rope.get("sliding_attention", {}).get("rope_theta")}
        held |= {"rotary_pct": rope.get("partial_rotary_factor"), "use_sliding_window": False}
        for key, value in row.items():
            found = held[key] if held.get(key) is not None else getattr(config, key)
            if found != value:
                wrong[model_type, key] = (found, value)
    assert wrong == {}


def test_keys_of_hugging_face_in_a_gguf_are_not_read() -> None:
    """llama.cpp looks under its architecture's name; a bare `rope_theta` is another model's, or nobody's."""
    gguf = {**SILENT["GGUF"], "llama.rope.freq_base": 10000.0}
    with pytest.raises(WeightError, match=r"`rope_theta` is 500\.0, and changes how fast positions rotate"):
        warnings_about(load_document(SPECS / "llama.yaml"), {**gguf, "rope_theta": 500.0})
    document = assuming("llama", "{general.architecture: llama, rope_theta: 500}")
    settings = spec_settings(document, Said({**gguf, "rope_theta": 500.0}))
    assert settings["theta"] == 10000.0


@pytest.mark.parametrize(
    ("scaling", "parameters", "refused"),
    [
        ({"type": "default"}, {"rope_theta": 500.0, "rope_type": "default"}, True),
        ({}, {"rope_theta": 500.0, "rope_type": "default"}, False),
    ],
)
def test_rope_given_twice(scaling: dict[str, object], parameters: dict[str, object], refused: bool) -> None:
    """transformers takes rope_scaling in place of all of rope_parameters: theta would be 10000 in the first."""
    twice = {f"rope_scaling.{k}": v for k, v in scaling.items()} | {f"rope_parameters.{k}": v for k, v in parameters.items()}
    metadata = {"model_type": "llama", **twice, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    document = load_document(SPECS / "llama.yaml")
    if not refused:
        assert spec_settings(document, Said(metadata))["theta"] == 500.0
        assert not [w for w in warnings_about(document, metadata) if "rope" in w]
        return
    with pytest.raises(WeightError, match="`rope_scaling` and `rope_parameters` are both given and differ"):
        warnings_about(document, metadata)
