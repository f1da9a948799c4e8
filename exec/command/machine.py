"""`einpage machine`: profiles that ship, or one of this machine, measured. `einpage cache`: what is kept on its disk."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from einpage.checkpoints.disk.cache_files import CacheFolder
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.units import format_bytes, parse_bytes
from einpage.exec.measure.profiles import cached, cached_profiles, with_disk
from einpage.exec.system.cache_folder import blocks_folder, code_folder
from einpage.memplan.machine.disk_reads import disk_reads_values
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

        machine = with_disk(measured_machine(device_for(a.device or "auto").kind, again=True), again=True)
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


def cache_command(a: argparse.Namespace) -> int:
    """List the files of packed weights, and how much machine code is kept; remove both; say how many bytes packed weights may have.

    The exit status. Raises UsageError, DiskError.
    """
    folder, code = blocks_folder(), code_folder()
    limit = None if a.limit is None else parse_bytes(a.limit, "--limit")
    before, code_before = _nbytes(folder), _nbytes(code)
    if limit is not None:
        folder.set_limit(limit)
    if a.clear:
        folder.clear()
        code.clear()
    files, total, code_total = folder.files(), _nbytes(folder), _nbytes(code)
    if a.json:
        listed = [{"file": str(file.path), "bytes": file.nbytes, "used_s": file.used_s} for file in files]
        print(
            json.dumps(
                {
                    "folder": str(folder.path),
                    "limit_bytes": folder.limit(),
                    "bytes": total,
                    "removed_bytes": before - total,
                    "files": listed,
                    "code": {
                        "folder": str(code.path),
                        "limit_bytes": code.limit(),
                        "bytes": code_total,
                        "removed_bytes": code_before - code_total,
                        "files": len(code.files()),
                    },
                }
            )
        )
        return 0
    for file in files:
        used = datetime.fromtimestamp(file.used_s, UTC).strftime("%Y-%m-%d %H:%M")
        print(f"{file.path.name:<40} {format_bytes(file.nbytes):>10}  last used {used} UTC")
    print(_total(folder, total, before))
    print(f"machine code: {_total(code, code_total, code_before)}")
    return 0


def _nbytes(folder: CacheFolder) -> int:
    return sum(file.nbytes for file in folder.files())


def _total(folder: CacheFolder, nbytes: int, before: int) -> str:
    removed = f"; {format_bytes(before - nbytes)} removed" if before > nbytes else ""
    return f"{format_bytes(nbytes)} of at most {format_bytes(folder.limit())} in {folder.path}{removed}"


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
        **({} if not m.disk else {"disk": disk_reads_values(m.disk)}),
        "about": m.about,
    }


def machine_line(m: Machine) -> str:
    """A profile on one line: device memory, host-to-device GB/s, TFLOP/s by dtype, how it was measured."""
    rates = ", ".join(f"{d.value} {rate / 1e12:g}" for d, rate in m.flops_per_s)
    line = f"{m.name:<10} {format_bytes(m.device_bytes):>8}  link {m.link(Queue.H2D).bytes_per_s / 1e9:g} GB/s  TFLOP/s {rates}"
    return line if m.measured is None else f"{line}; {m.measured.text()}"
