"""How fast is generation on the CPU device beside transformers' `generate`? SmolLM2, greedy, fp32, the same weights and threads.

A call is a prompt read and so many tokens after it, everything loaded and planned before. Calls take turns in one process: ours in each
budget, with weights as fp32 numbers and as the file stores them, then transformers with its cache. Prints the medians and the least of the
rounds, tokens a second after the first, bytes moved a token, and two floors of ours: the pass with everything resident, and the bytes at
the profile's copy rate. Gate: the tokens are transformers', but where its two best logits are within CLOSE. Needs transformers and a quiet
machine; six minutes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

from bench import results
from bench.cpu_peers import MODEL, peer, token_ids
from einpage.exec import api
from einpage.exec.measure.cpu import measured_cpu
from einpage.exec.run.open_model import OpenModel
from einpage.exec.run.sampling import Sampling
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue

BUDGETS = ("64MiB", "256MiB", "1GiB")
ROUNDS, PROMPT, NEW = 5, 16, 48
CLOSE = 1e-3
"""Two logits that are no further apart may change places."""


def first_wrong(model: Any, prompt: tuple[int, ...], wanted: list[int], found: list[int]) -> int | None:
    """The first token that is not transformers' best, nor as good within CLOSE; None where there is none. What follows one that is as good
    is another text."""
    for n, (one, other) in enumerate(zip(wanted, found, strict=True)):
        if one == other:
            continue
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*prompt, *wanted[:n]]]), use_cache=False, logits_to_keep=1).logits.flatten()
        return None if float(logits[one] - logits[other]) <= CLOSE else n
    return None


def main() -> None:
    """Run the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    parser.add_argument("--prompt", type=int, default=PROMPT, help="tokens of it")
    parser.add_argument("--new", type=int, default=NEW, help="tokens after it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--dispatch", help="default: the faster of dynamic and serial")
    parser.add_argument("--out", type=Path, help="the folder for generate_peers.json")
    a = parser.parse_args()
    machine, prompt, began = measured_cpu(say=print), token_ids(a.prompt), os.getloadavg()[0]
    threads = machine.threads or 1
    network = peer(a.model)
    ids = torch.tensor([prompt])

    def theirs() -> list[int]:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            made = network.generate(ids, max_new_tokens=a.new, min_new_tokens=a.new, do_sample=False, use_cache=True, pad_token_id=0)
        return [int(token) for token in made[0, a.prompt :]]

    opened = {
        f"{budget}{', stored' if form == 'stored' else ''}": api.open(
            "llama", str(a.model), budget=budget, machine=machine, device="cpu", dispatch=a.dispatch, weights_as=form
        )
        for form in ("run", "stored")
        for budget in a.budgets
    }

    def ours(model: OpenModel) -> list[int]:
        return list(model.tokens(prompt, max_new=a.new, sampling=Sampling()))

    wanted = theirs()
    for budget, model in opened.items():
        if (wrong := first_wrong(network, prompt, wanted, ours(model))) is not None:
            raise SystemExit(f"{budget}: token {wrong} is not transformers'")
    seconds: dict[str, list[float]] = {name: [] for name in (*opened, "transformers")}
    passes: dict[str, list[float]] = {budget: [] for budget in opened}
    for _ in range(a.rounds):
        for name in seconds:
            start = perf_counter()
            if name in opened:
                ours(opened[name])
            else:
                theirs()
            seconds[name].append(perf_counter() - start)
            if name in opened and (figures := opened[name].figures) is not None:
                passes[name].append(figures.decode_s / figures.steps)
    rows = [_row(name, seconds, passes, opened, machine, a) for name in seconds]
    if a.out is not None:
        command = f"python -m bench.generate_peers --prompt {a.prompt} --new {a.new} --rounds {a.rounds}" + (
            "" if a.dispatch is None else f" --dispatch {a.dispatch}"
        )
        print(results.write(a.out, "generate_peers", command, rows, load_before=began, load_after=os.getloadavg()[0], threads=threads))


def _row(
    name: str,
    seconds: dict[str, list[float]],
    passes: dict[str, list[float]],
    opened: dict[str, OpenModel],
    machine: Machine,
    a: argparse.Namespace,
) -> dict[str, object]:
    """The figures of one contestant, printed."""
    ratio = median(seconds["transformers"]) / median(seconds[name])
    row: dict[str, object] = {"what": name, "median_s": median(seconds[name]), "least_s": min(seconds[name]), "x_transformers": ratio}
    told = f"{name:<16}{median(seconds[name]):8.2f} s {min(seconds[name]):8.2f} least   {ratio:6.3f} x transformers' speed"
    figures = opened[name].figures if name in opened else None
    if figures is not None:
        each, nbytes = median(passes[name]), figures.moved_bytes // figures.steps
        largest = f"{a.budgets[-1]}, stored" if name.endswith("stored") else a.budgets[-1]
        floor = max(median(passes[largest]), nbytes / machine.link(Queue.H2D).bytes_per_s)
        row |= {"token_s": each, "bytes_per_token": nbytes, "floor_s": floor, "of_floor": floor / each}
        row["predicted_token_s"] = figures.predicted_s / figures.steps
        told += f"   {1e3 * each:6.1f} ms a token, floor {1e3 * floor:6.1f} ({floor / each:.2f}), {nbytes / 2**20:6.1f} MiB moved"
    print(told, flush=True)
    return row


if __name__ == "__main__":
    main()
