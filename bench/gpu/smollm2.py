"""SmolLM2 with its real weights in fp16 inside 64 MiB: are the answers right, and the same to the bit under every dispatcher?

Gates: the five best next tokens and the eight published logits of each prompt of tests/data/smollm2_reference.json (transformers, fp32, the
same weights), within 2e-2 of the largest; static, dynamic and serial dispatch equal to the bit.
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bench.gpu.links import profile
from bench.gpu.report import Report, Setting
from bench.gpu.runs import SPEC, WARM_UPS, forget_memory, prepared, repeat
from bench.gpu.weights_file import NoModel, model_file
from bench.results import ROOT
from einpage.exec.load.inputs import TokenLists
from einpage.exec.planning.model import open_model
from einpage.exec.run.choose import Dispatch
from einpage.exec.run.prepared import Prepared
from einpage.memplan.machine.places import Queue

REFERENCE = ROOT / "tests" / "data" / "smollm2_reference.json"
TOLERANCE = 2e-2
BUDGET = 64 << 20
TOP = 5
REPEATS = 5
LEAST_LEFT_S = 10.0


def measure(report: Report) -> None:
    setting = report.setting
    try:
        path = model_file(setting.model)
    except NoModel as error:
        report.lacks("SmolLM2", f"{error}; no answer was checked")
        return
    import_module("gguf")  # here, so that without it the part is absent, once
    prompts = json.loads(REFERENCE.read_text(encoding="utf-8"))["prompts"]
    for prompt in prompts[:1] if setting.dry else prompts:
        if not report.begin(prompt["text"], LEAST_LEFT_S):
            continue
        try:
            _measure(report, setting, path, prompt)
        except Exception as error:
            report.failed(prompt["text"], error)
        forget_memory(setting)


def _measure(report: Report, setting: Setting, path: Path, prompt: dict[str, Any]) -> None:
    model = open_model(SPEC, {}, str(path), TokenLists((tuple(prompt["ids"]),), prompt["text"]))
    with prepared(setting, model, profile(setting.out, setting.dry), BUDGET) as ready:
        _judge(report, setting, ready, prompt)


def _judge(report: Report, setting: Setting, ready: Prepared, prompt: dict[str, Any]) -> None:
    repeat(ready, Dispatch.STATIC, WARM_UPS)
    runs = {dispatch: repeat(ready, dispatch, 1 if setting.dry else REPEATS) for dispatch in Dispatch}
    (logits,) = runs[Dispatch.STATIC].logits.float()
    wanted = torch.tensor([value for _, value in prompt["top8"]])
    found = logits[[token for token, _ in prompt["top8"]]]
    error = float((found - wanted).abs().max() / wanted.abs().max())
    best = torch.topk(logits, TOP).indices.tolist()
    right = best == [token for token, _ in prompt["top8"]][:TOP]
    same = all(torch.equal(runs[Dispatch.SERIAL].logits, run.logits) for run in runs.values())
    text = prompt["text"]
    report.check(f"{text}: bits", same, "static, dynamic and serial are equal" if same else "dispatchers differ")
    figures = {
        "wall_s": {dispatch.value: run.wall_s for dispatch, run in runs.items()},
        "predicted_s": ready.planned.report.predicted_s,
        "measured_ratio": runs[Dispatch.STATIC].wall_s / ready.planned.report.predicted_s,
        "h2d_bytes": runs[Dispatch.STATIC].measured.moved_bytes[Queue.H2D],
        "outside_arena_bytes": ready.device.outside_arena_bytes,
    }
    key = {"prompt": text, "budget_bytes": BUDGET, "top": best, "device": ready.device.name}
    walls = ", ".join(f"{dispatch.value} {1e3 * run.wall_s:.1f} ms" for dispatch, run in runs.items())
    said = f"five best {'right' if right else 'wrong'}, logits off by {error:.1e}"
    report.row(text, right and error <= TOLERANCE, said, key, figures, f"{said}; {walls}")
