"""A model held open: one arena on the device for all its plans; what a plan leaves there is not loaded again, and nothing else is."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Mapping
from contextlib import closing
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.graph.taskgraph import Kind, Tensor
from einpage.exec.device.arena import HostArena, used_extents
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.device.streams import StreamMemory
from einpage.exec.dispatch import threads as engine_threads
from einpage.exec.dispatch.engine import Measured
from einpage.exec.dispatch.progress import SILENT, Hooks, Progress
from einpage.exec.errors import EngineBusy, NodeError
from einpage.exec.load.packed_tiles import OpenDisk
from einpage.exec.planning import plan_set, text_lengths
from einpage.exec.planning.plan_set import PlannedPhase
from einpage.exec.planning.request import PlanRequest
from einpage.exec.run import choose
from einpage.exec.run.choose import DeviceKind, RunOptions
from einpage.exec.run.generation import Conversation, Generation
from einpage.exec.run.loaded_model import KEPT, LoadedModel, ReadyPhase
from einpage.memplan import plan as memplan_plan
from einpage.memplan.graph.memgraph import NodeId
from einpage.memplan.graph.simulate import all_moved_bytes, simulate
from einpage.memplan.machine.places import Queue
from fake_driver import FakeDriver
from hand_plan import hand_plan
from test_exec_generate import GREEDY, RAGGED, Opened, expected, generated, opened


def words() -> list[list[int]]:
    return [list(expected(prompt, 8)) for prompt in RAGGED]


@pytest.fixture
def opening() -> Opened:
    with patch.object(text_lengths, "LEAST_POSITIONS", 3):
        return opened(RAGGED, 8)


def passed(phase: ReadyPhase) -> None:
    """One pass over tokens that mean nothing."""
    names = {i.name: i for i in phase._own_inputs.inputs}
    arrays: Mapping[str, NDArray[Any]] = {
        "tokens": np.zeros((len(RAGGED), phase.phase.bucket.tokens), np.int64),
        "lengths": np.ones(len(RAGGED), np.int64),
        "at": np.full(len(RAGGED), phase.phase.bucket.past, np.int64),
    }
    phase.run({name: array for name, array in arrays.items() if name in names}, SILENT)


def weight_bytes(phase: PlannedPhase) -> int:
    return sum(t.nbytes for t in residents(phase) if t.kind is Kind.WEIGHT)


def state_bytes(phase: PlannedPhase) -> int:
    return sum(t.nbytes for t in residents(phase) if t.kind is not Kind.WEIGHT)


def residents(phase: PlannedPhase) -> list[Tensor]:
    memgraph = phase.planned.memgraph
    return [memgraph.graph.tensors[t] for t in memgraph.resident]


def test_every_text_has_the_arena_of_the_first(opening: Opened) -> None:
    made: list[int] = []
    init = CpuMemory.__init__

    def counted(self: CpuMemory, host: HostArena, nbytes: int, disk: OpenDisk | None = None) -> None:
        made.append(nbytes)
        init(self, host, nbytes, disk)

    with patch.object(CpuMemory, "__init__", counted):
        for _ in range(3):
            assert generated(opening) == words()
    assert made == [1 << 20]
    opening.generation.close()
    with patch.object(CpuMemory, "__init__", counted):
        assert generated(opening) == words()
    assert made == [1 << 20] * 2


def test_a_phase_that_runs_again_finds_what_it_left(opening: Opened) -> None:
    held, plans = opening.generation.loaded, opening.plans
    bucket = plans.buckets[0]
    assert weight_bytes(bucket) > 0
    phase = held.ready(bucket, plans.machine)
    phase.put_states(None)
    assert phase.preload() == weight_bytes(bucket)
    passed(phase)
    assert phase.preload() == 0
    assert phase.preload() == weight_bytes(bucket), "nobody knows what is there before a pass has ended"
    passed(phase)
    assert held.ready(bucket, plans.machine) is phase and phase.preload() == 0


def test_what_another_phase_overwrote_is_loaded() -> None:
    with patch.object(plan_set, "LATER_FIRST_TOKEN", 0.0):
        opening = opened(RAGGED, 8)
    held, plans = opening.generation.loaded, opening.plans
    assert not plans.first.planned.memgraph.loops, "prompts have the device for themselves"
    loop, first = (held.ready(p, plans.machine) for p in (plans.buckets[0], plans.first))
    for phase in (loop, first):
        phase.put_states(None)
    loop.preload()
    passed(loop)
    first.preload()
    passed(first)
    assert loop.preload() == weight_bytes(plans.buckets[0])


@pytest.mark.parametrize("budget", [*(pytest.param(n << 10, marks=pytest.mark.slow) for n in (64, 96)), 1 << 20])
def test_no_weight_that_stays_is_loaded_twice(budget: int) -> None:
    """From the first prompt on: it loads what stays while it is read; tokens after it, and later prompts, find it."""
    with patch.object(text_lengths, "LEAST_POSITIONS", 3):
        opening = opened(RAGGED, 8, budget)
    plans = opening.plans
    assert plans.first.first is not None
    ran: list[tuple[PlannedPhase, int, int]] = []
    preload, run = ReadyPhase.preload, ReadyPhase.run
    loaded = 0

    def preloaded(ready: ReadyPhase) -> int:
        nonlocal loaded
        loaded = preload(ready)
        return loaded

    def counted(ready: ReadyPhase, arrays: Mapping[str, NDArray[Any]], hooks: Hooks) -> tuple[torch.Tensor, Measured]:
        found = run(ready, arrays, hooks)
        ran.append((ready.phase, loaded, sum(found[1].moved_bytes.values())))
        return found

    with patch.object(ReadyPhase, "preload", preloaded), patch.object(ReadyPhase, "run", counted):
        for text in range(3):
            ran.clear()
            assert generated(opening) == words()
            missing = weight_bytes(plans.first) - weight_bytes(plans.buckets[-1]) * (
                text > 0
            )  # what left for the states of the last bucket
            first = plans.first.beginning(missing)
            assert ran[0][0] is first
            assert ran[0][1] == (missing if first is plans.first else 0)
            assert ran[0][2] == all_moved_bytes(first.planned.memgraph)
            assert ran[1][0] is plans.buckets[0] and ran[1][1] == state_bytes(plans.buckets[0]), "rows of states alone"


def test_a_prompt_is_read_by_the_faster_of_both_plans(opening: Opened) -> None:
    """The one that loads all that stays, or the one that finds it, after what is missing has been loaded."""
    loop = opening.plans.first
    assert loop.first is not None and loop.seconds < loop.first.seconds
    rate = loop.planned.machine.usual_link(Queue.H2D).bytes_per_s
    enough = int((loop.first.seconds - loop.seconds) * rate)
    assert loop.beginning(0) is loop.beginning(enough - 1) is loop
    assert loop.beginning(enough + 1) is loop.beginning(weight_bytes(loop) * 100) is loop.first
    assert opening.plans.buckets[0].beginning(1 << 40) is opening.plans.buckets[0]


def test_a_first_token_is_hardly_later_for_what_stays(opening: Opened) -> None:
    with patch.object(text_lengths, "LEAST_POSITIONS", 3), patch.object(plan_set, "LATER_FIRST_TOKEN", 0.0):
        alone = opened(RAGGED, 8).plans.first
    found = opening.plans.first
    assert found.first is not None and alone.first is None
    assert found.first.seconds <= plan_set.LATER_FIRST_TOKEN * alone.seconds
    assert found.seconds < alone.seconds


@pytest.mark.parametrize(
    ("kib", "later", "joins", "is_beside"),
    [
        pytest.param(64, 1.1, True, True, id="a first token 3 % later"),
        pytest.param(64, 1.0, True, False, id="no later allowed"),
        pytest.param(48, 10.0, False, False, id="slower than alone and loading what stays"),
    ],
)
def test_prompts_are_read_beside_what_stays_where_that_pays(
    kib: int, later: float, joins: bool, is_beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without joined loads there is a budget at which it does not."""
    if not joins:
        monkeypatch.setattr(memplan_plan, "with_joined_loads", lambda memgraph, machine: (memgraph, simulate(memgraph, machine).makespan_s))
    with patch.object(text_lengths, "LEAST_POSITIONS", 3), patch.object(plan_set, "LATER_FIRST_TOKEN", later):
        found = opened(RAGGED, 8, kib << 10).plans.first
    assert (found.first is not None) == found.planned.memgraph.loops == is_beside


