"""A model held open from Python: text, ids and arrays as often as asked, with one read of the checkpoint; a folder that says which spec."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import einpage
from checkpoint_metadata import SPECS, TINY, saved
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.libraries import FasterFrom, Libraries
from einpage.exec.cli import main
from einpage.exec.device.arena import HostArena
from einpage.exec.planning.model import spec_for
from einpage.exec.run import choose, loaded_model, open_model
from einpage.exec.run.open_model import OpenModel
from einpage.exec.run.sampling import Sampling
from einpage.memplan.machine.machine import Measurement
from einpage.memplan.machine.profile import load_machine
from smollm2 import smollm2_path
from test_exec_generate import expected
from test_front_gallery import ENCODERS, MODELS

SIZES = {"vocab": 160, "model": 48, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128}
GREEDY = Sampling()


@pytest.fixture
def model() -> Iterator[OpenModel]:
    with einpage.open(SPECS / "llama.yaml", "random:3", set=SIZES, budget="128KiB", machine="cpu", device="cpu") as opened:
        yield opened


def ids(model: OpenModel, prompt: list[int], max_new: int) -> tuple[int, ...]:
    return tuple(model.tokens(prompt, max_new=max_new, sampling=GREEDY))


def test_it_answers_as_often_as_asked_and_reads_the_checkpoint_once(model: OpenModel) -> None:
    """Prompts of several lengths, of which the last needs a larger arena; and arrays between."""
    with patch.object(loaded_model, "fill", wraps=loaded_model.fill) as filled:
        assert ids(model, [5, 17, 3], 6) == expected((5, 17, 3), 6)
        assert ids(model, [1], 3) == expected((1,), 3)
        assert model.prefill([[5, 17], [9, 4]])["logits"].shape == (2, 160)
        assert ids(model, list(range(1, 41)), 2) == expected(tuple(range(1, 41)), 2)
        assert ids(model, [5, 17, 3], 6) == expected((5, 17, 3), 6)
        assert filled.call_count == 1
    assert model.figures is not None and model.figures.steps == 5


def test_plans_serve_prompts_that_are_alike(model: OpenModel) -> None:
    with patch.object(open_model, "plan_generation", wraps=open_model.plan_generation) as planned:
        for prompt in ([5, 17, 3], [1], [2] * 16):
            ids(model, prompt, 4)
        assert planned.call_count == 1
        ids(model, [2] * 17, 4)
        assert planned.call_count == 2


def test_what_it_prefills_is_what_a_run_computes(model: OpenModel) -> None:
    ids(model, [1], 2)
    llama = einpage.load_spec(SPECS / "llama.yaml", set=SIZES, weights="random:3", tokens=[[5, 17, 3], [9]])
    wanted = einpage.run(llama, budget="128KiB", machine="cpu", device="cpu", outputs=["logits", "all_logits"]).outputs
    found = model.prefill([[5, 17, 3], [9]], outputs=["logits", "all_logits"])
    assert set(found) == {"logits", "all_logits"}
    np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["all_logits"][0], wanted["all_logits"][0], rtol=1e-4, atol=1e-5)
    again = model.prefill(np.array([[5, 17, 3], [9, 0, 0]]))
    np.testing.assert_allclose(again["logits"][0], found["logits"][0], rtol=1e-4, atol=1e-5)


def test_what_has_no_state_does_not_generate() -> None:
    attention = einpage.open(SPECS / "attention.yaml", "random:1", budget="16MiB", machine="cpu", device="cpu")
    with pytest.raises(UsageError, match="does not generate"):
        ids(attention, [1], 2)
    attention.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: list(model.generate("hello")), "no tokenizer"),
        (lambda model: model.prefill("hello"), "no tokenizer"),
        (lambda model: ids(model, [], 3), "a prompt is empty"),
        (lambda model: ids(model, [1], 0), "--max-new 0 is not between 1 and"),
        (lambda model: ids(model, [160], 2), r"tokens\[0, 0\] is 160, outside its range"),
        (lambda model: model.prefill([[1], [200]]), r"tokens\[1, 0\] is 200, outside its range"),
        (lambda model: model.prefill([1], outputs=["none"]), "none"),
        (lambda model: model.prefill([1], outputs="logits"), "expected a list of names"),
        (lambda model: ids(model, [[5, 17]], 3), "not a token id"),  # type: ignore[list-item]
        (lambda model: ids(model, [5.5], 3), "not a token id"),  # type: ignore[list-item]
        (lambda model: ids(model, [5], 4.5), "max_new is 4.5, expected a whole number"),  # type: ignore[arg-type]
        (lambda model: list(model.generate([5], top_k=3)), "no tokenizer"),
    ],
)
def test_what_it_cannot_do_is_said_and_it_goes_on(call: Any, message: str, model: OpenModel) -> None:
    with pytest.raises(UsageError, match=message):
        call(model)
    assert ids(model, [5, 17, 3], 2) == expected((5, 17, 3), 2)


def test_a_closed_model_is_of_no_use(model: OpenModel) -> None:
    model.close()
    for call in (lambda: ids(model, [1], 2), lambda: model.prefill([1]), lambda: list(model.generate("a"))):
        with pytest.raises(UsageError, match="the model is closed"):
            call()


def test_a_text_that_is_left_early_leaves_the_model_as_it_was(model: OpenModel) -> None:
    found = model.tokens([5, 17, 3], max_new=6, sampling=GREEDY)
    assert next(found) == expected((5, 17, 3), 6)[0]
    found.close()
    assert ids(model, [5, 17, 3], 6) == expected((5, 17, 3), 6)


def test_a_text_that_is_begun_ends_the_one_before(model: OpenModel) -> None:
    """They have the same memory: silence would be wrong tokens."""
    for other in (lambda: ids(model, [9, 4, 77, 2], 3), lambda: model.prefill([[9, 4, 77, 2]] * 3)):
        first = model.tokens([5, 17, 3], max_new=6, sampling=GREEDY)
        next(first)
        other()
        with pytest.raises(UsageError, match="another text was begun on this model"):
            list(first)
        assert ids(model, [5, 17, 3], 6) == expected((5, 17, 3), 6)


@pytest.mark.parametrize(("where", "prompt"), [("fill", [5, 17, 3]), ("drop", list(range(60)))])
def test_weights_that_were_not_all_loaded_are_loaded_again(where: str, prompt: list[int], model: OpenModel) -> None:
    """Ctrl-C while they are read, or while the arena grows."""

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    if where == "drop":
        ids(model, [1], 2)
    with patch.object(*((loaded_model, "fill") if where == "fill" else (HostArena, "drop")), interrupted), pytest.raises(KeyboardInterrupt):
        ids(model, prompt, 4)
    assert ids(model, [5, 17, 3], 6) == expected((5, 17, 3), 6)


def test_a_model_that_is_closed_says_no_more(model: OpenModel) -> None:
    begun = model.tokens([5, 17, 3], max_new=6, sampling=GREEDY)
    next(begun)
    model.close()
    with pytest.raises(UsageError, match="the model is closed"):
        next(begun)


def test_a_learned_table_of_positions_is_used_to_its_end(tmp_path: Path) -> None:
    """Plans for longer texts than asked for are not made where the model has no more positions."""
    network = saved(tmp_path, "gpt2", **{**MODELS["gpt2"].config, "n_positions": 20})
    with einpage.open(tmp_path, budget="1MiB", machine="cpu", device="cpu") as gpt2:
        found = ids(gpt2, [5, 6, 7], 18)
        with pytest.raises(UsageError, match=r"more than the 20 positions that gpt2 has; say --max-new 18"):
            ids(gpt2, [5, 6, 7], 19)
    with torch.no_grad():
        logits = network(torch.tensor([[5, 6, 7, *found[:-1]]])).logits[0, 2:]
    assert all(row[token] > row.max() - 1e-3 for row, token in zip(logits, found, strict=True))


@pytest.mark.slow
def test_the_real_model_answers_by_its_file_alone() -> None:
    with einpage.open(smollm2_path(), budget="64MiB", machine="cpu", device="cpu") as smollm2:
        pieces = list(smollm2.generate("The capital of France is", max_new=10))
        assert "".join(pieces) == " Paris.\n\nThe answer is: 2" and len(pieces) > 5 and smollm2.finish == "length"
        assert "".join(smollm2.generate("The capital of France is", max_new=10, stop="\n")) == " Paris." and smollm2.finish == "stop"
        drawn = ["".join(smollm2.generate("Once", max_new=8, temperature=1.0, seed=seed)) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("name", [*MODELS, *ENCODERS])
def test_a_checkpoint_says_which_spec_is_right(name: str, tmp_path: Path) -> None:
    """Of decoders in one file and in shards, and of encoders, which prefill and do not generate."""
    if name in ENCODERS:
        saved(tmp_path, name, auto="AutoModel", **ENCODERS[name].config)
        with einpage.open(tmp_path, budget="16MiB", machine="cpu", device="cpu") as encoder:
            assert encoder.spec == name
            assert all(np.isfinite(array).all() for array in encoder.prefill([[1, 2, 3], [4]]).values())
        return
    network = saved(tmp_path, MODELS[name].model_type or name, **MODELS[name].config)
    assert spec_for(str(tmp_path)) == name
    network.save_pretrained(tmp_path / "shards", max_shard_size="60KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert spec_for(str(tmp_path / "shards")) == name


def test_a_mistral_without_a_window_is_a_mistral(tmp_path: Path) -> None:
    """Two specs have its math."""
    saved(tmp_path, "mistral", **{**MODELS["mistral"].config, "sliding_window": None})
    assert spec_for(str(tmp_path)) == "mistral"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"model_type": "granite", "embedding_multiplier": 12.0},
            ("llama: `model_type` is 'granite'", "llama: `embedding_multiplier` is 12.0"),
        ),
        ({"model_type": "helium"}, ("llama: `model_type` is 'helium'",)),
        ({"model_type": "made_up"}, ("llama: `model_type` is 'made_up'",)),
    ],
)
def test_a_checkpoint_of_other_math_is_refused_with_the_key(
    changes: dict[str, object], told: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(tmp_path, "llama", **MODELS["llama"].config)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text(encoding="utf-8")), **changes}), encoding="utf-8")
    with pytest.raises(UsageError, match="no spec that ships is right for this checkpoint") as refused:
        spec_for(str(tmp_path))
    assert all(line in str(refused.value) for line in told), refused.value
    assert main(("run", "--weights", str(tmp_path), "--budget", "1MiB", "--machine", "cpu", "--device", "cpu")) == 2
    assert all(line in capsys.readouterr().err for line in told[:1])


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize(
    ("model_type", "config", "told"),
    [
        ("granite", {"residual_multiplier": 0.22}, ("llama: `model_type` is 'granite'", "llama: `residual_multiplier` is 0.22")),
        ("helium", {"head_dim": 16}, ("llama: `model_type` is 'helium'; the spec is right for llama or mistral",)),
        ("smollm3", {}, ("llama: `model_type` is 'smollm3'", "`no_rope_layer_interval` is 4, and changes which layers rotate")),
    ],
)
def test_a_neighbour_of_a_shipped_model_is_refused(
    model_type: str, config: dict[str, object], told: tuple[str, ...], shards: bool, tmp_path: Path
) -> None:
    """As transformers saves it: the tensors are those of `llama`."""
    network = saved(tmp_path, model_type, **{**TINY, **config})
    folder = tmp_path / "shards" if shards else tmp_path
    if shards:
        network.save_pretrained(folder, max_shard_size="60KB")
    with pytest.raises(UsageError, match="no spec that ships is right for this checkpoint") as refused:
        spec_for(str(folder))
    assert all(line in str(refused.value) for line in told), refused.value


def test_a_shipped_model_without_its_head_is_refused_by_name(tmp_path: Path) -> None:
    """Its tensors have other names: what is missing is said of the spec that the metadata name."""
    saved(tmp_path, "llama", auto="AutoModel", **MODELS["llama"].config)
    with pytest.raises(UsageError, match=r"(?s)write one, or change the nearest .*\n  llama: missing: embed: no tensor called"):
        spec_for(str(tmp_path))


def test_tensors_that_no_spec_reads_are_said_to_be_so(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a.weight": torch.zeros(3, 3)}, tmp_path / "model.safetensors")
    with pytest.raises(UsageError, match="none reads its tensors"):
        spec_for(str(tmp_path))
    with pytest.raises(UsageError, match="random:3 fit any spec: name one"):
        spec_for("random:3")


def test_the_command_needs_neither_spec_nor_budget(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--weights", str(smollm2_path()), "--prompt", "The capital of France is", "--machine", "cpu", "--device", "cpu")
    with patch.object(choose, "available_bytes", lambda: 2 << 30):
        assert main(("run", *words, "--plan-seconds", "0", "--json")) == 0
        said = capsys.readouterr()
        assert json.loads(said.out)["budget_bytes"] == 512 << 20
        assert "budget: 512MiB, a quarter of the free memory" in said.err and "spec: llama, by the checkpoint's metadata" in said.err
        assert main(("generate", *words, "--greedy", "--max-new", "2")) == 0
        assert capsys.readouterr().out.strip() == "Paris."
    with patch.object(choose, "available_bytes", lambda: None):
        assert main(("generate", *words)) == 2
        assert "give --budget SIZE" in capsys.readouterr().err


def test_without_weights_nothing_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("run", "--budget", "1MiB", "--device", "cpu")) == 2
    assert "run needs --weights" in capsys.readouterr().err
    assert main(("run", "--weights", "random:1", "--budget", "1MiB", "--device", "cpu")) == 2
    assert "fit any spec: name one" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "generate", "chat"])
def test_a_refusal_says_nothing_beside_of_what_was_chosen(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--weights", str(smollm2_path()), "--prompt", "a", "--machine", "cpu", "--device", "cpu", "--set", "colour=3")
    with patch.object(choose, "available_bytes", lambda: 2 << 30):
        assert main((command, *(word for word in words if command != "chat" or word not in ("--prompt", "a")))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("einpage: --set colour: no size")


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, True), ({"libraries": Libraries(compiled=FasterFrom(0))}, False), ({"measured": Measurement(0.1, 0.2, 2)}, False)],
)
def test_a_profile_that_names_no_libraries_is_said_to_be_slower(changes: dict[str, Any], told: bool) -> None:
    """Unless it was measured: torch may be the fastest there is."""
    machine = replace(load_machine("cpu"), **changes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        einpage.open(SPECS / "llama.yaml", "random:3", set=SIZES, budget="128KiB", machine=machine, device="cpu").close()
    assert [str(one.message).partition(":")[0] for one in said] == told * [
        "the profile cpu names no libraries, so all products are torch.mm's"
    ]
    assert all("\n" not in str(one.message) for one in said)
