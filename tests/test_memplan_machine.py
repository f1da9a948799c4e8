"""Machine profiles: those that ship are sane, overrides hold, and a bad profile is refused with its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.libraries import MOST_FEW_ROWS, MOST_MANY_ROWS, MOST_UNPACKED_ROWS, ONLY_TORCH, FasterFrom, Libraries
from einpage.einsum_front.graph.taskgraph import TaskGraph
from einpage.memplan.machine.kernel_times import KernelTimes
from einpage.memplan.machine.machine import Machine, all_task_seconds, all_task_sharing, task_seconds, task_sharing
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import PROFILES, load_machine, machine_from_text, machine_names, machine_text
from kernel_time_figures import kernel_times
from strategies import machines, task_graphs

GOOD = (PROFILES / "h100.yaml").read_text(encoding="utf-8")


def test_the_profiles_that_ship() -> None:
    assert set(machine_names()) >= {"p100", "v100", "a100", "a100-80", "h100", "h200", "cpu"}
    for name in machine_names():
        machine = load_machine(name)
        assert machine.name == name
        assert machine.host_bytes == 512 * 2**30
        assert len(machine.about) > 100, f"{name} does not say where its figures come from"
        assert (machine.threads is not None) == (name == "cpu")


def test_facts_of_the_profiles() -> None:
    assert load_machine("p100").flops_of(DType.FP16) == 16e12
    assert load_machine("v100").link(Queue.H2D).bytes_per_s == 12e9
    assert load_machine("a100").flops_of(DType.BF16) == 250e12
    assert load_machine("a100-80").device_bytes > 79 * 2**30
    assert load_machine("h100").link(Queue.D2H).bytes_per_s == 55e9
    for name, least in (("p100", 15), ("v100", 15), ("a100", 38), ("h100", 38)):
        assert load_machine(name).device_bytes >= least * 2**30


def test_roofline() -> None:
    machine = load_machine("h100")
    assert machine.compute_seconds(790 * 10**12, 1, DType.BF16) == 1.0
    assert machine.compute_seconds(1, 3 * 10**12, DType.BF16) == 1.0
    assert machine.link(Queue.H2D).seconds(55 * 10**9) == pytest.approx(1.0 + 10e-6)


@given(machines(), task_graphs(), st.booleans(), st.none() | kernel_times())
def test_the_times_of_all_tasks_are_those_of_each(machine: Machine, graph: TaskGraph, told: bool, times: KernelTimes | None) -> None:
    """Where some bring a time of their own, too, and where jobs are shared."""
    machine = replace(machine, kernel_times=times)
    graph = replace(graph, tasks=(*graph.tasks, *(replace(task, flops=2 * task.flops) for task in graph.tasks)))
    if told:
        graph = replace(graph, tasks=tuple(replace(task, seconds=0.5) if task.id % 2 else task for task in graph.tasks))
    assert all_task_seconds(machine, graph) == [task_seconds(machine, graph, task) for task in graph.tasks]
    assert all_task_sharing(machine, graph) == [task_sharing(machine, task) for task in graph.tasks]


def test_overrides() -> None:
    machine = load_machine("a100", h2d="50GB/s", d2h=1e9, device_bytes="10GiB", host_bytes=2**33, threads=3)
    assert (machine.link(Queue.H2D).bytes_per_s, machine.link(Queue.D2H).bytes_per_s) == (50e9, 1e9)
    assert (machine.device_bytes, machine.host_bytes, machine.threads) == (10 * 2**30, 2**33, 3)
    with pytest.raises(UsageError, match="--h2d"):
        load_machine("a100", h2d=0)
    with pytest.raises(UsageError, match="--threads"):
        load_machine("a100", threads=0)


def test_a_profile_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace("name: h100", "name: mine"), encoding="utf-8")
    assert load_machine(path).name == "mine"
    assert load_machine(str(path)) == load_machine(path)


@pytest.mark.parametrize(("name", "told"), [("h10", "did you mean h100"), ("A100", "did you mean a100"), ("tpu", "there are a100, ")])
def test_unknown_name(name: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        load_machine(name)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        load_machine(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"name: \xff")
    with pytest.raises(UsageError, match="cannot read"):
        load_machine(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("h2d_bytes_per_s: 55e9", "h2d_bytes_per_s: -55e9", "h2d_bytes_per_s"),
        ("h2d_bytes_per_s: 55e9", "h2d_bytes_per_s: 0", "h2d_bytes_per_s"),
        ("h2d_bytes_per_s: 55e9", "h2d_bytes_per_s: .nan", "h2d_bytes_per_s"),
        ("h2d_bytes_per_s: 55e9", "h2d_bytes_per_s: .inf", "h2d_bytes_per_s"),
        ("h2d_bytes_per_s: 55e9", "h2d_bytes_per_s: [1]", "h2d_bytes_per_s"),
        ("h2d_bytes_per_s: 55e9\n", "", "missing h2d_bytes_per_s"),
        ("h2d_bytes_per_s: 55e9", "h2d_byte_per_s: 55e9", "did you mean 'h2d_bytes_per_s'"),
        ("copy_latency_s: 10e-6", "copy_latency_s: -1", "copy_latency_s"),
        ("copy_latency_s: 10e-6", "copy_latency_s: soon", "copy_latency_s"),
        ("launch_latency_s: 8e-6", "launch_latency_s: .nan", "launch_latency_s"),
        ("device_bytes: 81090MiB", "device_bytes: 0", "device_bytes"),
        ("device_bytes: 81090MiB", "device_bytes: 80 giraffes", "device_bytes"),
        ("bf16: 790e12", "bf17: 790e12", "flops_per_s"),
        ("bf16: 790e12", "bf16: 0", "flops_per_s bf16"),
        ("bf16: 790e12", "bf16: fast", "flops_per_s bf16"),
        ("name: h100", "name: h100\nthreads: 0", "threads"),
        ("name: h100", "name: h100\nthreads: many", "threads"),
        ("name: h100", "name: [", "not YAML"),
        ("name: h100", "name: !!python/object:os.system {}", r"bad\.yaml:\d+: the tag `!!python/object:os.system` is not allowed"),
        ("name: h100", "name: &a h100", r"bad\.yaml:\d+: anchors"),
        ("name: h100", "name: h100\nlinks: &a [*a]", "anchors"),
        ("name: h100", "name: h100\nname: v100", "`name` is given twice"),
        ("name: h100", "name: {a: b}", "name is a mapping of 1"),
        (
            "name: h100",
            "name: h100\nthreads: 999999999",
            r"bad\.yaml:\d+: threads is '999999999'; it must be a whole number from 1 to 1024",
        ),
        ("name: h100", "name: h100\nthreads: true", "threads"),
        ("name: h100", "name: h100\nonednn: {no_row: 1}", r"bad\.yaml:\d+: onednn is a mapping of 1; it must be .* one_row, few_rows"),
        ("name: h100", "name: h100\nonednn: 1", "onednn is '1'; it must be a mapping"),
        ("name: h100", "name: h100\nonednn: {one_row: -1}", "onednn one_row is '-1'; it must be a whole number"),
        ("name: h100", "name: h100\nonednn: {few_rows: 1.5}", "onednn few_rows"),
        ("name: h100", "name: h100\nonednn: {few_rows: ~}", "onednn few_rows"),
        ("name: h100", "name: h100\ncompiled: {one_row: -1}", "compiled one_row is '-1'; it must be a whole number"),
        ("name: h100", "name: h100\ncompiled: {no_rows: 1}", "compiled is a mapping of 1; it must be .* one_row, few_rows, more_rows"),
        ("name: h100", "name: h100\nthreads: 2.0", "threads"),
        ("name: h100", f"name: h100\nlinks: {'[' * 2000}", "nested too deeply"),
        ("name: h100", f"name: h100\nlinks: [{'1, ' * 100}]", "100 entries; 64 are possible"),
        ("name: h100", f"name: h100\nabout: {'x' * 20_000}", "a line of 20,0"),
        ("name: h100", "name: h100\n" + "# very long\n" * 100_000, "a machine profile of 1,2"),
        ("name: h100", "name: h100\n---\nname: h100", "second YAML document"),
        ("copy_latency_s: 10e-6", f"copy_latency_s: {'9' * 400}", "copy_latency_s is '9999.*400 characters"),
        ("copy_latency_s: 10e-6", f"copy_latency_s: {'9' * 5000}", "copy_latency_s"),
        ("copy_latency_s: 10e-6", "copy_latency_s: 1e300", "from 0 to 3600"),
        ("copy_latency_s: 10e-6", "copy_latency_s: true", "copy_latency_s"),
        ("copy_latency_s: 10e-6", "copy_latency_s: 2020-01-01", "copy_latency_s is '2020-01-01'"),
        ("device_bytes: 81090MiB", "device_bytes: 2020-01-01", "device_bytes '2020-01-01' is not an amount"),
        ("device_bytes: 81090MiB", f"device_bytes: {'9' * 60}", "more bytes than any machine has"),
        ("device_bytes: 81090MiB", f"device_bytes: {'9' * 600}", "more bytes than any machine has"),
        ("device_bytes: 81090MiB", "device_bytes: yes", "device_bytes"),
        ("device_bytes: 81090MiB", "device_bytes: true", "device_bytes"),
        ("device_bytes: 81090MiB", "device_bytes: ~", "device_bytes"),
        ("h2d_bytes_per_s: 55e9", "h2d_bytes_per_s: 1e-300", "slower than any link"),
        ("bf16: 790e12", "bf16: 1e-300", "flops_per_s bf16"),
        ("bf16: 790e12", "bf16: 1e400", "flops_per_s bf16"),
        ("bf16: 790e12", "bf16: 790e12, bf16: 1", "given twice"),
        (GOOD, "- h100", "mapping"),
        (GOOD, "", "mapping"),
    ],
)
def test_a_bad_profile_is_refused(old: str, new: str, told: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError, match=told) as caught:
        machine_from_text(GOOD.replace(old, new), "bad.yaml")
    assert str(caught.value).startswith("bad.yaml") and "\n" not in str(caught.value) and len(str(caught.value)) < 500


@given(machines())
def test_written_and_read_back(machine: Machine) -> None:
    chosen = (
        Libraries(FasterFrom(many_rows=0)),
        Libraries(FasterFrom(1, 2, 2**62, 3, 4), FasterFrom(5, 0, 7), FasterFrom(6, 0)),
        Libraries(by_columns=FasterFrom(few_rows=0)),
    )
    for written in (machine, *(replace(machine, libraries=libraries) for libraries in chosen)):
        assert machine_from_text(machine_text(written), "round trip") == written


def test_a_profile_without_figures_of_libraries_leaves_every_product_to_torch() -> None:
    machine = machine_from_text(GOOD, "old")
    assert machine.libraries == ONLY_TORCH and not any(machine.libraries.onednn.is_faster(rows, 2**40) for rows in (1, 8, 10**6))
    assert "onednn" not in machine_text(machine) and "compiled" not in machine_text(machine)


def test_the_shape_class_of_a_product_is_its_number_of_rows() -> None:
    library = FasterFrom(one_row=300, few_rows=200, more_rows=150, many_rows=100, most_rows=50)
    found = {1: 300, 2: 200, MOST_FEW_ROWS: 200, MOST_FEW_ROWS + 1: 150, MOST_UNPACKED_ROWS: 150, MOST_UNPACKED_ROWS + 1: 100}
    found |= {MOST_MANY_ROWS: 100, MOST_MANY_ROWS + 1: 50, 10**6: 50}
    for rows, least in found.items():
        assert library.is_faster(rows, least) and not library.is_faster(rows, least - 1), rows


def test_a_date_is_text_where_text_is_wanted() -> None:
    text = GOOD[: GOOD.index("about:")] + "about: 2020-01-01\n"
    assert machine_from_text(text, "dated").about == "2020-01-01"


def test_a_name_that_no_file_can_have_is_refused() -> None:
    for name in ("n" * 300 + ".yaml", "a\0b.yaml"):
        with pytest.raises(UsageError, match="does not exist"):
            load_machine(name)
