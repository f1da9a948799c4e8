"""A spec is named by a file, or by the name of one that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from einpage.einsum_front.base.errors import UsageError
from einpage.exec.cli import main
from einpage.exec.system.find_spec import SHIPPED, spec_names, spec_path

ROOT = Path(__file__).resolve().parent.parent


def test_all_that_ship_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = {path.stem: path for path in (ROOT / "specs").glob("*.yaml")}
    assert len(files) >= 5 and {name: spec_path(name).resolve() for name in spec_names()} == files


def test_a_file_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    assert spec_path("gpt2") == SHIPPED / "gpt2.yaml"
    (tmp_path / "llama").write_text("mine")
    assert spec_path("llama") == Path("llama")
    assert spec_path("other.yaml") == Path("other.yaml")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lama", r"no file 'lama'.*did you mean `llama`\? \(shipped: attention, bert, gemma3, gpt2, llama"),
        ("zzzz", r"no file 'zzzz', and no spec of that name ships \(shipped: attention"),
        ("specs/llama.yaml", r"cannot read the spec specs/llama.yaml: there is no such file; the spec that ships is called `llama`"),
    ],
)
def test_a_name_of_nothing(spec: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=says):
        spec_path(spec)


def test_commands_take_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["show", "mlp"]) == 0
    by_name = capsys.readouterr().out
    assert main(["show", str(ROOT / "specs/mlp.yaml")]) == 0
    assert capsys.readouterr().out == by_name
    assert main(["plan", "mlp", "--budget", "1MiB", "--out", "plan.json"]) == 0
    assert main(["verify", "plan.json", "--spec", "mlp"]) == 0
    assert '"spec":"mlp.yaml"' in (tmp_path / "plan.json").read_text().replace(" ", "")
    capsys.readouterr()
    assert main(["show", "mlpp"]) == 2
    assert "did you mean `mlp`?" in capsys.readouterr().err
