"""Greedy text of the real model, in an arena of an eighth of its weights, against transformers over the same weights."""

from __future__ import annotations

import pytest

import einpage
from bench.cpu_peers import peer
from bench.generate_peers import first_wrong
from einpage.checkpoints.text.tokenizer import load_tokenizer
from einpage.exec.run.sampling import Sampling
from smollm2 import smollm2_path

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "1, 1, 2, 3, 5, 8,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria",
    "Q: What is 17 + 25?\nA:",
    "Liebe Grüße aus",
    "Il était une fois",
    "日本の首都は",
    "SELECT name, age FROM users WHERE",
    "The three laws of thermodynamics are:\n1.",
    '"To be, or not to be,',
    "a a a a a a a a",
    "<html>\n<head>\n<title>",
    "In 1969,",
    "🙂 means",
    "Recipe: pancakes\nIngredients:\n-",
    "x",
)
NEW = 64


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_twenty_prompts_go_on_as_with_transformers() -> None:
    import torch

    network, tokenizer = peer(smollm2_path()), load_tokenizer(str(smollm2_path()))
    with einpage.open(smollm2_path(), budget="64MiB", machine="cpu", device="cpu") as model:
        for prompt in PROMPTS:
            ids = tuple(tokenizer.encode(prompt))
            with torch.inference_mode():
                made = network.generate(torch.tensor([ids]), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0)
            wanted = [int(token) for token in made[0, len(ids) :]]
            found = list(model.tokens(ids, max_new=NEW, sampling=Sampling()))
            assert first_wrong(network, ids, wanted, found) is None, prompt
