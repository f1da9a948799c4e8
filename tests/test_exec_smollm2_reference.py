"""The chain up to the weights, end to end: specs/llama.yaml, the real GGUF, and the eager reference give the model's published figures.

The figures are transformers' (LlamaForCausalLM, fp32, the same dequantised weights), copied here.
"""

from __future__ import annotations

from math import exp
from pathlib import Path

import pytest
import torch

from einpage.checkpoints.match.metadata import spec_settings
from einpage.checkpoints.match.resolve import open_weights, present_names, resolve
from einpage.checkpoints.text.tokenizer import Tokenizer, load_tokenizer
from einpage.einsum_front.elaborate.elaborate import elaborate
from einpage.einsum_front.elaborate.reference import evaluate
from einpage.einsum_front.fuse.tied_weights import with_tied_weights
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.reader import load_document
from einpage.exec.load.fill import read_weights
from einpage.exec.load.inputs import TokenLists, bind_inputs, encode_prompts, token_sizes
from smollm2 import smollm2_path

SPEC = Path(__file__).parents[1] / "specs" / "llama.yaml"
TEXT = (
    "The quick development of computing in the twentieth century changed how people work, learn and communicate. Early machines "
    "filled entire rooms and were programmed with punched cards, while modern computers fit in a pocket and respond to touch and "
    "voice. Memory, once measured in a few thousand words, is now counted in billions of bytes. Even so, the basic ideas have not "
    "changed: a processor reads instructions from memory, carries them out one after another, and writes the results back."
)
PROMPTS = {
    "The capital of France is": {7042: 17.37127, 260: 14.8886, 4528: 13.24498, 2250: 13.00946, 1315: 12.95152, 5145: 12.90494},
    "Once upon a time": {28: 18.14201, 281: 14.08253, 665: 13.36724, 260: 12.93552, 253: 12.92801, 645: 12.48435},
    "def fibonacci(n):": {472: 30.84275, 198: 26.79891, 3805: 26.10306, 1004: 25.79338, 16390: 25.60937, 216: 25.5791},
}


def program_for(tokens: TokenLists) -> Program:
    document, checkpoint = load_document(SPEC), open_weights(str(smollm2_path()))
    program = elaborate(document, {**spec_settings(document, checkpoint), **token_sizes(tokens, {})})
    return with_tied_weights(program, present_names(program, checkpoint))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(str(smollm2_path()))


@pytest.fixture(scope="module")
def weights(tokenizer: Tokenizer) -> dict[str, torch.Tensor]:
    program = program_for(encode_prompts(tokenizer, ["any"]))
    return read_weights(resolve(program, open_weights(str(smollm2_path()))), program)


def output(name: str, texts: list[str], tokenizer: Tokenizer, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    tokens = encode_prompts(tokenizer, texts)
    program = program_for(tokens)
    inputs = {k: torch.from_numpy(v) for k, v in bind_inputs(program, tokens, {}).items()}
    return evaluate(program, inputs, weights, outputs=[name])[name]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_next_token_logits(prompt: str, tokenizer: Tokenizer, weights: dict[str, torch.Tensor]) -> None:
    (logits,) = output("logits", [prompt], tokenizer, weights)
    top = torch.topk(logits, len(PROMPTS[prompt]))
    assert top.indices.tolist() == list(PROMPTS[prompt])
    torch.testing.assert_close(top.values, torch.tensor(list(PROMPTS[prompt].values())), atol=2e-4, rtol=0)


def test_the_whole_distribution(tokenizer: Tokenizer, weights: dict[str, torch.Tensor]) -> None:
    (logits,) = output("logits", ["The capital of France is"], tokenizer, weights)
    found = torch.stack([logits.mean(), logits.std(), logits.min(), logits.logsumexp(0)])
    torch.testing.assert_close(found, torch.tensor([-1.858300, 3.569283, -19.793102, 17.629344]), atol=2e-4, rtol=0)


def test_perplexity(tokenizer: Tokenizer, weights: dict[str, torch.Tensor]) -> None:
    (logits,) = output("all_logits", [TEXT], tokenizer, weights)
    ids = torch.tensor(tokenizer.encode(TEXT))
    assert len(ids) == 93
    perplexity = exp(torch.nn.functional.cross_entropy(logits[:-1], ids[1:]).item())
    assert perplexity == pytest.approx(29.9561, abs=0.003)


def test_each_prompt_of_a_padded_batch_gives_its_own_logits(tokenizer: Tokenizer, weights: dict[str, torch.Tensor]) -> None:
    both = output("logits", ["Once upon a time", "def fibonacci(n):"], tokenizer, weights)
    for logits, prompt in zip(both, ["Once upon a time", "def fibonacci(n):"], strict=True):
        expected = torch.tensor(list(PROMPTS[prompt].values()))
        torch.testing.assert_close(logits[list(PROMPTS[prompt])], expected, atol=2e-4, rtol=0)
