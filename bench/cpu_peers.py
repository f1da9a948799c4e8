"""How fast is the CPU device beside transformers? SmolLM2's logits of the last position, no KV cache, the same weights, the same threads.

For each length the calls take turns in one process: ours in each budget, steady (every pass ends as it began), then transformers with the
same threads, then with all cores. Prints the median and the least of the rounds in milliseconds, and ours ÷ transformers; the load of the
machine stands beside them. `--libraries` adds ours with every product left to torch.mm. Gate: ours and transformers' logits agree within
TOLERANCE. Two minutes.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, cast

import torch
from torch import Tensor

from bench import results
from bench.gpu.rivals import transformer
from bench.results import ROOT
from einpage.einsum_front.base.libraries import ONLY_TORCH
from einpage.einsum_front.base.units import format_bytes, parse_bytes
from einpage.einsum_front.graph.program import WeightsAs
from einpage.exec.load.fill import read_weights
from einpage.exec.load.inputs import TokenLists
from einpage.exec.measure.cpu import cores, measured_cpu
from einpage.exec.planning.model import open_model
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import Dispatch, RunOptions, dispatcher_type
from einpage.exec.run.prepared import Prepared, prepare_run
from einpage.memplan.machine.machine import Machine

MODEL = ROOT / ".cache" / "SmolLM2-135M-Instruct.Q4_1.gguf"
TOKENS = (5, 64, 256, 1024)
BUDGETS = ("64MiB", "1GiB")
ROUNDS = 7
LAYER = "model.layers.{l}."
NAMES = {
    "embed": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "norm1": f"{LAYER}input_layernorm.weight",
    "norm2": f"{LAYER}post_attention_layernorm.weight",
    **{w: f"{LAYER}self_attn.{w[1]}_proj.weight" for w in ("wq", "wk", "wv", "wo")},
    **{w: f"{LAYER}mlp.{part}_proj.weight" for w, part in (("w1", "gate"), ("w2", "down"), ("w3", "up"))},
}
"""What transformers calls the weights of the spec."""
FORMS = {WeightsAs.RUN: "", WeightsAs.STORED: ", stored"}
"""Weights as fp32 numbers, as transformers has them, and as the file has them."""
TOLERANCE = 1e-4
"""Of the largest difference of logits to the largest logit."""


@dataclass(slots=True)
class Contestant:
    """One call, and how long it took each time."""

    name: str
    threads: int
    run: Callable[[], Tensor]
    """The logits of the last position, [vocab]."""
    seconds: list[float] = field(default_factory=list)

    def timed(self) -> Tensor:
        """Run once, and note the time."""
        torch.set_num_threads(self.threads)
        began = perf_counter()
        found = self.run()
        self.seconds.append(perf_counter() - began)
        return found


def token_ids(count: int) -> tuple[int, ...]:
    """Some tokens, the same every time."""
    return tuple(1000 + 37 * i * i % 40_000 for i in range(count))


def peer(path: Path) -> Any:
    """transformers' LLaMA over the weights that ours reads from the file, dequantised to fp32."""
    model = open_model(ROOT / "specs/llama.yaml", {}, str(path))
    assert model.resolved is not None
    weights = {
        NAMES[name.partition("@")[0]].format(l=name.partition("@")[2]): w for name, w in read_weights(model.resolved, model.program).items()
    }
    scalars = model.program.scalars
    return transformer(model.program.sizes, weights, torch.float32, scalars["eps"], scalars["theta"])


def ours(path: Path, tokens: tuple[int, ...], budget: str, machine: Machine, plan_steps: int | None, weights_as: WeightsAs) -> Prepared:
    """The model planned for passes that each end as they began, its weights loaded."""
    model = open_model(ROOT / "specs/llama.yaml", {}, str(path), TokenLists((tokens,), "the benchmark's tokens"))
    request = PlanRequest(parse_bytes(budget), outputs=("logits",), passes=ROUNDS, plan_steps=plan_steps, weights_as=weights_as)
    return prepare_run(model, machine, RunOptions(request))


