"""Random specs for the semantic fuzzer, and a checkpoint and inputs for each: all that spec_strategies and semantic_forms make, and layers.

Weights with grouped axes, of several sources, with a number to add, tied; inputs with a default; repeats with lists, `let:`, weights by the
iteration, repeats inside; sizes, scalars and lists that the checkpoint's metadata set. Never makes: errors; reserved targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from random import Random
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from semantic_forms import SemanticForms
from spec_words import Named, Term, axes_text
from statement_numpy import LOADER

LISTS = ("(n + 1) % 2", "n % 3 == 1", "half + n", "layers - n", "where(n >= 1, third, -n)")
LETS = ("lay % 2", "where(lay == 1, 0.5, 2)", "1 / (lay + 1)", "half - {list}[lay]", "(lay - 2) // 2", "{list}[layers - 1 - lay] * third")
STARTS = (
    "where({list}[lay] > 0 and {at} >= lay, {here} * {weight} * odd, tanh({here}))", "{here} * {weight} + odd - {list}[lay]",
    "where({list}[lay], {here}, -{weight}) / (lay + 1.5)", "where(odd < 1, {here} * (1 + {weight}), {weight})",
)  # fmt: skip


class SemanticBuilder(SemanticForms):
    """A spec under construction. Data follow from what it declares: `checkpoint_data` reads the text."""

    lists: list[str]
    config: list[str]

    def odd_weight(self) -> None:
        """A weight with grouped axes, several sources, a number to add, or tied to another."""
        letters = self.some(["i", "k", "p", "z"], 2, 3)
        order = self.some(letters, len(letters), len(letters))
        name, other = self.fresh("g"), self.fresh("t")
        axes, grouped = axes_text(letters), f"({letters[0]} {letters[1]}) {axes_text(letters[2:])}".replace('""', "").strip()
        turned = f"{axes_text(order[:-2])} ({order[-1]} {order[-2]})".replace('""', "").strip()
        plus = self.choose((1, -0.5, 0.1))
        match self.pick(0, 4):
            case 0:
                self.weights.append(f"{name}: {{axes: {grouped}, from: {name}}}")
            case 1:
                self.weights.append(f"{name}: {{axes: {axes}, from: [{name}.no, {{name: {name}, axes: {axes_text(order)}}}]}}")
            case 2:
                self.weights.append(f"{name}: {{axes: {axes}, from: [{{name: {name}, plus: {plus}}}, {name}.no]}}")
            case 3:
                source = f"{{name: {name}, axes: {turned}, plus: {plus}}}"
                self.weights.append(f"{name}: {{axes: {grouped}, from: [{{name: {name}.no, plus: 3}}, {source}]}}")
            case _:
                self.weights.append(f"{name}: {{axes: {axes}, from: {name}}}")
                self.weights.append(f"{other}: {{axes: {axes}, from: {other}.no, or: {name}}}")
                self.known.append(Named(other, self.dims(letters), 1.0))
        self.known.append(Named(name, self.dims(letters), 2.0))
        self.define(self.fresh("v"), letters[:1], self.product(letters[:1], 1))

    def default_input(self) -> None:
        """An input with a default, which is given every other time."""
        name, letters = self.fresh("d"), self.some(["i", "k", "p"], 1, 2)
        default = self.choose(("0.75", "-1", "half", "1 / nb", "third - half"))
        self.inputs.append(f"{name}: {{axes: {axes_text(letters)}, default: {default}}}")
        at = self.load_text(Named(name, (), 0), letters)
        self.known.append(Named(name, self.dims(letters), 1.0))
        self.define(self.fresh("v"), letters, self.tame(self.with_sum(at, letters)))

    def with_sum(self, text: str, letters: list[str]) -> Term:
        """`text` plus anything over the letters."""
        term = self.expression(letters, 2)
        return Term(f"{text} + {term.text}", 1 + term.bound)

    def layers(self) -> None:
        """A repeat with a list, `let:`, a nested repeat, weights by the iteration or stacked."""
        letters = self.some(["i", "k", "p"], 1, 2)
        at = self.choose(letters)
        state = self.define(self.fresh("st"), letters, self.tame(self.load_with(letters, []), 1.0))
        here, name, inner = self.load_text(state, letters), self.fresh("lw"), ", ".join(letters)
        chosen, places = f"pat{self.made}", f"at{self.made}"
        self.lists.append(f"{chosen}: {{over: layers, as: n, default: '{self.choose(LISTS)}'}}")
        self.lists.append(
            f"{places}: {{over: layers, as: n, default: '{self.choose(('n', 'layers - 1 - n', 'n % 2', '(5 * n + 1) % layers'))}'}}"
        )
        if self.pick(0, 1):
            words = "{near: 1, far: 0, mid: 2}"
            self.config.append(
                f"{chosen}: {self.choose((f'kinds_{chosen}', f'[no_{chosen}, {{key: deep.kinds_{chosen}, values: {words}}}]'))}"
            )
        weight = f"{name}[{at}]"
        named = self.choose((f"{name}.{{lay}}", f"{name}.{{{places}[lay]}}", f"{name}.{{lay}}.b"))
        sources = self.choose(
            (f'["{named}.no", "{named}"]', f'"{named}"', f'[{{name: "{named}.no", plus: 2}}, {{name: "{named}", plus: 0.5}}]')
        )
        declared = f"    weights: {{{name}: {{axes: {at}, from: {sources}}}}}\n"
        if self.maybe(3):
            stack = self.choose((f"y {at}", f"{at} y"))
            self.weights.append(f"{name}: {{axes: {stack}, from: {name}}}")
            index = self.choose(("lay", "2 - lay", f"{places}[lay]"))
            weight, declared = f"{name}[{index}, {at}]" if stack[0] == "y" else f"{name}[{at}, {index}]", ""
        body = [
            f"u[{inner}] = {self.choose(STARTS).format(list=chosen, at=at, here=here, weight=weight)}",
            f"{here} = ({here} + u[{inner}] * (lay + 1) / 8) * 0.5",
        ]
        if self.pick(0, 1):
            count = self.choose(("1 + lay % 2", f"{places}[lay] + 1", "2"))
            body.append(f"repeat: {count}\n        as: m2\n        body: ['{here} += sin({here} + m2 - lay) * 0.25']")
        if self.pick(0, 1):
            over = self.choose("jlq")
            body.append(f"{here} += mean[{over}](cos({over} * 0.3 + {here})) * 0.1")
        listed = "".join(f"      - {s}\n" if s.startswith("repeat") else f"      - '{s}'\n" for s in body)
        let = str(self.choose(LETS)).format(list=chosen)
        self.body.append(f"repeat: layers\n    as: lay\n    let: {{odd: '{let}'}}\n{declared}    body:\n{listed}")
        self.known.remove(state)
        self.known.append(Named(state.name, state.dims, 6.0))

    def written(self, outputs: list[Named]) -> str:
        lists, config = ("".join(f"  {x}\n" for x in lines) for lines in (self.lists, self.config))
        top = f"scalars: {{half: 0.5, third: half * 2 / 3}}\nignore: ['*']\nconfig:\n{config}"
        top += f"lists:\n{lists}" if lists else ""
        text = super().written(outputs).replace("sizes: {", "sizes: {layers: 3, ", 1)
        return text.replace("axes: {", f"{top}axes: {{y: 3, ", 1)

    def spec(self, most_statements: int) -> str:
        self.lists = []
        self.config = self.some(["half: [no_half, scale]", "layers: deep.layers"], 1, 2)
        self.declare_sizes()
        plain, product = self.plain_statement, self.contraction_with_epilogue
        common = (
            plain,
            plain,
            product,
            product,
            self.norm,
            self.attention,
            self.attention,
            self.partial_definitions,
            self.add,
            self.repeat,
        )
        further = (
            self.shifted,
            self.shifted,
            self.odd_weight,
            self.default_input,
            self.positions,
            self.floats,
            self.quotients,
            self.brackets,
        )
        kinds = (*common, *further, self.written_softmax, self.lengths, self.layers)
        for _ in range(self.pick(1, most_statements)):
            self.choose(kinds)()
        if not self.values:
            self.plain_statement()
        by_name = {k.name: k for k in self.known}
        values = [name for name in dict.fromkeys(self.values) if name in by_name]
        return self.written([by_name[name] for name in values if name == values[-1] or self.maybe(3)])


def semantic_spec(seed: int, most_statements: int = 5) -> str:
    """A spec as YAML text."""
    return SemanticBuilder(Random(seed).randint).spec(most_statements)


@dataclass(frozen=True, slots=True)
class CheckpointData:
    """What a run of a spec is given."""

    inputs: Mapping[str, NDArray[Any]]
    tensors: Mapping[str, NDArray[Any]]
    metadata: Mapping[str, Any]
    """As config.json holds it."""


def checkpoint_data(text: str, seed: int) -> CheckpointData:
    """Inputs by name and a checkpoint's tensors, of the names that do not end in `.no`: floats in -1 … 1, integers in their range or below
    the limit that their name ends in. Inputs with a default are left out every other time; so is each number of the metadata."""
    document, rng = yaml.load(text, LOADER), np.random.default_rng(seed)
    sizes = document["sizes"]
    metadata: dict[str, Any] = {"deep": {}}
    if "layers" in document["config"] and seed % 3:
        metadata["deep"]["layers"] = int(rng.integers(1, 4))
    if "half" in document["config"] and seed % 4:
        metadata["scale"] = [0.25, 0.75, 1.5][seed % 3]
    layers = metadata["deep"].get("layers", 3)
    for name, entry in document["config"].items():
        if name.startswith("pat") and seed % 5:
            words = isinstance(entry, list)
            into = metadata["deep"] if words else metadata
            into[f"kinds_{name}"] = [["near", "far", "mid"][i] if words else int(i) for i in rng.integers(0, 3, layers)]
    extent = {x: sizes[n] if isinstance(n, str) else n for x, n in document["axes"].items()}
    inputs: dict[str, NDArray[Any]] = {}
    for name, entry in document.get("inputs", {}).items():
        shape = [extent[x] for x in entry["axes"].split()]
        if "default" in entry and seed % 2 == 0:
            continue
        if "dtype" in entry:
            low, high = entry["range"].split(" .. ") if "range" in entry else (0, int(name.rsplit("_", 1)[1]) - 1)
            inputs[name] = rng.integers(int(low), 1 + int(sizes.get(high, high)), shape).astype(entry["dtype"])
        else:
            inputs[name] = rng.uniform(-1, 1, shape).astype(np.float32)
    tensors: dict[str, NDArray[Any]] = {}

    def shape_of(axes: str) -> list[int]:
        groups = axes.replace("(", "|").replace(")", "|").split("|")
        return [
            n for i, g in enumerate(groups) for n in ([prod(extent[x] for x in g.split())] if i % 2 else [extent[x] for x in g.split()])
        ]

    def declare(weights: dict[str, Any], names: list[dict[str, Any]]) -> None:
        for entry in weights.values():
            for source in entry["from"] if isinstance(entry["from"], list) else [entry["from"]]:
                own = source if isinstance(source, dict) else {"name": source}
                for at in names if not own["name"].endswith(".no") else []:
                    tensors[own["name"].format(**at)] = rng.uniform(-1, 1, shape_of(own.get("axes", entry["axes"]))).astype(np.float32)

    declare(document.get("weights", {}), [{}])
    everywhere = [{name: {"lay": n} for name in document.get("lists", {})} for n in range(3)]
    for item in document["body"]:
        if isinstance(item, dict):
            declare(item.get("weights", {}), [{item["as"]: i} | at for i in range(3) for at in everywhere])
    return CheckpointData(inputs, tensors, metadata)