def test_after_a_pass_that_failed_all_is_loaded(opening: Opened) -> None:
    held, plans = opening.generation.loaded, opening.plans
    phase = held.ready(plans.buckets[0], plans.machine)
    phase.put_states(None)
    phase.preload()
    passed(phase)

    def broken(node: NodeId) -> None:
        raise ValueError("the kernel broke")

    with patch.object(phase._device, "compute", broken), pytest.raises(NodeError):
        passed(phase)
    assert phase.preload() == weight_bytes(plans.buckets[0])


def test_the_last_phases_stay_ready(opening: Opened) -> None:
    held, plans = opening.generation.loaded, opening.plans
    first = held.ready(plans.first, plans.machine)
    buckets = [held.ready(bucket, plans.machine) for bucket in plans.buckets[:KEPT]]
    assert held.ready(plans.buckets[KEPT - 1], plans.machine) is buckets[-1]
    assert held.ready(plans.first, plans.machine) is not first, f"more than {KEPT} were asked for since"


def test_a_larger_arena_on_the_host_ends_what_was_begun(opening: Opened) -> None:
    """Phases have views of the one before."""
    tokens = opening.generation.tokens(RAGGED, 8, GREEDY)
    next(tokens)
    held = opening.generation.loaded
    held.grow_to(held.host.nbytes + 4096)
    with pytest.raises(UsageError, match="begin anew"):
        next(tokens)
    assert generated(opening) == words()


