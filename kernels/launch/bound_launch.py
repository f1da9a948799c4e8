"""A compiled kernel launched with kept arguments: nothing is looked up, specialised or allocated for a launch.

In: what Triton compiled, how many programs, the handle of a stream, the arguments. Out: a call without arguments, which is Triton's own
launcher in C with its final arguments: pointers as numbers, descriptors of the copy engine filled in once. These are what Triton's Python
would pass to it, recorded here when it is asked to launch once: so they follow the version of Triton at hand (3.6 to 3.9 read alike).
Where a launcher has another form, Triton's Python is called for each launch, and `why_slow` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from inspect import getclosurevars
from typing import Any

from torch import Tensor


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    call: Callable[[], object]
    why_slow: str | None = None
    """Why Triton's Python is called for each launch; None where it is not."""

    def __call__(self) -> None:
        """Launch."""
        self.call()


def bound_launch(compiled: Any, programs: int, stream: int, arguments: Sequence[object]) -> BoundLaunch:
    """The launch of `compiled` (a CompiledKernel), whose code is loaded now. The caller holds the tensors among `arguments`."""
    numbers = tuple(a.data_ptr() if isinstance(a, Tensor) else a for a in arguments)
    by_python = partial(compiled[programs, 1, 1], *numbers, stream=stream)
    if _is_watched():
        return BoundLaunch(by_python, "a profiler has hooks in every launch")
    try:
        return BoundLaunch(_by_launcher(compiled, (programs, 1, 1, stream, compiled.function, compiled.packed_metadata), numbers))
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        return BoundLaunch(by_python, f"this Triton's launcher has another form ({type(error).__name__}: {error})")


def _is_watched() -> bool:
    from triton import knobs

    return any(getattr(hook, "calls", hook) for hook in (knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook))


def _by_launcher(compiled: Any, first: tuple[object, ...], numbers: tuple[object, ...]) -> Callable[[], object]:
    """The launcher in C, with what Triton's Python would pass to it for a kernel that needs no scratch memory."""
    from triton.backends.nvidia.driver import wrap_handle_tensordesc

    launcher = compiled.run
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        raise ValueError("scratch memory is allocated for each launch")
    signature = dict(compiled.src.signature)
    has_descriptors = any(isinstance(kind, str) and kind.startswith("tensordesc") for kind in signature.values())
    in_c = getclosurevars(launcher.launch).nonlocals["launcher"] if has_descriptors else launcher.launch
    passed: list[tuple[object, ...]] = []
    recorder = copy(launcher)
    recorder.launch = wrap_handle_tensordesc(
        lambda *final: passed.append(final), signature, getattr(compiled.metadata, "tensordesc_meta", None)
    )
    recorder(*first, None, None, None, *numbers)
    (final,) = passed
    return partial(in_c, *final)
