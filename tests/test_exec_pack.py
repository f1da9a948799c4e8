"""`einpage pack` as scripts meet it: the report, the written file, exit status 3 where nothing fits, one message for each mistake."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from einpage.exec.cli import main
from einpage.memplan.packing.csv_file import Buffers, packing_text, read_buffers
from einpage.memplan.packing.rectangles import Packing, Rectangle, judge_packing

GOOD = "id,lower,upper,size\na,0,2,3\nb,0,3,1\nc,2,4,2\n"


def written(folder: Path, text: str) -> str:
    (folder / "in.csv").write_text(text, encoding="utf-8")
    return str(folder / "in.csv")


def test_out_reads_back_and_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = written(tmp_path, GOOD), tmp_path / "out.csv"
    assert main(["pack", file, "--capacity", "4", "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader(out.open(encoding="utf-8")))
    assert list(rows[0]) == ["id", "lower", "upper", "size", "offset"]
    assert [int(row["offset"]) for row in rows] == facts["offsets"]
    buffers = read_buffers(out)
    assert buffers == read_buffers(Path(file)) == Buffers(("a", "b", "c"), (Rectangle(0, 2, 3), Rectangle(0, 3, 1), Rectangle(2, 4, 2)))
    packing = Packing(buffers.rectangles, tuple(facts["offsets"]))
    assert judge_packing(packing, 4) is None and packing_text(buffers.names, packing) == out.read_text(encoding="utf-8")
    assert (facts["fits"], facts["height"], facts["lower_bound"], facts["capacity"], facts["buffers"]) == (True, 4, 4, 4, 3)


def test_text_names_height_and_bound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pack", written(tmp_path, GOOD), "--capacity", "1KiB"]) == 0
    out = capsys.readouterr().out
    assert "height       4 (4B), fits" in out and "lower bound  4 " in out and "height ÷ bound 1.0000" in out


def test_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.csv"
    assert main(["pack", written(tmp_path, GOOD), "--capacity", "3", "--out", str(out), "--json"]) == 3
    got = capsys.readouterr()
    facts = json.loads(got.out)
    assert (facts["fits"], facts["height"], facts["lower_bound"]) == (False, 4, 4)
    assert got.err == (
        "einpage: does not fit: no packing within 3 bytes (none exists); best height found: 4 bytes; lower bound: 4 bytes alive at once\n"
    )
    assert not out.exists()


def test_out_of_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(Path(__file__).resolve().parent / "data/minimalloc_A.csv")
    assert main(["pack", file, "--capacity", "1MiB", "--seconds", "1e-9"]) == 3
    got = capsys.readouterr()
    assert "(none was found in time)" in got.err and "does not fit" in got.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "1: the file is empty; expected a header id,lower,upper,size"),
        ("id,lower,size\n", "1: column 'upper' is missing; expected id,lower,upper,size, found id, lower, size"),
        ("id,lower,upper,size,alignment\n", "1: column 'alignment' is not known; the columns are id,lower,upper,size"),
        ("id,lower,upper,size,size\n", "1: column 'size' is given twice"),
        (GOOD + "d,0,1\n", "5: 3 fields, but the header has 4"),
        (GOOD + "d,0,x,1\n", "5: upper 'x' is not a whole number"),
        (GOOD + "d,0,1.5,1\n", "5: upper '1.5' is not a whole number"),
        (GOOD + "d,0,1,\n", "5: size '' is not a whole number"),
        (GOOD + "d,0,1,-4\n", "5: size -4 is negative"),
        (GOOD + "d,3,3,1\n", "5: upper 3 is not above lower 3: a buffer is alive over [lower, upper)"),
        (GOOD + "\nd,4,3,1\n", "6: upper 3 is not above lower 4: a buffer is alive over [lower, upper)"),
        (GOOD + "b,0,1,1\n", "5: id 'b' is given twice, first on line 3"),
        (GOOD + ",0,1,1\n", "5: the id is empty"),
        (GOOD + "d,0,1,9999999999999999\n", "5: size 9999999999999999 is too large; at most 281474976710656"),
        (GOOD + '"d"x,0,1,1\n', "5: not CSV: ',' expected after '\"'"),
    ],
)
def test_mistakes_in_the_file(text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, text)
    assert main(["pack", file, "--capacity", "4"]) == 2
    assert capsys.readouterr() == ("", f"einpage: {file}:{message}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.csv", "--capacity", "4"], "cannot read absent.csv: No such file or directory"),
        (["{}", "--capacity", "0"], "--capacity '0' is not a positive number of bytes"),
        (["{}", "--capacity", "4", "--seconds", "0"], "--seconds 0 is not a positive number of seconds"),
        (["{}", "--capacity", "4", "--seconds", "nan"], "--seconds nan is not a positive number of seconds"),
        (["{}", "--capacity", "4", "--out", "no/such/folder.csv"], "cannot write no/such/folder.csv"),
    ],
)
def test_mistakes_in_the_words(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path, GOOD)
    assert main(["pack", *(word.format(file) for word in words)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"einpage: {message}")


def test_columns_in_any_order(tmp_path: Path) -> None:
    file = written(tmp_path, "﻿size, upper, lower, id\r\n3, 2, -1, a\r\n\r\n")
    assert read_buffers(Path(file)) == Buffers(("a",), (Rectangle(-1, 2, 3),))
