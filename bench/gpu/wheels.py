"""What the measurement needs besides torch, triton, numpy and transformers: which wheels, for which parts. Needs Python alone.

    python -m bench.gpu.wheels needed           requirements, with the tags of their wheels, and the command that fetches them
    python -m bench.gpu.wheels unpack FROM TO   what this interpreter lacks, unpacked into a folder for its path

Wheels are archives: they are unpacked here, each by itself, so that one that does not fit (another Python's, a broken one) costs only
itself, and a machine without pip lacks nothing. What the interpreter has already is left as it is.
"""

from __future__ import annotations

import platform
import re
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

LIST = Path(__file__).with_name("wheels.txt")
FETCH = """python3 -m pip download --no-deps --only-binary=:all: --implementation cp --python-version 3.12 \\
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \\
    --dest bench/wheels --requirement bench/gpu/wheels.txt"""

SPECS = ("first", "smollm2", "compile", "kernels", "tiles", "models", "peers", "large")
"""The parts that read a spec."""


@dataclass(frozen=True, slots=True)
class Needed:
    """A distribution that some part imports."""

    distribution: str
    module: str
    """What is imported."""
    parts: tuple[str, ...] = ()
    """Those that are absent without it, wholly or in some of their cases."""
    use: str = ""
    """What it is good for, where nothing is absent without it."""


NEEDED = (
    Needed("PyYAML", "yaml", ("links", *SPECS)),
    Needed("jsonschema", "jsonschema", SPECS),
    Needed("jsonschema-specifications", "jsonschema_specifications", SPECS),
    Needed("referencing", "referencing", SPECS),
    Needed("rpds-py", "rpds", SPECS),
    Needed("attrs", "attrs", SPECS),
    Needed("gguf", "gguf", ("smollm2",)),
    Needed("pytest", "pytest", ("tests",)),
    Needed("pluggy", "pluggy", ("tests",)),
    Needed("iniconfig", "iniconfig", ("tests",)),
    Needed("packaging", "packaging", ("peers",)),
    Needed("Pygments", "pygments", ("tests",)),
    Needed("hypothesis", "hypothesis", ("tests",)),
    Needed("sortedcontainers", "sortedcontainers", ("tests",)),
    Needed("pytest-timeout", "pytest_timeout", use="a test that hangs ends by itself"),
    Needed("pytest-xdist", "xdist", use="tests run in many processes"),
    Needed("execnet", "execnet", use="tests run in many processes"),
    Needed("transformers", "transformers", ("peers",)),
    Needed("tokenizers", "tokenizers", ("peers",)),
    Needed("safetensors", "safetensors", ("peers",)),
    Needed("accelerate", "accelerate", ("peers",)),
    Needed("deepspeed", "deepspeed", ("peers",)),
    Needed("flextensor", "flextensor", ("peers",)),
)
"""Of the peers' own needs, those that they import at once are in wheels.txt only."""


def cure(module: str | None) -> str | None:
    """What to carry where `module` cannot be imported; None where nobody expects that module here."""
    top = (module or "").partition(".")[0]
    distribution = next((needed.distribution for needed in NEEDED if needed.module == top), None)
    if distribution is None:
        return None
    version = {name.lower(): version for name, version in pinned()}.get(distribution.lower())
    return f"{distribution}{'' if version is None else '==' + version} is not here; its wheel belongs in bench/wheels"


def pinned() -> Iterator[tuple[str, str]]:
    """(distribution, version) of wheels.txt."""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([A-Za-z0-9._-]+)==(\S+)", line):
            yield found[1], found[2]


def needed_text() -> str:
    """The list, as pip reads it."""
    fetch = "".join(f"#   {line.strip()}\n" for line in FETCH.splitlines())
    return f"# In the folder of this checkout:\n{fetch}{LIST.read_text(encoding='utf-8')}"


def unpack(source: Path, target: Path) -> list[str]:
    """Unpack what this interpreter lacks of the wheels in `source`; a line for each that was not, and why."""
    said = []
    for path in sorted(source.glob("*.whl")):
        name, *_ = path.name.split("-")
        if _version(name) is not None:
            continue
        if not fits(path.name):
            said.append(f"{path.name} is for another Python or machine: this is {_python()} on {platform.machine()}")
            continue
        try:
            _unpack(path, target)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            said.append(f"{path.name} cannot be unpacked: {error}")
    return said


def fits(name: str) -> bool:
    """Whether a wheel of that file name is for this interpreter, by its last three words: Python, ABI, platform."""
    words = name.removesuffix(".whl").split("-")
    if len(words) < 5:
        return False
    pythons, abis, platforms = (word.split(".") for word in words[-3:])
    if not any(p == "any" or (p.startswith(("manylinux", "linux")) and p.endswith(platform.machine())) for p in platforms):
        return False
    for python in pythons:
        if python in ("py3", f"py{sys.version_info[0]}{sys.version_info[1]}") and "none" in abis:
            return True
        if python == _python() and {_python(), "abi3", "none"} & set(abis):
            return True
        if "abi3" in abis and (old := re.fullmatch(r"cp3(\d+)", python)) and int(old[1]) <= sys.version_info[1]:
            return True
    return False


def _python() -> str:
    return f"cp{sys.version_info[0]}{sys.version_info[1]}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _unpack(path: Path, target: Path) -> None:
    """Packages to `target`; scripts, headers and data have no use here. Raises ValueError for a name that leads out of it."""
    with zipfile.ZipFile(path) as archive:
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"{broken} in it is damaged")
        for member in archive.infolist():
            words = PurePosixPath(member.filename).parts
            if member.is_dir() or not words:
                continue
            if words[0].endswith(".data"):
                if len(words) < 3 or words[1] not in ("purelib", "platlib"):
                    continue
                words = words[2:]
            if ".." in words or words[0] == "/":
                raise ValueError(f"{member.filename} leads out of it")
            place = target.joinpath(*words)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(archive.read(member))


def main(words: list[str]) -> int:
    match words:
        case ["needed"]:
            print(needed_text(), end="")
            return 0
        case ["unpack", source, target]:
            for line in unpack(Path(source), Path(target)):
                print(f"wheels: {line}", flush=True)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