def test_host_memory_is_registered_once_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On streams, for two texts of several phases each; staging buffers of a phase go with it."""
    driver = FakeDriver()
    monkeypatch.setattr(choose, "CudaDriver", lambda: driver)
    with patch.object(text_lengths, "LEAST_POSITIONS", 3):
        found = opened(RAGGED, 8)
    options = RunOptions(PlanRequest(1 << 20), device=DeviceKind.CUDA, kernels="torch", poison=True)
    generation = Generation(found.plans, options, LoadedModel(options))
    whole: set[int] = set()
    for _ in range(2):
        assert generated(Opened(generation, RAGGED, 8)) == words()
        whole |= {at for at, nbytes in driver.pinned.items() if nbytes == generation.loaded.host.nbytes}
    assert len(whole) == 1
    generation.close()
    assert driver.pinned == {}


def test_memory_that_nobody_closed_is_given_back_with_the_last_reference() -> None:
    driver = FakeDriver()
    memory = StreamMemory(HostArena(8192), driver, 4096)
    assert list(driver.pinned.values()) == [8192]
    del memory
    gc.collect()
    assert driver.pinned == {}


def test_pages_are_backed_once_and_what_is_there_stays() -> None:
    plan = hand_plan()
    memory = CpuMemory(HostArena(plan.host_bytes), plan.budget_bytes)
    memory.back(plan)
    pages = -(-max(extent.end for extent in used_extents(plan)) // mmap.PAGESIZE)
    assert memory._is_backed[:pages].all()
    memory.device._bytes[:] = 7
    memory.back(plan)
    assert (memory.device._bytes == 7).all()


def test_only_what_a_plan_uses_is_backed() -> None:
    plan = hand_plan()
    memory = CpuMemory(HostArena(plan.host_bytes), 1 << 30)
    memory.back(plan)
    assert memory._is_backed.sum() == -(-plan.budget_bytes // mmap.PAGESIZE)


class Held:
    """The first compute that comes by is in its node until it is let go, and its run is interrupted meanwhile."""

    def __init__(self) -> None:
        self.inside, self.let_go = threading.Event(), threading.Event()

    def compute(self, device: CpuDevice, node: NodeId) -> None:
        if not self.inside.is_set():
            self.inside.set()
            assert self.let_go.wait(30)
        COMPUTE(device, node)

    def interrupt(self, progress: Progress) -> None:
        if self.inside.is_set():
            raise KeyboardInterrupt

    def interrupted(self, opening: Opened) -> None:
        with patch.object(CpuDevice, "compute", lambda device, node: self.compute(device, node)), pytest.raises(KeyboardInterrupt):
            list(opening.generation.tokens(RAGGED, 8, GREEDY, Hooks(progress=self.interrupt, interval_s=0.001)))


COMPUTE = CpuDevice.compute


def test_nothing_runs_in_the_memory_of_an_engine_that_did_not_stop(opening: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would write into the next text's arena: that waits for it, and is refused where it takes too long."""
    monkeypatch.setattr(engine_threads, "STOP_S", 0.05)
    held = Held()
    held.interrupted(opening)
    for _ in range(2):
        with pytest.raises(EngineBusy, match="still in the middle of a node"):
            generated(opening)
    monkeypatch.setattr(engine_threads, "STOP_S", 30)
    threading.Timer(0.1, held.let_go.set).start()
    assert generated(opening) == words()


