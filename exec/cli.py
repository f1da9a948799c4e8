"""The entry of the command line: `einpage …` and `python -m einpage.exec.cli …`. Arguments in, exit status out.

Nothing heavy is imported before an interrupt is handled: Ctrl-C ends with one line and 130 from here on. Their
meaning stands in command/parser.py.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from einpage.exec.system.interrupt import INTERRUPTED, exit_on_interrupt
from einpage.exec.system.standard_streams import standard_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    with standard_streams():
        try:
            with exit_on_interrupt():
                from einpage.exec.command.parser import execute
            return execute(argv)
        except KeyboardInterrupt:
            print("einpage: interrupted", file=sys.stderr)
            return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
