"""The real model with a host too small for it: the same bits as with all on the host, and of the disk the plan's sectors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import einpage
from disk_files import read_bytes_counted
from einpage.exec.cli import main
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run.choose import Dispatch, RunOptions
from einpage.exec.run.prepared import prepare_run
from einpage.exec.run.sampling import Sampling
from einpage.memplan.graph.simulate import sector_bytes
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.machine.profile import machine_text
from smollm2 import smollm2_path
from smollm2_run import FRANCE, LLAMA, MACHINE, MIB, open_smollm2

ONE = replace(MACHINE, threads=1)
DISK = ONE.with_links(Link(Queue.READ, 1.8e9, 1e-4), Link(Queue.WRITE, 1e9, 1e-4))
REQUEST = PlanRequest(32 * MIB, host_budget_bytes=48 * MIB, passes=2)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("cache")
def test_the_same_bits_and_the_plans_sectors() -> None:
    model = open_smollm2([FRANCE])
    prepared = prepare_run(model, DISK, RunOptions(REQUEST))
    planned = prepared.planned
    pieces = {**dict.fromkeys(model.program.extents, 1), **dict(planned.graph.split)}
    resident = prepare_run(model, ONE, RunOptions(replace(REQUEST, host_budget_bytes=None, passes=None, pieces=pieces)))
    resident.run(Dispatch.DYNAMIC)
    expected = next(iter(resident.outputs().values()))
    resident.close()
    sectors = sector_bytes(planned.memgraph, Queue.READ)
    for dispatch in Dispatch:
        prepared.run(dispatch)
        before = read_bytes_counted()
        prepared.run(dispatch)
        counted = read_bytes_counted() - before
        assert torch.equal(next(iter(prepared.outputs().values())), expected)
        for read, written in prepared.disk_bytes:
            assert written == 0 and sectors < read <= sectors + 4096 * len(FRANCE), "and a few rows of the embedding"
        assert counted == sum(read for read, _ in prepared.disk_bytes), "as the kernel counts them"
    prepared.close()


def test_text_from_the_disk_is_the_same_text(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cache / "disk.yaml").write_text(machine_text(DISK), encoding="utf-8")
    words = ["generate", str(LLAMA), "--weights", str(smollm2_path()), "--machine", str(cache / "disk.yaml"), "--prompt"]
    words += ["The capital of France is", "--greedy", "--max-new", "6", "--budget", "32MiB", "--split", "v=4", "--json"]
    assert main(words) == 0
    everything = capsys.readouterr().out
    assert main([*words, "--host-budget", "48MiB"]) == 0
    from_disk = capsys.readouterr().out
    tokens = [text.partition('"tokens": ')[2].partition("]")[0] for text in (everything, from_disk)]
    assert tokens[0] == tokens[1] and tokens[0].count(",") == 5
    assert '"host_bytes": 50331648' in from_disk


@pytest.mark.usefixtures("cache")
def test_a_model_held_open_answers_from_the_disk_as_from_the_host() -> None:
    weights, settings = str(smollm2_path()), {"budget": "32MiB", "device": "cpu", "split": {"v": 4}, "machine": DISK}
    found = []
    for host_budget in (None, "48MiB"):
        with einpage.open("llama", weights, host_budget=host_budget, **settings) as model:
            tokens = [*model.tokens(model.tokenizer.encode("The capital of France is"), max_new=5, sampling=Sampling())]
            again = "".join(model.generate("The capital of France is", max_new=5))
            logits = next(iter(model.prefill([FRANCE]).values()))
        found.append((tokens, again, logits))
    assert found[0][:2] == found[1][:2] and len(found[0][0]) == 5
    assert np.array_equal(found[0][2], found[1][2])
