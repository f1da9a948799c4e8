"""How a disk is measured and told: every way that works, the best of them, and a profile that keeps them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from einpage.checkpoints.disk import rates
from einpage.checkpoints.disk.engines import ENGINES, TransferOptions
from einpage.checkpoints.disk.rates import measured_rates
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.measure import profiles
from einpage.exec.measure.profiles import save, with_disk
from einpage.memplan.machine.disk_reads import ENGINES as PROFILE_ENGINES
from einpage.memplan.machine.disk_reads import DiskReads
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine, machine_text

FILE = 1 << 20


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ways, small transfers."""
    for name, value in (("DEPTHS", (1, 4)), ("BLOCKS", (4096, 65536)), ("PART_BYTES", 1 << 18)):
        monkeypatch.setattr(rates, name, value)


@pytest.mark.usefixtures("small")
def test_every_way_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    found = measured_rates(tmp_path, 1, FILE)
    assert {(c.depth, c.block_bytes) for c, _ in found.read_bytes_per_s} == {(d, b) for d in (1, 4) for b in (4096, 65536)}
    assert {c.engine for c, _ in found.read_bytes_per_s} <= set(ENGINES)
    assert all(rate > 0 for _, rate in found.read_bytes_per_s) and found.write_bytes_per_s > 0
    assert found.read_latency_s > 0 and found.write_latency_s > 0 and found.read_each_s > 0
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("small")
def test_of_ways_as_fast_as_each_other_the_one_with_most_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = TransferOptions("preadv threads", 4, 65536)

    def timed(
        engine: object, file: object, address: int, nbytes: int, part: int, choice: TransferOptions, *_: int, writes: bool = False
    ) -> float:
        return 2.0 if choice == slow else 1.0 + 0.01 / choice.depth

    monkeypatch.setattr(rates, "_timed", timed)
    found = measured_rates(tmp_path, 1, FILE)
    assert (found.best.depth, found.best.block_bytes) == (4, 65536) and found.best != slow
    assert found.read_latency_s > 0, "of a disk that is faster than it was, too"
    assert found.read_bytes_per_s[-1][0] == slow or slow.engine not in {c.engine for c, _ in found.read_bytes_per_s}


def test_engines_have_the_names_that_profiles_have() -> None:
    assert tuple(ENGINES) == PROFILE_ENGINES


WAYS = (DiskReads("io_uring", 8, 1 << 20, 2e9), DiskReads("preadv threads", 4, 512, 1e9))


def test_a_profile_reads_back(tmp_path: Path) -> None:
    machine = replace(load_machine("cpu"), disk=WAYS)
    (tmp_path / "m.yaml").write_text(machine_text(machine), encoding="utf-8")
    assert load_machine(tmp_path / "m.yaml") == machine


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("disk: 3", r"m.yaml:\d+: disk is '3'; it is a list of ways"),
        ("disk: []", "disk is empty"),
        ("disk: [{engine: io_uring}]", "has engine; write it as"),
        ("disk: [{engine: tape, depth: 1, block_bytes: 512, bytes_per_s: 1}]", "is 'tape'; it is one of io_uring, preadv threads"),
        ("disk: [{engine: io_uring, depth: 0, block_bytes: 512, bytes_per_s: 1}]", "depth is '0'; it must be a whole number from 1"),
        ("disk: [{engine: io_uring, depth: 1, block_bytes: 700, bytes_per_s: 1}]", "block_bytes is 700; it must be a multiple of 512"),
        ("disk: [{engine: io_uring, depth: 1, block_bytes: 512, bytes_per_s: 0}]", "bytes_per_s"),
    ],
)
def test_ways_that_say_nothing_are_refused(entry: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(machine_text(load_machine("cpu")) + entry, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        load_machine(tmp_path / "m.yaml")


@pytest.mark.usefixtures("small")
def test_a_machine_without_a_disk_gets_one_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EINPAGE_CACHE", str(tmp_path))
    monkeypatch.setattr(profiles, "measured_rates", lambda folder: measured_rates(folder, 1, FILE))
    machine = replace(load_machine("cpu"), about="kept")
    save(machine, tmp_path / "kept.yaml")
    told: list[str] = []
    found = with_disk(machine, told.append)
    assert found.disk and found.link(Queue.READ).bytes_per_s == found.disk[0].bytes_per_s and found.link(Queue.WRITE).latency_s > 0
    assert load_machine(tmp_path / "kept.yaml") == found and len(told) == 1 and found.link(Queue.READ).each_s > 0
    assert with_disk(found, told.append) is found and len(told) == 1, "measured once"
    assert replace(found, links=machine.links, disk=()) == machine
