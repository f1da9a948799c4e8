"""How a model is run: which device, with which kernels, which dispatcher: options of the command line made into objects.

--device auto    CUDA from sm_80 on with a working Triton, else the CPU, and why
--kernels auto   Triton on CUDA, torch on the CPU
--fp32-products  how CUDA's kernels multiply factors of fp32: tf32x3, on tensor cores, or ieee, exactly; the CPU does the latter
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum

from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import UsageError
from einpage.exec.device.arena import HostArena
from einpage.exec.device.cpu import CpuDevice, CpuMemory
from einpage.exec.device.cuda import CudaDriver, why_not_cuda
from einpage.exec.device.driver import Driver
from einpage.exec.device.stream_memory import KeptMemory, StreamMemory
from einpage.exec.device.streams import StreamDevice
from einpage.exec.dispatch.dynamic import DynamicDispatcher
from einpage.exec.dispatch.engine import Dispatcher
from einpage.exec.dispatch.serial import SerialDispatcher, StreamSerialDispatcher
from einpage.exec.dispatch.static import StaticDispatcher
from einpage.exec.dispatch.stream_dynamic import StreamDynamicDispatcher
from einpage.exec.dispatch.stream_static import StreamStaticDispatcher
from einpage.exec.load.kept_tiles import kept_tiles
from einpage.exec.load.packed_tiles import OpenDisk
from einpage.exec.measure.cpu import measured_cpu
from einpage.exec.measure.cuda import measured_cuda
from einpage.exec.measure.profiles import Say, with_disk
from einpage.exec.planning.judged_plan import MachineSource
from einpage.exec.planning.request import PlanRequest
from einpage.exec.system.process_memory import available_bytes
from einpage.kernels.tiles.fp32_products import Fp32Products
from einpage.kernels.tiles.target import AS_IT_IS, Choices
from einpage.memplan.graph.memgraph import MemGraph
from einpage.memplan.machine.machine import Machine


class DeviceKind(Enum):
    CPU = "cpu"
    CUDA = "cuda"


class Dispatch(Enum):
    SERIAL = "serial"
    DYNAMIC = "dynamic"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class ChosenDevice:
    kind: DeviceKind
    why: str
    """For people: `cuda: NVIDIA H100, as asked`."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    plan: PlanRequest
    """`warm` and `free_order` are of no use to a run; with `passes`, the plan is run so many times."""
    perplexity: bool = False
    """Adds the output that has logits for every position, and the text's perplexity."""
    dispatch: Dispatch = Dispatch.DYNAMIC
    device: DeviceKind = DeviceKind.CPU
    kernels: str = "torch"
    """torch | triton; CUDA runs triton alone, the CPU runs that only under Triton's interpreter."""
    poison: bool = False
    """Overwrite memory whose contents have ended, to show any read of it."""
    find_nan: bool = False
    """Look at every result as it is made: one node after the other, whatever `dispatch` says."""
    choices: Choices = AS_IT_IS
    """What compiled Triton kernels are written by."""
    tiles_refused: str | None = None
    """What is wrong with a file of measured tiles that is there, and not used."""
    dispatch_is_open: bool = False
    """Nobody asked for `dispatch`: what is run again and again may be run by whichever is the fastest. Bits are the same."""


def device_for(option: str) -> ChosenDevice:
    """What `--device` asks for. Raises UsageError where a plan cannot run there."""
    if option == "cpu":
        return ChosenDevice(DeviceKind.CPU, "cpu, as asked")
    missing = why_not_cuda()
    if missing is None:
        return ChosenDevice(DeviceKind.CUDA, "cuda, as asked" if option == "cuda" else "cuda: there is a GPU that Triton's kernels run on")
    if option == "cuda":
        raise UsageError(f"--device cuda: {missing}; leave --device out or say cpu")
    return ChosenDevice(DeviceKind.CPU, f"cpu: {missing}")


def kernels_for(option: str, kind: DeviceKind) -> str:
    """The backend that `--kernels` names. Raises UsageError for one that the device does not run."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if kind is DeviceKind.CUDA:
        if option == "torch":
            raise UsageError(
                "--kernels torch: torch's kernels take device memory outside the arena; a GPU runs the generated Triton kernels"
            )
        if interpreted:
            raise UsageError("--device cuda with TRITON_INTERPRET=1: interpreted kernels run on the CPU; unset it, or say --device cpu")
        return "triton"
    if option == "triton" and not interpreted:
        raise UsageError("--kernels triton: compiled Triton kernels need a GPU; on the CPU they run only with TRITON_INTERPRET=1 set")
    return "torch" if option == "auto" else option


def choices_for(option: str | None, kind: DeviceKind, dtype: DType) -> tuple[Choices, str | None]:
    """What `--fp32-products` asks for, with the tiles that were measured on the GPU at hand; and what is wrong with these, if anything.
    Raises UsageError where nothing would be multiplied so."""
    if kind is DeviceKind.CPU:
        if option is not None:
            raise UsageError(f"--fp32-products {option}: a choice of the GPU's kernels; the CPU multiplies fp32 exactly: leave it out")
        return AS_IT_IS, None
    if option is not None and dtype is not DType.FP32:
        raise UsageError(f"--fp32-products {option} with --dtype {dtype.value}: no factors are of fp32; leave one of them out")
    tiles, refused = kept_tiles(CudaDriver().name)
    return Choices(Fp32Products(option or AS_IT_IS.fp32_products.value), tiles), refused


def measured_machine(kind: DeviceKind, threads: int | None = None, again: bool = False, say: Say | None = None) -> Machine:
    """The measured profile of this machine's device."""
    if kind is DeviceKind.CUDA:
        return measured_cuda(again=again, say=say)
    return measured_cpu(threads=threads, again=again, say=say)


