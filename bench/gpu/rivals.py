"""The peers: transformers' LLaMA over the weights in host memory: everything resident, accelerate, DeepSpeed, FlexTensor, the hand-written
ring.

Each maker gives a Prefill, or raises Missing where the peer is not installed, with the wheel that it takes. All share one set of host
weights; none may take more device memory than its cap (the caller enforces it).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn

from bench.gpu.wheels import cure
from bench.ring import Ring

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
FLEXTENSOR_PROFILED = 3
"""Passes that it profiles."""


class Missing(Exception):
    """A peer that cannot be tried here, and why."""


@dataclass(frozen=True, slots=True)
class Prefill:
    """Token ids [1, seq] on the device → logits [vocab]."""

    run: Callable[[Tensor], Tensor]
    warm_ups: int = 1
    """Runs before those that count: one, or as many as a peer takes to see what it is to plan for."""
    close: Callable[[], object] = lambda: None
    """Gives back what it holds."""


def transformer(
    sizes: Mapping[str, int], weights: Mapping[str, torch.Tensor], dtype: torch.dtype = torch.float16, eps: float = 1e-5, theta: float = 1e4
) -> Any:
    """LlamaForCausalLM whose parameters are these very tensors, on the host; tied where there is no head among them."""
    transformers = _import("transformers")
    try:
        make_config, make_model = cast(Any, transformers.LlamaConfig), cast(Any, transformers.LlamaForCausalLM)
    except Exception as error:  # it loads them now, and what they import
        raise _missing("transformers", error) from error
    config = make_config(
        hidden_size=sizes["model"],
        intermediate_size=sizes["ffn"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        vocab_size=sizes["vocab"],
        max_position_embeddings=1 << 15,
        rms_norm_eps=eps,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        tie_word_embeddings=HEAD not in weights,
        attn_implementation="sdpa",
        dtype=dtype,
    )
    with torch.device("meta"):
        model = make_model(config)
    shaped = {name: w.reshape(model.get_parameter(name).shape) for name, w in weights.items()}
    model.load_state_dict({HEAD: shaped[EMBEDDING], **shaped}, assign=True, strict=True)
    rotary = type(model.model.rotary_emb)(config)  # its table is no weight, and was made on no device
    model.model.rotary_emb = rotary
    return model.eval().requires_grad_(False)


def resident(model: Any, device: torch.device) -> Prefill:
    """Everything on the device, before the first call."""
    return _whole(model.to(device))


def accelerate_offload(model: Any, device: torch.device) -> Prefill:
    """accelerate.cpu_offload: every module's weights come when it is called, and go after."""
    accelerate = _import("accelerate")
    return _whole(accelerate.cpu_offload(model, execution_device=device))


def accelerate_map(model: Any, device: torch.device, most_bytes: int) -> Prefill:
    """accelerate.dispatch_model: as many layers resident as fit, the others offloaded."""
    accelerate = _import("accelerate")
    if device.type != "cuda":
        raise Missing("a device map needs a device besides the CPU")
    limits = {0: most_bytes, "cpu": 1 << 40}
    places = accelerate.infer_auto_device_map(model, max_memory=limits, no_split_module_classes=["LlamaDecoderLayer"])
    return _whole(accelerate.dispatch_model(model, device_map=places, main_device=0))


def deepspeed_zero3(model: Any, device: torch.device) -> Prefill:
    """ZeRO-3 inference: parameters in pinned host memory, gathered a layer ahead."""
    deepspeed = _import("deepspeed")
    if device.type != "cuda":
        raise Missing("ZeRO-3 with offload needs a GPU")
    for name, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29533", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}.items():
        os.environ.setdefault(name, value)
    config = {
        "fp16": {"enabled": True},
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}},
    }
    engine, *_ = deepspeed.initialize(model=model, config=config)
    engine.module.eval()
    return _whole(engine.module)


def flextensor_offload(model: Any, device: torch.device, most_bytes: int) -> Prefill:
    """FlexTensor in its memory mode: it sees what a pass uses, profiles passes, and plans which tensors are resident."""
    flextensor = _import("flextensor")
    if device.type != "cuda":
        raise Missing("FlexTensor needs a GPU, even to plan")
    total = torch.cuda.get_device_properties(device).total_memory
    modules = ["model.embed_tokens", "model.layers.*", "model.norm", "lm_head"]
    config = flextensor.OffloadConfig(
        include_patterns=modules, max_gpu_mem_fraction=most_bytes / total, profiling_iters=FLEXTENSOR_PROFILED, profile_read_only=True
    )
    prefill = _whole(flextensor.offload(model, config=config))
    warm_ups = int(flextensor.get_offload_manager().iters_before_inference) + 1
    return Prefill(prefill.run, warm_ups, partial(flextensor.release, preserve_model=False))


def ring_layers(model: Any) -> list[nn.Module]:
    """What goes through the slots: the layers, and the head as one more."""
    return [*model.model.layers, nn.Sequential(model.model.norm, model.lm_head)]


def ring(model: Any, host: Sequence[Tensor], device: torch.device, kept: int) -> Prefill:
    """Two slots for all layers but `kept`, whose weights are in `host`; the embedding is looked up there too."""
    inner = model.model
    run = Ring(ring_layers(model), host, device, kept)
    rotary = inner.rotary_emb.to(device)

    def prefill(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            x = inner.embed_tokens(tokens.cpu()).to(device, non_blocking=True)
            positions = torch.arange(tokens.shape[1], device=device)[None]
            angles = rotary(x, positions)

            def call(layer: nn.Module, x: Tensor) -> Tensor:
                if isinstance(layer, nn.Sequential):
                    found: Tensor = layer(x[:, -1:])
                else:
                    found = layer(x, position_ids=positions, position_embeddings=angles)
                return found

            return run(x, call)[0, -1]

    return Prefill(prefill)


def _whole(model: Any) -> Prefill:
    def prefill(tokens: Tensor) -> Tensor:
        with torch.inference_mode():
            logits: Tensor = model(tokens, logits_to_keep=1, use_cache=False).logits[0, -1]
        return logits

    return Prefill(prefill)


def _import(name: str) -> Any:
    try:
        return import_module(name)
    except Exception as error:  # one that is broken raises what it likes
        raise _missing(name, error) from error


def _missing(name: str, error: Exception) -> Missing:
    known = cure(error.name) if isinstance(error, ModuleNotFoundError) else None
    return Missing(known or f"{name} does not import: {type(error).__name__}: {' '.join(str(error).split())[:200]}")
