"""`einpage machine`: the shipped profiles, one of them, or this machine's own, measured now."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes
from einpage.exec.measure.profiles import cached, cached_profiles
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Queue
from einpage.memplan.machine.profile import load_machine, machine_names, machine_text
from einpage.memplan.machine.times_text import kernel_times_values


def machine_command(a: argparse.Namespace) -> int:
    """Print what was asked for, and return the exit status. Raises EinpageError for an unknown profile or device, and for what says nothing
    beside the rest."""
    if a.measure and a.name:
        raise UsageError(f"machine {a.name} prints a profile, and --measure measures this machine: leave out one of them")
    if a.device is not None and not a.measure:
        raise UsageError(f"--device {a.device} says what --measure measures: add --measure, or leave it out")
    if a.measure:
        from einpage.exec.run.choose import device_for, measured_machine

        machine = measured_machine(device_for(a.device or "auto").kind, again=True)
    elif a.name:
        machine = load_machine(a.name)
    else:
        shipped = [load_machine(name) for name in machine_names()]
        kept = [(path, found) for path in cached_profiles() if (found := cached(path)) is not None]
        if a.json:
            print(json.dumps([*(machine_facts(m) for m in shipped), *({**machine_facts(m), "kept_in": str(path)} for path, m in kept)]))
        else:
            print("\n".join([*(machine_line(m) for m in shipped), *(f"{machine_line(m)}; kept in {path}" for path, m in kept)]))
        return 0
    for warning in (machine.outdated, machine.measured and machine.measured.busy()):
        if warning:
            print(f"warning: {machine.name}: {warning}", file=sys.stderr)
    print(json.dumps(machine_facts(machine)) if a.json else machine_text(machine), end="\n" if a.json else "")
    return 0


def machine_facts(m: Machine) -> dict[str, object]:
    """A profile as JSON."""
    return {
        "name": m.name,
        "device_bytes": m.device_bytes,
        "host_bytes": m.host_bytes,
        "flops_per_s": {d.value: rate for d, rate in m.flops_per_s},
        "device_bytes_per_s": m.device_bytes_per_s,
        **{f"{link.queue.name}_bytes_per_s": link.bytes_per_s for link in m.links},
        "copy_latency_s": m.link(Queue.H2D).latency_s,
        "launch_latency_s": m.launch_latency_s,
        "threads": m.threads,
        "onednn": asdict(m.libraries.onednn),
        "compiled": asdict(m.libraries.compiled),
        **({} if m.kernel_times is None else {"kernel_times": kernel_times_values(m.kernel_times)}),
        **({} if m.measured is None else {"measured": asdict(m.measured)}),
        "about": m.about,
    }


def machine_line(m: Machine) -> str:
    """A profile on one line: device memory, host-to-device GB/s, TFLOP/s by dtype, how it was measured."""
    rates = ", ".join(f"{d.value} {rate / 1e12:g}" for d, rate in m.flops_per_s)
    line = f"{m.name:<10} {format_bytes(m.device_bytes):>8}  link {m.link(Queue.H2D).bytes_per_s / 1e9:g} GB/s  TFLOP/s {rates}"
    return line if m.measured is None else f"{line}; {m.measured.text()}"
