"""What differs from layer to layer and from source to source: lists from a checkpoint, numbers for words, weights stored less a number."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import einpage
from checkpoint_metadata import Said
from command_line import facts, ran
from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.match.metadata import spec_settings
from einpage.checkpoints.match.resolve import open_weights
from einpage.einsum_front.base.errors import SpecError
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.reader import read_document
from einpage.exec.cli import main
from einpage.exec.load.fill import read_weights
from specs_small import SPECS
from test_checkpoints_metadata import TINY, TOKENS, logits_of, saved

GEMMA3 = SPECS / "gemma3.yaml"
KINDS = ["sliding_attention", "full_attention", "full_attention", "sliding_attention"]
ROPES = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e2}, "full_attention": {"rope_type": "default", "rope_theta": 1e6}}
GEMMA3_CONFIG = {**TINY, "head_dim": 16, "sliding_window": 4, "query_pre_attn_scalar": 32, "layer_types": KINDS, "rope_parameters": ROPES}


def error_of(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got - wanted).abs().max() / wanted.abs().max())


def test_gemma3_from_hugging_face_and_from_gguf(tmp_path: Path) -> None:
    """Norms are stored as w there and as 1 + w here; kinds of layers are words there and truths here."""
    model = saved(tmp_path, "gemma3_text", **{**GEMMA3_CONFIG, "query_pre_attn_scalar": 16})
    with torch.no_grad():
        wanted = model(torch.tensor(TOKENS)).logits
    assert error_of(logits_of(GEMMA3, tmp_path), wanted) < 1e-4
    as_gguf(tmp_path / "m.gguf", model)
    assert error_of(logits_of(GEMMA3, tmp_path / "m.gguf"), wanted) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{"layer_types": KINDS[2:] + KINDS[:2]}, {"query_pre_attn_scalar": 64}, {"sliding_window": 3}])
def test_gemma3_follows_its_configuration(tmp_path: Path, changed: dict[str, Any]) -> None:
    """A changed configuration changes the logits, as it changes those of transformers."""
    before = saved(tmp_path / "before", "gemma3_text", **GEMMA3_CONFIG)
    after = saved(tmp_path / "after", "gemma3_text", **{**GEMMA3_CONFIG, **changed})
    with torch.no_grad():
        old, new = (model(torch.tensor(TOKENS)).logits for model in (before, after))
    assert error_of(old, new) > 1e-2
    assert error_of(logits_of(GEMMA3, tmp_path / "after"), new) < 1e-4


def as_gguf(path: Path, model: Any) -> None:
    """The model as llama.cpp stores it."""
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
    names |= {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm"}
    names |= {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm"}
    names |= {
        "post_feedforward_layernorm": "post_ffw_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    writer = gguf.GGUFWriter(path, "gemma3")
    for key, value in {"vocab_size": 96, "embedding_length": 64, "block_count": 4, "feed_forward_length": 96}.items():
        writer.add_uint32(f"gemma3.{key}", value)
    for key, value in {"head_count": 4, "head_count_kv": 2, "key_length": 16, "sliding_window": 4}.items():
        writer.add_uint32(f"gemma3.attention.{key}", value)
    writer.add_float32("gemma3.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32("gemma3.rope.freq_base", 1e6)
    writer.add_float32("gemma3.rope.freq_base_swa", 1e2)
    writer.add_array("gemma3.attention.sliding_window_pattern", [kind == "sliding_attention" for kind in KINDS])
    for name, tensor in model.state_dict().items():
        stem = re.sub(r"^model\.layers\.(\d+)\.", r"blk.\1.", name.removesuffix(".weight"))
        for theirs, ours in names.items():
            stem = re.sub(rf"\.{re.escape(theirs)}$", f".{ours}", stem)
        stem = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}.get(stem, stem)
        if stem != "lm_head":
            writer.add_tensor(f"{stem}.weight", (tensor + 1 if stem.endswith("norm") else tensor).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def smollm3() -> str:
    """llama.yaml with a list of the layers that rotate."""
    text = (SPECS / "llama.yaml").read_text()
    text = text.replace("(at[b]+s)*theta", "(at[b]+s)*turns[l]*theta").replace("[llama, mistral]", "smollm3")
    text = text.replace(", no_rope_layers: 1", "").replace("past: 0,", "past: 0, every: 4,")
    text = text.replace(
        "\nconfig:", "\nlists:\n  turns: {over: layers, as: i, default: (i + 1) % every != 0}\n\nconfig:\n  turns: no_rope_layers", 1
    )
    text = text.replace("\n  vocab: [vocab", "\n  every: no_rope_layer_interval\n  vocab: [vocab", 1)
    assert text.count("turns[l]") == 8
    return text


@pytest.mark.parametrize("layers", [pytest.param([1, 1, 1, 0], marks=pytest.mark.slow), [0, 1, 0, 0]])
def test_smollm3_leaves_out_positions_in_some_layers(tmp_path: Path, layers: list[int]) -> None:
    with torch.no_grad():
        wanted = saved(tmp_path, "smollm3", **TINY, no_rope_layers=layers)(torch.tensor(TOKENS)).logits
    spec = tmp_path / "smollm3.yaml"
    spec.write_text(smollm3())
    assert error_of(logits_of(spec, tmp_path), wanted) < 1e-4
    config = json.loads((tmp_path / "config.json").read_text())
    del config["no_rope_layers"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert einpage.load_spec(spec, weights=tmp_path).program.lists == {"turns": (1, 1, 1, 0)}, "the default is every fourth"


def listed(config: str) -> Document:
    text = "einpage: 1\nname: c\nsizes: {layers: 3}\nscalars: {c: 0}\nlists: {k: {over: layers, default: 0}}\naxes: {a: layers}\n"
    text += f"config: {config}\ninputs: {{x: {{axes: a}}}}\nbody: ['y[a] = x[a]']\noutputs: {{y: {{axes: a}}}}\n"
    return read_document(text, "c.yaml")


@pytest.mark.parametrize(
    ("config", "metadata", "settings"),
    [
        ("{c: {key: act, values: {silu: 0, gelu: 1.5}}}", {"act": "gelu"}, {"c": 1.5}),
        ("{c: {key: act, values: {true: 3, 2: 4}}}", {"act": True}, {"c": 3}),
        ("{c: {key: act, values: {true: 3, 2: 4}}}", {"act": 2.0}, {"c": 4}),
        ("{c: [absent, {key: act, values: {a: 1}}]}", {"act": "a"}, {"c": 1}),
        ("{k: {key: kinds, values: {a: 1, b: 0}}}", {"kinds": ["a", "b", "a"]}, {"k": (1, 0, 1)}),
        ("{k: kinds}", {"kinds": [True, False, 2]}, {"k": (1, 0, 2)}),
        ("{k: kinds}", {"kinds": None}, {}),
        ("{c: kinds}", {"kinds": [1.5, 1.5, 1.5]}, {"c": 1.5}),
        ("{layers: kinds}", {"kinds": [7] * 3}, {"layers": 7}),
        ("{c: {key: act, values: {silu: 0, gelu: 1.5}}}", {"act": ["gelu", "gelu"]}, {"c": 1.5}),
    ],
)
def test_words_stand_for_numbers(config: str, metadata: dict[str, object], settings: dict[str, object]) -> None:
    assert spec_settings(listed(config), Said(metadata)) == settings


@pytest.mark.parametrize(
    ("config", "metadata", "message"),
    [
        (
            "{k: {key: kinds, values: {a: 1, b: 0}}}",
            {"kinds": ["a", "c"]},
            "the checkpoint's `kinds` holds 'c', for which there is no number here",
        ),
        ("{c: {key: act, values: {a: 1}}}", {"act": 1}, "the checkpoint's `act` holds 1, for which there is no number here"),
        ("{k: kinds}", {"kinds": 6}, "the checkpoint's `kinds` is 6; the spec's list `k` is taken from it and needs a list"),
        ("{k: kinds}", {"kinds": ["a"]}, "the checkpoint's `kinds` is ['a']; the spec's list `k` is taken from it and needs numbers"),
        ("{c: kinds}", {"kinds": [1, 2]}, "the checkpoint's `kinds` is [1, 2]; the spec's `c` is taken from it and needs one number, the"),
        ("{c: kinds}", {"kinds": []}, "the checkpoint's `kinds` is []; the spec's `c` is taken from it and needs one number, the same in"),
        ("{c: kinds}", {"kinds": [1, True]}, "the checkpoint's `kinds` is [1, True]; the spec's `c` is taken from it and needs one number"),
        (
            "{c: kinds}",
            {"kinds": [True, True]},
            "the checkpoint's `kinds` is [True, True]; the spec's `c` is taken from it and needs a num",
        ),
        ("{layers: kinds}", {"kinds": [0, 0]}, "the checkpoint's `kinds` is [0, 0]; the spec's size `layers` is taken from it and needs"),
        ("{layers: {key: n, values: {few: 0}}}", {"n": "few"}, "the checkpoint's `n` is 'few'; the spec's size `layers` is taken from it"),
    ],
)
def test_values_without_a_number_are_refused(config: str, metadata: dict[str, object], message: str) -> None:
    with pytest.raises((SpecError, WeightError), match=re.escape(message)) as caught:
        spec_settings(listed(config), Said(metadata))
    if isinstance(caught.value, SpecError):
        assert caught.value.source_line.startswith("config:") and "or" in f"or {caught.value.expected}"


def test_what_the_user_sets_is_not_looked_for() -> None:
    """A list that differs from layer to layer, for a number that `--set` gives."""
    assert spec_settings(listed("{c: kinds, layers: n}"), Said({"kinds": [1, 2], "n": 3}), {"c": "2"}) == {"layers": 3}


def test_a_list_in_gguf_may_have_more_layers_than_a_line(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "x")
    writer.add_array("x.kinds", [i % 3 for i in range(100)])
    writer.add_array("x.words", [f"w{i}" for i in range(100)])
    writer.add_tensor("t", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    config = open_weights(str(tmp_path / "m.gguf")).config()
    assert config["x.kinds"] == [i % 3 for i in range(100)] and "x.words" not in config


SHIFTED = """\
einpage: 1
name: shifted
sizes: {n: 6, m: 5}
axes: {a: n, b: m}
weights:
  w: {axes: a b, from: [{name: less, axes: b a, plus: 1}, whole]}
