"""Checkpoints by their metadata: none but those, or models of transformers with random weights; configurations as they are in use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import einpage
from einpage.checkpoints.match.metadata import check_metadata, spec_settings
from einpage.einsum_front.spec.document import Document
from einpage.einsum_front.spec.reader import read_document

SPECS = Path(__file__).parents[1] / "specs"
TINY = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY |= {"num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TOKENS = [[5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43]]


@dataclass(frozen=True)
class Said:
    """A checkpoint of which there is nothing but metadata."""

    metadata: Mapping[str, object]
    tensors: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    damage: tuple[str, ...] = ()

    def config(self) -> Mapping[str, object]:
        return self.metadata

    def fault(self, name: str) -> str | None:
        raise AssertionError(name)

    def read_rows(self, name: str, start: int, end: int) -> Any:
        raise AssertionError(name)


def warnings_about(document: Document, metadata: Mapping[str, object], **settings: float) -> tuple[str, ...]:
    checkpoint = Said(metadata)
    return check_metadata(document, checkpoint, {**spec_settings(document, checkpoint), **settings})


def assuming(name: str, assume: str) -> Document:
    """A shipped spec with an `assume:` of its own."""
    return read_document(re.sub(r"(?ms)^assume:.*?\n(?=\S)", f"assume: {assume}\n", (SPECS / f"{name}.yaml").read_text()), name)


def saved(folder: Path, model_type: str, /, auto: str = "AutoModelForCausalLM", **overrides: object) -> Any:
    """A model of transformers with random weights, written to `folder`."""
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(model_type, **overrides)).eval().float()
    for parameter in model.parameters():
        mean = 0.0 if parameter.dim() > 1 else float(parameter.detach().mean())
        torch.nn.init.normal_(parameter, mean=mean, std=0.15 if parameter.dim() > 1 else 0.1)
    model.save_pretrained(folder)
    return model


def logits_of(spec: str | Path, folder: Path) -> torch.Tensor:
    model = einpage.load_spec(spec, weights=folder, tokens=TOKENS)
    assert model.warnings == (), model.warnings
    return einpage.run(model, budget="64MiB", outputs=["all_logits"], machine="cpu", device="cpu").outputs["all_logits"].float()


GPT2 = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}


COMMON = {"bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "initializer_range": 0.02, "use_cache": True, "vocab_size": 32000}
SILENT = {
    "LLaMA": COMMON
    | {
        "architectures": ["LLaMAForCausalLM"],
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "max_sequence_length": 2048,
        "model_type": "llama",
    }
    | {"num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": -1, "rms_norm_eps": 1e-06, "torch_dtype": "float16"}
    | {"transformers_version": "4.27.0.dev0"},
    "LLaMA-2": COMMON
    | {"_name_or_path": "Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 11008}
    | {
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "num_attention_heads": 32,
        "num_hidden_layers": 32,
        "num_key_value_heads": 32,
    }
    | {"pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16"},
    "TinyLlama": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "model_type": "llama",
    }
    | {"max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 22, "num_key_value_heads": 4, "pretraining_tp": 1}
    | {"rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 10000.0, "tie_word_embeddings": False, "transformers_version": "4.35.0"},
    "SmolLM2": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_size": 576,
        "intermediate_size": 1536,
    }
    | {"is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False, "model_type": "llama", "num_attention_heads": 9}
    | {"num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False}
    | {"rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 49152}
    | {"transformers.js_config": None, "head_dim": 64},
    "Mistral": COMMON
    | {"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0, "hidden_size": 4096, "intermediate_size": 14336, "head_dim": None}
    | {"max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32}
    | {"num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None, "tie_word_embeddings": False},
    "GGUF": {"general.architecture": "llama", "general.name": "x", "general.file_type": 3, "general.quantization_version": 2}
    | {"llama.block_count": 22, "llama.context_length": 2048, "llama.embedding_length": 2048, "llama.feed_forward_length": 5632}
    | {"llama.attention.head_count": 32, "llama.attention.head_count_kv": 4, "llama.rope.dimension_count": 64, "llama.vocab_size": 32000}
    | {"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4, "tokenizer.ggml.model": "llama"}
    | {"tokenizer.chat_template": "…", "llama.attention.key_length": 64, "llama.attention.value_length": 64, "llama.expert_count": 0},
}
