"""The values of a profile's YAML, with the words for what is wrong with one.

In: text. Out: Fields by key, each of which reads as a number, an amount, a text, a mapping or a list, or raises UsageError with its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import inf

from einpage.einsum_front.base.errors import SpecError, UsageError
from einpage.einsum_front.base.units import shown
from einpage.einsum_front.spec.source import SourceFile
from einpage.einsum_front.spec.yamltree import YamlMapping, YamlNode, YamlScalar, YamlSequence, parse_yaml

MOST_ITEMS = 64
"""Entries of a list."""


@dataclass(frozen=True, slots=True)
class ProfileField:
    """A value of a profile, and what a message calls it."""

    node: YamlNode
    path: str
    name: str

    @property
    def what(self) -> str:
        """`my.yaml:3: threads`."""
        return f"{self.path}:{self.node.span.line}: {self.name}"

    def value(self) -> bool | int | float | str | None:
        """The scalar that it is. Raises UsageError."""
        if not isinstance(self.node, YamlScalar):
            raise UsageError(f"{self.what} is {shown_node(self.node)}; it must be a number or a text")
        return self.node.value

    def text(self) -> str:
        """What stands there, whatever YAML takes it for. Raises UsageError."""
        self.value()
        assert isinstance(self.node, YamlScalar)
        return self.node.snippet.text

    def amount(self) -> tuple[str | int | float, str]:
        """What parse_bytes and parse_rate read, and what they call it. Raises UsageError."""
        value = self.value()
        if value is None or isinstance(value, bool):
            raise UsageError(f"{self.what} is {shown_node(self.node)}; it must be an amount, as 8GiB")
        return value, self.what

    def number(self, least: float, most: float = inf) -> float:
        """A finite number. Raises UsageError."""
        value = self.value()
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most or value == inf:
            limits = f"of at least {least:g}" if most == inf else f"from {least:g} to {most:g}"
            raise UsageError(f"{self.what} is {shown_node(self.node)}; it must be a number {limits}")
        return float(value)

    def whole(self, least: int, most: int) -> int:
        """A whole number. Raises UsageError."""
        value = self.value()
        if type(value) is not int or not least <= value <= most:
            raise UsageError(f"{self.what} is {shown_node(self.node)}; it must be a whole number from {least} to {most}")
        return value

    def fields(self) -> dict[str, ProfileField]:
        """The values of a mapping, by key. Raises UsageError."""
        if not isinstance(self.node, YamlMapping):
            raise UsageError(f"{self.what} is {shown_node(self.node)}; it must be a mapping")
        return _fields_of(self.node, self.path, f"{self.name} ")

    def items(self, what: str, example: str) -> tuple[ProfileField, ...]:
        """The entries of a list, at most MOST_ITEMS of them. Raises UsageError."""
        if not isinstance(self.node, YamlSequence):
            raise UsageError(f"{self.what} is {shown_node(self.node)}; it is a list of {what}, as in {example}")
        if len(self.node.items) > MOST_ITEMS:
            raise UsageError(f"{self.what} has {len(self.node.items)} entries; {MOST_ITEMS} are possible")
        return tuple(ProfileField(node, self.path, f"{self.name}[{i}]") for i, node in enumerate(self.node.items))


def profile_fields(text: str, where: str) -> dict[str, ProfileField]:
    """A profile's values by key. Raises UsageError."""
    try:
        root = parse_yaml(SourceFile(where, tuple(re.split(r"\r\n|[\r\n\x85\u2028\u2029]", text))), text, "machine profile")
    except SpecError as error:
        told = "; ".join(word for word in (error.message, error.expected and f"expected {error.expected}", error.cure) if word)
        raise UsageError(f"{where}:{error.line}: {told}") from error
    if not isinstance(root, YamlMapping):
        raise UsageError(f"{where}: a machine profile is a mapping, this is {'nothing' if root is None else shown_node(root)}")
    return _fields_of(root, where, "")


def _fields_of(node: YamlMapping, path: str, prefix: str) -> dict[str, ProfileField]:
    return {key: ProfileField(value, path, f"{prefix}{key}") for key, value in node.items.items()}


def shown_node(node: YamlNode) -> str:
    """What stands there, for a message."""
    match node:
        case YamlScalar():
            return shown(node.snippet.text)
        case YamlSequence():
            return f"a list of {len(node.items)}"
        case YamlMapping():
            return f"a mapping of {len(node.items)}"
