"""A YAML tree against the published JSON Schema: the structure of a spec, before any expression is parsed.

In: the tree. Out: nothing, or a SpecError at the line of the first node that breaks the schema.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from einpage.einsum_front.base.errors import Span, SpecError, did_you_mean, listing
from einpage.einsum_front.spec.source import SourceFile
from einpage.einsum_front.spec.yamltree import YamlMapping, YamlNode, YamlScalar, YamlSequence, json_value

if TYPE_CHECKING:  # what reads no spec needs no such library
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_SCHEMA = Path(__file__).parents[2] / "specs" / "schema.json"
_KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "number": "a number",
    "integer": "a whole number",
    "boolean": "true or false",
}


@cache
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(_SCHEMA.read_text(encoding="utf-8")))


def check_schema(source: SourceFile, root: YamlNode) -> None:
    """Raises SpecError for what the schema does not allow; of several mistakes, the first in the file."""
    errors = list(_validator().iter_errors(json_value(root)))
    # A key misspelt is both unknown and missing: the unknown one says more.
    chosen = [e for e in errors if e.validator != "required"] or errors
    if chosen:
        raise min((_explain(source, root, e) for e in chosen), key=lambda e: (e.line, e.column))


def _explain(source: SourceFile, root: YamlNode, error: ValidationError) -> SpecError:
    node, span = _find(root, list(error.absolute_path))
    schema: Any = error.schema
    where = f"`{error.absolute_path[-1]}`" if error.absolute_path and isinstance(error.absolute_path[-1], str) else "this"
    match error.validator:
        case "additionalProperties":
            assert isinstance(node, YamlMapping)
            allowed = tuple(schema["properties"])
            unknown = next(str(k) for k in node.items if k not in allowed)
            message = f"unknown key `{unknown}`"
            return source.error(node.key_spans[unknown], message, expected=listing(allowed), cure=did_you_mean(unknown, allowed))
        case "required":
            assert isinstance(node, YamlMapping)
            missing = [k for k in schema["required"] if k not in node.items]
            added = f"add `{missing[0]}:`"
            return source.error(span, f"{where} lacks {listing(f'`{m}`' for m in missing)}", exists=listing(node.items), cure=added)
        case "type":
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            expected = " or ".join(_KINDS[k] for k in kinds)
            cure = "quote it" if kinds == ["string"] and isinstance(node, YamlScalar) else None
            return source.error(span, f"{where} is {_kind(node)}", expected=expected, cure=cure)
        case "enum":
            return source.error(span, f"{where} is {_kind(node)}", expected=" or ".join(map(str, schema["enum"])))
        case "const":
            return source.error(span, f"{where} is {_kind(node)}", expected=str(schema["const"]))
        case "minItems" | "minProperties" | "minLength":
            return source.error(span, f"{where} is empty", expected="at least one entry")
    raise AssertionError(f"the schema uses a word that is not explained here: {error.validator}")


def _kind(node: YamlNode) -> str:
    match node:
        case YamlMapping():
            return "a mapping"
        case YamlSequence():
            return "a list"
        case YamlScalar():
            return "empty" if node.value is None else f"`{node.snippet.text[:40]}`"


def _find(root: YamlNode, path: Sequence[str | int]) -> tuple[YamlNode, Span]:
    """The node at a JSON path, and the place to show: the key's, for a mapping or a list in a mapping."""
    node, span = root, root.span
    for step in path:
        match node:
            case YamlMapping():
                assert isinstance(step, str)
                key_span, node = node.key_spans[step], node.items[step]
                span = node.span if isinstance(node, YamlScalar) and node.value is not None else key_span
            case YamlSequence():
                assert isinstance(step, int)
                node = node.items[step]
                span = node.span
            case YamlScalar():
                raise AssertionError(f"nothing below a scalar: {step}")
    return node, span