body:
  - y[a,b] = 2 * w[a,b]
outputs: {y: {axes: a b}}
"""


@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
def test_a_number_is_added_in_fp32_before_rounding(tmp_path: Path, stored: torch.dtype) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SHIFTED)
    less = (torch.rand(5, 6) / 64).to(stored)
    whole = (less.float() + 1).T.contiguous()
    assert not torch.equal((less + 1).float(), less.float() + 1) or stored is torch.float32, "the sum needs more bits than are stored"
    for name, tensor in (("less", less), ("whole", whole)):
        save_file({name: tensor.contiguous()}, tmp_path / f"{name}.safetensors")
        model = einpage.load_spec(spec, weights=tmp_path / f"{name}.safetensors")
        assert model.resolved is not None
        assert torch.equal(read_weights(model.resolved, model.program)["w"], whole)
        if stored is torch.float16:  # where the sum needs more bits than are stored, and than the run's dtype has
            found = einpage.run(model, budget="1MiB", dtype="bf16", machine="cpu", device="cpu").outputs["y"]
            assert torch.equal(found, 2 * whole.bfloat16()), name


def test_random_weights_are_what_the_spec_reads(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SHIFTED)
    model = einpage.load_spec(spec, weights="random:0")
    assert model.resolved is not None
    assert abs(float(read_weights(model.resolved, model.program)["w"].mean())) < 0.5


def test_show_says_what_is_added_and_what_lists_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path, "gemma3_text", **GEMMA3_CONFIG)
    words = ["show", str(GEMMA3), "--weights", str(tmp_path)]
    out, _ = ran(capsys, *words)
    assert "list        local=1 0 0 1\n" in out
    assert "read as     model.layers.{0…3}.self_attn.q_norm.weight + 1\n" in out
    found = facts(capsys, *words)
    assert found["lists"] == {"local": [1, 0, 0, 1]} and found["plus"]["model.norm.weight"] == 1


def test_a_plan_says_what_is_added(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec, plan = tmp_path / "spec.yaml", tmp_path / "plan.json"
    spec.write_text(SHIFTED)
    ran(capsys, "plan", str(spec), "--budget", "1MiB", "--out", str(plan))
    ran(capsys, "verify", str(plan), "--spec", str(spec))
    spec.write_text(SHIFTED.replace("plus: 1", "plus: 2"))
    assert main(["verify", str(plan), "--spec", str(spec)]) == 2
    assert "plus=1" in capsys.readouterr().err
    plan.write_text(plan.read_text().replace("[[1],[0]],1", '[[1],[0]],"one"'))
    assert '"one"' in plan.read_text() and main(["verify", str(plan)]) == 2
    assert "'one' is not a finite number" in capsys.readouterr().err


def test_a_wrong_length_is_refused_at_the_spec(tmp_path: Path) -> None:
    saved(tmp_path, "gemma3_text", **GEMMA3_CONFIG)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "layer_types": KINDS[1:]}))
    with pytest.raises(SpecError, match="the checkpoint's list for `local` has 3 numbers, and should have 4"):
        einpage.load_spec(GEMMA3, weights=tmp_path)