def test_a_pass_may_not_begin_in_it_either(opening: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_threads, "STOP_S", 0.05)
    held, phase = Held(), opening.generation.loaded.ready(opening.plans.first, opening.plans.machine)
    held.interrupted(opening)
    with pytest.raises(EngineBusy):
        passed(phase)
    with pytest.raises(EngineBusy):
        phase.preload()
    held.let_go.set()
    monkeypatch.setattr(engine_threads, "STOP_S", 30)
    phase.preload()
    passed(phase)


def test_a_text_that_is_dropped_leaves_the_next_ones_threads_alone(opening: Opened) -> None:
    """A generator in a cycle is closed by the garbage collector, in the middle of whatever runs then."""
    generation = opening.generation
    texts = [generation.tokens(RAGGED, 8, GREEDY)]
    next(texts[0])
    ran = 0

    def dropping(device: CpuDevice, node: NodeId) -> None:
        nonlocal ran
        ran += 1
        if texts and ran == 7:
            texts.pop().close()
        COMPUTE(device, node)

    with patch.object(CpuDevice, "compute", dropping):
        assert generated(opening) == words()
    assert not texts


def test_what_was_read_is_forgotten_with_a_pass_that_failed(opening: Opened) -> None:
    with closing(Conversation(opening.generation)) as conversation:
        texts = conversation.tokens(RAGGED, 8, GREEDY)
        next(texts)
        with patch.object(ReadyPhase, "run", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            next(texts)
        assert [list(ids) for ids in zip(*conversation.tokens(RAGGED, 8, GREEDY), strict=True)] == words()


def test_threads_take_turns(opening: Opened) -> None:
    """A text that is begun ends the one before, which is told so: what that had said by then was right."""
    right, outcomes = words(), []

    def write() -> None:
        found: list[list[int]] = [[] for _ in RAGGED]
        try:
            for tokens in opening.generation.tokens(RAGGED, 8, GREEDY):
                for row, token in zip(found, tokens, strict=True):
                    row.append(token)
            outcomes.append(found == right)
        except UsageError as error:
            said = "another text was begun" in str(error)
            outcomes.append(said and all(row == whole[: len(row)] for row, whole in zip(found, right, strict=True)))

    threads = [threading.Thread(target=lambda: [write() for _ in range(4)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == [True] * 12
    assert generated(opening) == right
