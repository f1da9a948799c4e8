"""How fast is a step of training beside torch, and in how much memory? SmolLM2, fp32, AdamW, the same weights, tokens and threads.

    python -m bench.train_peers [--tokens 63] [--steps 9] [--rounds 3] [--budgets 100%,40%]

Contestants, each in a process of its own, in turns: ours in each budget (states that fit stay on the device, the others are moved);
transformers with torch's AdamW, all resident; the same with gradient checkpointing. Prints the median seconds of a step, without the first,
over all rounds, and the peak of resident memory. Gate: the losses of all agree within 1e-3.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import einpage
from bench.cpu_peers import MODEL, peer, token_ids
from bench.results import ROOT
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.measure.cpu import measured_cpu
from einpage.exec.system.process_memory import peak_resident_bytes

RATE, DECAY = 1e-4, 0.01
SEQUENCES = 4
TOLERANCE = 1e-3
TORCH = ("torch", "torch, checkpointing")


def sequences(tokens: int) -> list[list[int]]:
    """Some, the same every time."""
    ids = token_ids(tokens * SEQUENCES)
    return [list(ids[i * tokens : (i + 1) * tokens]) for i in range(SEQUENCES)]


def by_torch(path: Path, tokens: int, steps: int, checkpointing: bool) -> tuple[list[float], list[float]]:
    """Losses and seconds of steps of transformers' model."""
    torch.set_num_threads(measured_cpu().threads or 1)
    model = peer(path).train()
    model.tie_weights()
    model.requires_grad_(True)
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    losses, seconds, texts = list[float](), list[float](), sequences(tokens)
    for n in range(steps):
        ids = torch.tensor([texts[n % SEQUENCES]])
        began = perf_counter()
        optimiser.zero_grad()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimiser.step()
        seconds.append(perf_counter() - began)
        losses.append(float(loss.detach()))
    return losses, seconds


def by_einpage(path: Path, tokens: int, steps: int, budget: str) -> tuple[list[float], list[float]]:
    """Losses and seconds of ours."""
    found = einpage.train(
        ROOT / "specs/llama.yaml", path, steps=steps, tokens=sequences(tokens), lr=RATE, weight_decay=DECAY, budget=budget, device="cpu"
    )
    return list(found.losses), [step.wall_s for step in found.done]


def one(name: str, a: argparse.Namespace) -> dict[str, Any]:
    """What one contestant did."""
    if name in TORCH:
        losses, seconds = by_torch(a.model, a.tokens, a.steps, name != TORCH[0])
    else:
        losses, seconds = by_einpage(a.model, a.tokens, a.steps, name)
    return {"losses": losses, "seconds": seconds[1:], "peak": peak_resident_bytes()}


def main() -> None:
    """The command."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--tokens", type=int, default=63)
    p.add_argument("--steps", type=int, default=9)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--budgets", default="100%,40%")
    p.add_argument("--model", type=Path, default=MODEL)
    p.add_argument("--one", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.one:
        print(json.dumps(one(a.one, a)))
        return
    names = (*a.budgets.split(","), *TORCH)
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for _ in range(a.rounds):
        for name in names:
            line = [sys.executable, "-m", "bench.train_peers", "--one", name, "--tokens", str(a.tokens), "--steps", str(a.steps)]
            ran = subprocess.run([*line, "--model", str(a.model)], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            found[name].append(json.loads(ran.stdout.splitlines()[-1]))
    theirs = found[TORCH[0]][0]["losses"]
    base = median(s for ran in found[TORCH[0]] for s in ran["seconds"])
    for name in names:
        worst = max(abs(x - y) for ran in found[name] for x, y in zip(ran["losses"], theirs, strict=True))
        if worst > TOLERANCE:
            raise SystemExit(f"{name}: losses differ from torch's by {worst:.1e}")
        seconds, peak = median(s for ran in found[name] for s in ran["seconds"]), max(ran["peak"] for ran in found[name])
        which = name if name in TORCH else f"einpage {name}"
        print(f"{which:<22} {1e3 * seconds:7.0f} ms a step   {base / seconds:5.2f} x torch's speed   peak {format_bytes(peak)}")


if __name__ == "__main__":
    main()
