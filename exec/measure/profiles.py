"""Measured machine profiles and where they are cached: one YAML file a device, under the cache folder.

In: a function that measures, what tells one device from another. Out: the cached profile, or a new one. Losing the folder costs a few
seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from einpage.checkpoints.disk.rates import measured_rates
from einpage.einsum_front.base.errors import UsageError
from einpage.einsum_front.base.files import write_atomically
from einpage.exec.system.cache_folder import cache_folder
from einpage.memplan.machine.disk_reads import DiskReads
from einpage.memplan.machine.machine import Machine
from einpage.memplan.machine.places import Link, Queue
from einpage.memplan.machine.profile import load_machine, machine_text

Say = Callable[[str], None]
MOST_WAYS = 40
"""To read, that a profile lists."""


def measured(path: Path, measure: Callable[[], Machine], again: bool, say: Say | None) -> Machine:
    """The profile cached at `path`, or (where there is none, a damaged one, or with `again`) what `measure` gives, cached there.

    `say` is told when something is measured, why, and where it was cached. Where it cannot be written, `say` is told so; without `say` that
    raises UsageError.
    """
    why = "measuring this machine (about 25 s, once)"
    if not again:
        try:
            kept = load_machine(path)
        except UsageError as error:
            if path.exists():
                why = f"the profile kept is damaged, so this machine is measured again (about 25 s): {error}"
        else:
            if not kept.outdated:
                return kept
            why = f"the profile kept in {path} is outdated ({kept.outdated}), so this machine is measured again (about 25 s)"
    if say is not None:
        say(why)
    machine = measure()
    try:
        save(machine, path)
    except UsageError as error:
        if say is None:
            raise
        say(f"the profile is not kept: {error}")
    else:
        if say is not None:
            say(f"profile kept in {path}")
    return machine


def with_disk(machine: Machine, say: Say | None = None, again: bool = False) -> Machine:
    """`machine` with the disk under the cache folder, which is measured where its profile has none; a cached profile has it from then on.

    Raises DiskError, UsageError as `measured`.
    """
    if not again and any(link.queue == Queue.READ for link in machine.links):
        return machine
    path = path_of(machine)
    if say is not None:
        say("measuring this machine's disk (about 3 s, once)")
    rates = measured_rates(cache_folder())
    ways = tuple(
        DiskReads(choice.engine, choice.depth, choice.block_bytes, _rounded(rate)) for choice, rate in rates.read_bytes_per_s[:MOST_WAYS]
    )
    links = (
        Link(Queue.READ, ways[0].bytes_per_s, _rounded(rates.read_latency_s), _rounded(rates.read_each_s)),
        Link(Queue.WRITE, _rounded(rates.write_bytes_per_s), _rounded(rates.write_latency_s)),
    )
    found = replace(machine.with_links(*links), disk=ways)
    if path is not None:
        try:
            save(found, path)
        except UsageError as error:
            if say is not None:
                say(f"the disk's figures are not kept: {error}")
    return found


def _rounded(figure: float) -> float:
    return float(f"{figure:.4g}")


def save(machine: Machine, path: Path) -> None:
    """Write a measured profile to `path`. Raises UsageError where that cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the cache folder {path.parent}: {error.strerror}; set EINPAGE_CACHE to another one") from error
    write_atomically(path, machine_text(machine))


def cached(path: Path) -> Machine | None:
    """The profile at `path`; None where there is none that can be read."""
    try:
        return load_machine(path)
    except UsageError:
        return None


def path_of(machine: Machine) -> Path | None:
    """Where this very profile is cached; None where it is not."""
    return next((path for path in cached_profiles() if cached(path) == machine), None)


def cached_profiles() -> list[Path]:
    """The files of all cached profiles, sorted."""
    return sorted(cache_folder().glob("*.yaml"))


def forget(machine: Machine) -> bool:
    """Drop the cached profile if it is this very one, so that the next run measures again; whether it was."""
    path = path_of(machine)
    try:
        if path is not None:
            path.unlink(missing_ok=True)
    except OSError:
        return False
    return path is not None


def profile_path(device: str, machine: str, variant: str | None = None) -> Path:
    """Where the profile of `device` (`cpu`, `cuda`) in the machine described by `machine` is cached; each variant has its own."""
    words = (device, hashlib.sha256(machine.encode()).hexdigest()[:8], variant)
    return cache_folder() / ("-".join(w for w in words if w) + ".yaml")
