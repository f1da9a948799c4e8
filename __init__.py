"""A checkout in a folder that is itself called `einpage`, seen from the folder above: this leads on to the package.

Python takes this file for `einpage` where the folder above is on its path, as for a script beside the checkout. Meant is the package that
is installed, or else the folder `einpage` in here (docs/adr/0011-a-checkout-called-einpage.md). Nothing else reads this file.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

HERE = Path(__file__)


def _leads_here(entry: str) -> bool:
    """Whether Python finds this file by that entry of its path."""
    found = Path(entry, "einpage", "__init__.py")
    return found.is_file() and found.samefile(HERE)


def _package() -> ModuleSpec:
    """What `einpage` is without this file: what is installed, in whatever way, or the folder in here."""
    path = [entry for entry in sys.path if not _leads_here(entry)]
    for finder in sys.meta_path:
        found = PathFinder.find_spec("einpage", path) if finder is PathFinder else finder.find_spec("einpage", None)
        if found is not None and found.loader is not None:
            return found
    inner = spec_from_file_location("einpage", HERE.parent / "einpage" / "__init__.py")
    assert inner is not None
    return inner


if __name__ == "einpage":
    spec = _package()
    assert spec.loader is not None
    sys.modules["einpage"] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules["einpage"])
