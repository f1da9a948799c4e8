"""Changes to the text of a spec: of characters, of tokens, of the YAML tree, of statements. Each takes a Random and a spec's text.

What they give need not be a spec, nor YAML; much of it is. Never makes: files of more than a few KB.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any

import yaml

import mutations

PIECES = (
    *("[", "]", "(", ")", "{", "}", ",", ":", ": ", " - ", "- ", "\n", "\n  ", "'", '"', "|", ">", "&a ", "*a", "!x ", "#", "%", "@", "`"),
    *("?", "~", "=", "+=", "**", "//", "<=", "not ", " and ", " or ", "0", "-1", "1e9", "1e-5", "1e400", "9" * 30, "9" * 400, "9" * 5000),
    *(
        "inf",
        "nan",
        ".nan",
        ".inf",
        "0x1F",
        "1_000",
        "2020-01-01",
        "s",
        "b",
        "seq",
        "seq: ",
        "sum[s](",
        "softmax[t](",
        "where(",
        "max(",
        "pi",
    ),
    *("axes: ", "from: ", "repeat: ", "as: ", "let: ", "body: ", "or: ", "dtype: ", "default: ", "plus: ", "over: ", "lists: ", "config: "),
    *("\t", "\x00", "\ufeff", "\u2028", "é", "𝔸", "²", "null", "true", "<<: ", "---\n", "(" * 300, "[" * 300, "{a: " * 300, "- " * 300),
    *("not " * 300, "-" * 300, "a" * 3000, "1 + " * 2000, "2 ** " * 60),
)
NUMBERS = (0, -1, 1, 2, 3, 7, 64, 1000, 4097, 10**6, 10**9, 2**31, 2**53 + 1, 2**63, 10**30, 0.5, 1e-5, 1e308)
EXPRESSIONS = (
    *(
        "0",
        "1",
        "-1",
        "0.5",
        "1e39",
        "inf",
        "-inf",
        "pi",
        "1 / 0",
        "1 // 0",
        "1 % 0",
        "0 ** -1",
        "2 ** 1000",
        "9 ** 9 ** 9",
        "seq",
        "not 1",
    ),
    *("sum[s](1)", "max[s](s)", "softmax[s](s)", "mean[s,s](1)", "where(1, 2, 3)", "where(s >= 1, x[s - 1], 0)", "min(1, 2)", "exp(1000)"),
    *("rsqrt(-1)", "log(0)", "1 < 2 < 3", "x", "x[s]", "x[0]", "x[s + 1]", "x[-1]", "x[x[0]]", "q(1)", "exp()", "f[l]", "l", "s - t"),
)
OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<", "<=", ">", ">=", "==", "!=", "and", "or")
TOKEN = re.compile(r"[A-Za-z_]\w*|[0-9][\w.]*|\*\*|//|[<>=!+]=|\s+|.", re.DOTALL)
WORD = re.compile(r"[A-Za-z_]\w*")
NUMBER = re.compile(r"(?<![\w.])[0-9][\w.]*")
OPERATOR = re.compile(r" (?:\*\*|//|[<>=!]=|[-+*/%<>]|and|or) ")


def change_spec(random: Random, text: str) -> str:
    """`text` with one to three changes, mostly of one kind."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        text = random.choice((change_characters, change_tokens, change_tree, change_statement, change_statement))(random, text)
    return text[:100_000]


def change_characters(random: Random, text: str) -> str:
    """Characters removed, and a piece put in their place; or whole lines left out, doubled, moved."""
    if random.random() < 0.4:
        return mutations.change_text(random, text, PIECES)
    at = random.randrange(len(text) + 1)
    return text[:at] + random.choice(PIECES) + text[at + random.choice((0, 0, 1, 1, 3, 12)) :]


def change_tokens(random: Random, text: str) -> str:
    """A token left out, doubled, or replaced by another of the text, or two exchanged."""
    tokens = TOKEN.findall(text)
    solid = [i for i, token in enumerate(tokens) if not token.isspace()]
    if len(solid) < 2:
        return text
    at, other = random.choice(solid), random.choice(solid)
    match random.randrange(4):
        case 0:
            tokens[at] = ""
        case 1:
            tokens[at] *= 2
        case 2:
            tokens[at], tokens[other] = tokens[other], tokens[at]
        case _:
            tokens[at] = tokens[other] if random.random() < 0.5 else random.choice(PIECES)
    return "".join(tokens)


def change_tree(random: Random, text: str) -> str:
    """Parsed, a node of the tree changed, and written again; `text` itself changed where it is no YAML."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return change_characters(random, text)
    if random.random() < 0.5:
        tree = mutations.change_json(random, tree, 1)
    else:
        _change_place(random, tree)
    try:
        return str(yaml.safe_dump(tree, sort_keys=False, allow_unicode=random.random() < 0.5, width=10**6))
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def _places(tree: Any, depth: int = 0) -> list[tuple[Any, Any]]:
    """Every container and key in the tree."""
    if not isinstance(tree, list | dict) or depth > 20:
        return []
    keys = range(len(tree)) if isinstance(tree, list) else list(tree)
    return [found for key in keys for found in [(tree, key), *_places(tree[key], depth + 1)]]


def _change_place(random: Random, tree: Any) -> None:
    """A number by an odd one, a word by another word of the tree, a mapping renamed, or two places exchanged."""
    places = _places(tree)
    if not places:
        return
    parent, key = random.choice(places)
    other, place = random.choice(places)
    match parent[key]:
        case int() | float():
            parent[key] = random.choice((*NUMBERS, *EXPRESSIONS))
        case str() if random.random() < 0.5:
            parent[key] = random.choice(EXPRESSIONS)
        case _ if isinstance(parent, dict) and random.random() < 0.4:
            parent[str(random.choice([k for where, k in places if isinstance(where, dict)] or ["x"]))] = parent.pop(key)
        case _:
            parent[key], other[place] = other[place], parent[key]


def change_statement(random: Random, text: str) -> str:
    """In a line that has an `=`: a name, a number, an operator or an expression in brackets exchanged for another."""
    lines = text.split("\n")
    statements = [i for i, line in enumerate(lines) if "=" in line]
    if not statements:
        return change_tokens(random, text)
    at = random.choice(statements)
    line = lines[at]
    match random.randrange(7):
        case 0:
            words = [*WORD.findall(line), *WORD.findall(random.choice(lines)), "b", "s", "pi", "inf", "where"]
            line = _replaced(random, WORD, line, random.choice(words))
        case 1:
            line = _replaced(random, NUMBER, line, str(random.choice(NUMBERS)))
        case 2:
            line = _replaced(random, OPERATOR, line, f" {random.choice(OPERATORS)} ")
        case 3:
            line = _replaced(random, re.compile(r"[A-Za-z_]\w*(?:\[[^\[\]]*\])?"), line, random.choice(EXPRESSIONS))
        case 4:
            line = _replaced(random, re.compile(r"\([^()]*\)"), line, f"({random.choice(EXPRESSIONS)})")
        case 5:
            whole = list(re.finditer(r"\[[^\[\]]*\]", random.choice([lines[i] for i in statements])))
            line = _replaced(random, re.compile(r"\[[^\[\]]*\]"), line, random.choice(whole).group() if whole else "[0]")
        case _:
            lines.insert(random.choice(statements), line)
    lines[at] = line
    return "\n".join(lines)


def _replaced(random: Random, pattern: re.Pattern[str], line: str, new: str) -> str:
    found = list(pattern.finditer(line))
    if not found:
        return line
    match = random.choice(found)
    return line[: match.start()] + new + line[match.end() :]