def one_pass(prepared: Prepared, dispatch: Dispatch) -> Callable[[], Tensor]:
    """A call that runs one pass of what was prepared and preloaded."""
    prepared.device.preload()
    dispatcher = dispatcher_type(prepared.options.device, dispatch)(prepared.planned.memgraph)

    def call() -> Tensor:
        dispatcher.run(prepared.device)
        return prepared.outputs()["logits"].flatten()

    return call


def rows(path: Path, count: int, budgets: tuple[str, ...], machine: Machine, a: argparse.Namespace, model: Any) -> list[dict[str, Any]]:
    """One row a contestant for prompts of `count` tokens. Raises SystemExit where logits differ."""
    tokens = token_ids(count)
    ids = torch.tensor([tokens])
    threads = machine.threads or 1
    dispatch = Dispatch(a.dispatch)
    machines = {"": machine, **({", torch.mm": replace(machine, libraries=ONLY_TORCH)} if a.libraries else {})}
    contestants = [
        Contestant(
            f"einpage {budget}{which}{FORMS[form]}", threads, one_pass(ours(path, tokens, budget, made_for, a.plan_steps, form), dispatch)
        )
        for budget in budgets
        for form in FORMS
        for which, made_for in machines.items()
    ]

    def reference() -> Tensor:
        with torch.inference_mode():
            return cast(Tensor, model(input_ids=ids, use_cache=False, logits_to_keep=1).logits).flatten()

    same = Contestant("transformers", threads, reference)
    contestants.append(same)
    if cores() > threads:
        contestants.append(Contestant("transformers, all cores", cores(), reference))
    expected = reference()
    for contestant in contestants:
        difference = float((contestant.run() - expected).abs().max() / expected.abs().max())
        if not difference <= TOLERANCE:
            raise SystemExit(f"{contestant.name}, {count} tokens: logits differ from transformers' by {difference:.1e}")
    load = os.getloadavg()[0]
    alone = [c for c in contestants if c.threads != threads]
    for turns in ([c for c in contestants if c not in alone], alone):  # a team of threads spins on for a while, beside whoever comes next
        for _ in range(a.rounds):
            for contestant in turns:
                contestant.timed()
    found = []
    for c in contestants:
        ratio = median(c.seconds) / median(same.seconds)
        row = {
            "tokens": count,
            "what": c.name,
            "threads": c.threads,
            "median_ms": 1e3 * median(c.seconds),
            "least_ms": 1e3 * min(c.seconds),
            "ratio": ratio,
            "ratio_of_least": min(c.seconds) / min(same.seconds),
            "load": load,
        }
        print(
            f"{count:>6}  {c.name:<28}{c.threads:>3} threads {row['median_ms']:9.1f} ms {row['least_ms']:9.1f} least"
            f"{ratio:8.3f} x transformers {row['ratio_of_least']:7.3f} of least",
            flush=True,
        )
        found.append(row)
    return found


def main() -> None:
    """Run the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--budgets", nargs="+", default=list(BUDGETS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, help="of ours, and of transformers beside it; what suits this machine where left out")
    parser.add_argument("--dispatch", choices=[d.value for d in Dispatch], default=Dispatch.DYNAMIC.value)
    parser.add_argument("--plan-steps", type=int, help="of the search for a better plan; the online plan where left out")
    parser.add_argument("--libraries", action="store_true", help="ours with every product left to torch.mm, too")
    parser.add_argument("--out", type=Path, help="the folder for cpu_peers.json")
    a = parser.parse_args()
    machine = measured_cpu(threads=a.threads, say=print)
    began = os.getloadavg()[0]
    model = peer(a.model)
    print(f"load {began:.2f}, {cores()} cores; products: {machine.libraries}")
    found = [row for count in a.tokens for row in rows(a.model, count, tuple(a.budgets), machine, a, model)]
    if a.out is not None:
        budgets = " ".join(format_bytes(parse_bytes(b)) for b in a.budgets)
        path = results.write(
            a.out,
            "cpu_peers",
            f"python -m bench.cpu_peers --tokens {' '.join(map(str, a.tokens))} --budgets {' '.join(a.budgets)} --rounds {a.rounds}",
            found,
            budgets=budgets,
            libraries=str(machine.libraries),
            torch=torch.__version__,
            load_before=began,
            load_after=os.getloadavg()[0],
        )
        print(path)


if __name__ == "__main__":
    main()
