"""Which is read where a checkpoint has several: sources of a weight, files of a folder."""

from __future__ import annotations

from pathlib import Path

from safetensors.numpy import save_file

from einpage.checkpoints.match.resolve import open_weights, resolve
from einpage.einsum_front.graph.program import Source
from test_checkpoints_resolve import array, program, weight


def test_of_two_sources_that_are_there_the_first_is_read(tmp_path: Path) -> None:
    save_file({"old": array(4, seed=1), "new": array(4, seed=2)}, tmp_path / "m.safetensors")
    w = weight("w", (4,), Source("new", ((0,),)), Source("old", ((0,),)))
    found = resolve(program(w, ignore=("old", "new")), open_weights(str(tmp_path / "m.safetensors")))
    assert found.source_by_weight["w"].name == "new"


def test_a_folder_is_its_safetensors_whatever_else_is_there(tmp_path: Path) -> None:
    save_file({"w": array(4)}, tmp_path / "model.safetensors")
    (tmp_path / "model.Q4_1.gguf").write_bytes(b"GGUF")
    assert dict(open_weights(str(tmp_path)).tensors) == {"w": (4,)}
