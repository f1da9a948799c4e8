"""Which letters of a spec run over the vocabulary, so that an output over one of them holds a number for each token.

They are the letter of the axis at which token ids index a weight (`embed[tokens[b,s], m]`: the first of `embed`), the letters whose size
is `vocab`, and those declared with the same size as one of these. Numbers decide nothing: a model as wide as its vocabulary is none.
"""

from __future__ import annotations

from einpage.einsum_front.algebra.expr import Expr, Letter, Load, Name, walk
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.document import Document
from einpage.exec.load.inputs import TOKENS

SIZE = "vocab"
"""The name of the size, where a spec says it so."""


def vocabulary_letters(document: Document, program: Program) -> frozenset[Letter]:
    """The letters of `program`, which is that of `document`, that run over the vocabulary."""
    indexed = _indexed_by_tokens(program)
    size_by_letter = {Letter(entry.name): entry.expr for entry in document.axes}
    sizes = [size for letter, size in size_by_letter.items() if letter in indexed and isinstance(size, Name)]
    return indexed | {letter for letter, size in size_by_letter.items() if size in (*sizes, Name(SIZE))}


def _indexed_by_tokens(program: Program) -> frozenset[Letter]:
    """Letters of the weights' axes at which an index reads token ids."""
    letters_by_weight = {weight.name: weight.letters for weight in program.weights}
    found: set[Letter] = set()
    one_by_statement = {(definition.base, definition.span): definition for definition in program.definitions}
    for definition in one_by_statement.values():  # iterations of a repeat differ in names alone
        for part in definition.parts:
            for node in walk(part.expr):
                if isinstance(node, Load) and node.name in letters_by_weight:
                    letters = letters_by_weight[node.name]
                    found.update(letter for letter, index in zip(letters, node.indices, strict=True) if _reads_tokens(index))
    return frozenset(found)


def _reads_tokens(index: Expr) -> bool:
    return any(isinstance(node, Load) and node.name == TOKENS for node in walk(index))
