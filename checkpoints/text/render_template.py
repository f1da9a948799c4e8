"""A program of its own: renders one chat template in jinja2's sandbox, within limits of time and memory. JSON in, JSON out.

What templates may use beside the sandbox is what transformers gives them: blocks trimmed, `break` and `continue`, `tojson`,
`raise_exception`, `strftime_now`, and `generation` blocks. Nothing of einpage is imported: it is started anew for each dialogue.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any, NoReturn

LONGEST_S, MOST_BYTES = 2, 1 << 30
"""Of the processor, and of memory; what takes more is ended by the system."""


def render(source: str, variables: dict[str, Any]) -> str:
    """The text of a template. Raises what the template raises."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(Extension):
        """`{% generation %} … {% endgeneration %}` marks what was generated, for training; here it is the text in it."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            parser.stream.skip(1)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.exceptions.TemplateError(message)

    def tojson(
        value: object, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
    ) -> Any:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return str(environment.from_string(source).render(**variables))


def main() -> None:
    """Reads `{"source": …, "variables": …}`, and writes `{"text": …}` or `{"error": …}`."""
    asked = json.load(sys.stdin)
    try:
        import resource
    except ImportError:  # no limits where there is no such module; the caller ends what takes too long
        pass
    else:
        resource.setrlimit(resource.RLIMIT_CPU, (LONGEST_S, LONGEST_S))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    try:
        found = {"text": render(asked["source"], asked["variables"])}
    except (Exception, RecursionError, MemoryError) as error:
        found = {"error": f"{type(error).__name__}: {error}"}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
