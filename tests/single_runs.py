"""A plan run once, by each dispatcher."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from einpage.exec.device.device import Device
from einpage.exec.dispatch.dynamic import DynamicDispatcher
from einpage.exec.dispatch.engine import Dispatcher, Measured
from einpage.exec.dispatch.progress import SILENT, Hooks
from einpage.exec.dispatch.serial import SerialDispatcher
from einpage.exec.dispatch.static import StaticDispatcher
from einpage.exec.dispatch.stream_dynamic import StreamDynamicDispatcher
from einpage.exec.dispatch.stream_static import StreamStaticDispatcher
from einpage.memplan.graph.memgraph import MemGraph, NodeId


def run_serial(memgraph: MemGraph, device: Device, hooks: Hooks = SILENT, *, order: Sequence[NodeId] | None = None) -> Measured:
    return _once(SerialDispatcher(memgraph, order), device, hooks)


def run_dynamic(memgraph: MemGraph, device: Device, hooks: Hooks = SILENT) -> Measured:
    return _once(DynamicDispatcher(memgraph), device, hooks)


def run_static(memgraph: MemGraph, device: Device, hooks: Hooks = SILENT) -> Measured:
    return _once(StaticDispatcher(memgraph), device, hooks)


def run_stream_dynamic(memgraph: MemGraph, device: Device, hooks: Hooks = SILENT) -> Measured:
    return _once(StreamDynamicDispatcher(memgraph), device, hooks)


def run_stream_static(memgraph: MemGraph, device: Device, hooks: Hooks = SILENT) -> Measured:
    return _once(StreamStaticDispatcher(memgraph), device, hooks)


def _once(dispatcher: Dispatcher, device: Device, hooks: Hooks) -> Measured:
    with closing(dispatcher):
        return dispatcher.run(device, hooks)
