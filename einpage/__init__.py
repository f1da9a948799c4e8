"""einpage: a model as math in YAML, a plan for every byte, a run that replays the plan.

`load_spec` gives a Model, `plan` a judged plan of it, `run` its results, `open` a model held open, which generates, `train` trains one;
their words are those of the command line. Importing this package imports nothing heavy: torch comes with the last three alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einpage.exec.api import load_spec, open, plan, run, train

__all__ = ["load_spec", "open", "plan", "run", "train"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name in __all__:
        return getattr(import_module("einpage.exec.api"), name)
    raise AttributeError(f"module 'einpage' has no attribute {name!r}")