def machine_source(kind: DeviceKind, named: Machine | None, has_disk: bool) -> MachineSource:
    """Gives the machine `named`, or the measured one; `has_disk`: with a disk, measured where its profile has none."""

    def machine() -> Machine:
        found = measured_machine(kind) if named is None else named
        return with_disk(found) if has_disk else found

    return machine


def make_driver() -> Driver:
    """CUDA's."""
    return CudaDriver()


def kept_memory(kind: DeviceKind) -> KeptMemory:
    """One host arena for runs on such a device that come one after the other."""
    return KeptMemory(make_driver() if kind is DeviceKind.CUDA else None)


def make_memory(
    kind: DeviceKind, host: HostArena, nbytes: int, driver: Driver | None = None, disk: OpenDisk | None = None
) -> CpuMemory | StreamMemory:
    """The host's arena, and one of `nbytes` on a device; `driver` instead of CUDA's own, for tests; `disk` is that of plans with one."""
    if kind is DeviceKind.CUDA:
        assert disk is None, "refused before anything is planned"
        return StreamMemory(host, driver or make_driver(), nbytes)
    return CpuMemory(host, nbytes, disk)


def refuse_host_budget(kind: DeviceKind, host_budget_bytes: int | None, find_nan: bool = False) -> None:
    """Raises UsageError for a host budget where no plan with one runs."""
    if host_budget_bytes is None:
        return
    if kind is DeviceKind.CUDA:
        raise UsageError("--host-budget with --device cuda: streams have no disk yet; leave it out, or say --device cpu")
    if find_nan:
        raise UsageError("--find-nan with --host-budget: it looks at weights on the host, which has not all of them; leave one of them out")


def make_device(
    memgraph: MemGraph,
    memory: CpuMemory | StreamMemory,
    machine: Machine,
    backend: str,
    *,
    poison: bool = False,
    choices: Choices = AS_IT_IS,
) -> CpuDevice | StreamDevice:
    """A device that runs `memgraph` in `memory`."""
    if isinstance(memory, StreamMemory):
        return StreamDevice(memgraph, memory, backend=backend, poison=poison, choices=choices)
    return CpuDevice(memgraph, memory, backend=backend, threads=machine.threads, libraries=machine.libraries, poison=poison)


def default_budget(kind: DeviceKind) -> tuple[int, str]:
    """Bytes of an arena where nobody says, and what they are of: on a GPU what is free less 5 %, on the CPU a quarter of the free memory.

    Raises UsageError where that cannot be known.
    """
    if kind is DeviceKind.CUDA:
        return int(CudaDriver().free_bytes() * 0.95), "what the GPU has free, less 5 %"
    free = available_bytes()
    if free is None:
        raise UsageError("how much memory is free is not known here; give --budget SIZE, the device arena, as 64MiB")
    return free // 4, "a quarter of the free memory"


def dispatch_of(option: str | None, find_nan: bool) -> Dispatch:
    """The dispatcher that is asked for. Raises UsageError where NaN is looked for, by one that runs several nodes at once."""
    if not find_nan:
        return Dispatch(option or Dispatch.DYNAMIC.value)
    if option not in (None, Dispatch.SERIAL.value):
        raise UsageError(
            f"--find-nan runs one node after the other, which --dispatch {option} does not; leave --dispatch out, or say serial"
        )
    return Dispatch.SERIAL


def dispatcher_type(kind: DeviceKind, dispatch: Dispatch) -> type[Dispatcher]:
    """The dispatcher of that name for a device of that kind."""
    on_streams = kind is DeviceKind.CUDA
    match dispatch:
        case Dispatch.SERIAL:
            return StreamSerialDispatcher if on_streams else SerialDispatcher
        case Dispatch.DYNAMIC:
            return StreamDynamicDispatcher if on_streams else DynamicDispatcher
        case Dispatch.STATIC:
            return StreamStaticDispatcher if on_streams else StaticDispatcher
