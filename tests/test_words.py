"""The words of the four folders: the field's terms, each for one thing.

WORDS lists words that were once used here in a meaning of their own, with the term that a textbook or a paper would use. Where a word
has an everyday meaning as well, it is looked for only in the folders, in the kind of place or in the phrases in which the private
meaning occurred; its row then says which meaning stays, and a folder is left out only if the word does occur elsewhere. Names are taken
from the source by `ast`: everything that a module defines, split at underscores and at capitals. Prose is docstrings, the docs under
fields, comments, and all other text with a space in it (errors, reports, help). A class or alias name stands for one thing in all four
folders.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("einsum_front", "memplan", "kernels", "exec")
PLACING = ("memplan.packing", "memplan.schedule")
STREAMS = ("exec.device.cuda", "exec.device.driver", "exec.device.stream_judge", "exec.device.streams", "exec.dispatch")


@dataclass(frozen=True, slots=True)
class Word:
    but: str
    """The term to write instead."""
    names: str = ""
    """Words that no part of a name is; empty: not looked for in names."""
    prose: str = ""
    """A pattern of prose, whatever the case; empty: not looked for in prose."""
    example: str = ""
    """Prose that `prose` finds."""
    where: tuple[str, ...] = FOLDERS
    """The folders, wings or modules in which both are looked for."""
    reason: str = ""
    """What the word means where it is not looked for: outside `where`, or in the kind of place that has nothing to look for."""

    @property
    def needs_reason(self) -> bool:
        return self.where != FOLDERS or not self.names or not self.prose


WORDS: tuple[Word, ...] = (
    Word(
        "resident interval, resident",
        "keep keeps stay stays",
        reason="in prose plain verbs; the noun has a row of its own",
    ),
    Word(
        "what is resident, is evicted, is loaded",
        prose=r"\b(?:who|what)(?:ever)? (?:would )?(?:stay(?:s|ed)?|go(?:es)?(?! in| out| wrong)|leaves?(?! out)|is gone|waits?)\b",
        example="The host gets first what leaves first.",
        reason="phrases; the words alone have rows of their own",
    ),
    Word(
        "resident interval",
        prose=r"\b(?:a|the|each|every|no|its|shorter|\w+'s) stay\b|\bthe stays\b|\bstays? (?:shorter|cut)\b",
        example="The tensor's stay in the arena.",
        reason="the noun; `stay` in a name is found by the first row",
    ),
    Word(
        "evict, evicted, unplaced",
        "goes leave leaves gone driven homeless",
        r"\bdr(?:ive|ives|iven|iving) (?:\w+ )?away|\bhomeless\b|\bcomes? and goe?s?\b|\bleaves? (?:first|early|without a copy)\b",
        "Neighbours are driven away.",
    ),
    Word(
        "required or full live range",
        "core cores",
        r"\bcores?\b",
        "The core of a tensor's time on the device.",
        PLACING,
        "a processor's cores, a GPU's tensor cores",
    ),
    Word(
        "live range, buffer",
        "block blocks",
        r"\bblocks?\b",
        "Blocks are placed by size.",
        PLACING,
        "the tile of a kernel, the block of a quantised format, a block of a file or of memory",
    ),
    Word(
        "split a live range",
        "cut cuts cutting",
        r"\b(?:cuts?|cutting)\b",
        "It is cut where that costs least.",
        ("memplan.schedule",),
        "an index range is cut into tiles, a schedule into windows, a long text short",
    ),
    Word("asks for, prefetch lead", "wish wishes wished", r"\bwish(?:es|ed|ing)?\b", "They wish less."),
    Word("prefetch lead", "lead leads", where=("memplan",), reason="a plain verb in prose; the lead of a line is its beginning"),
    Word("write-back lag", "linger lingers lingering", r"\blinger(?:s|ed|ing)?\b", "It lingers until its copy has ended."),
    Word("prefetch headroom", "slack", r"\bslack\b", "Some slack is left."),
    Word("relocate, prefetch denied", "seat seats seated unhappy", r"\b(?:seats?|seated|unhappy)\b", "The unhappy ones move."),
    Word("allocation, placement", "ground stand stands", reason="a reason is a ground, and the verb has a row of its own"),
    Word(
        "is placed",
        prose=r"(?<!may )\b(?:stands?(?! for)|stood|standing)\b",
        example="All that stand at once are disjoint.",
        where=PLACING,
        reason="of names: the row before; elsewhere text stands in a line, a letter on a target",
    ),
    Word(
        "candidate",
        "way ways",
        r"\bways\b|\b(?:each|another|the best|this) way\b|\bof its way\b",
        "Each way is tried once.",
        ("memplan.schedule", "memplan.residency", "memplan.packing"),
        "the manner in which a thing is done, and a direction: copies each way",
    ),
    Word(
        "allocate, re-issued for robustness",
        "settle settles settled steadied",
        r"\b(?:settle[sd]?(?! for)|steadied)\b",
        "Plans are settled.",
    ),
    Word("headroom", "room rooms", r"\b(?:the|first|each|least|same|other) rooms?\b", "The room at every slot."),
    Word("extra bytes", "besides", reason="a preposition in prose"),
    Word(
        "reserve",
        "promise promises promised",
        r"\bpromis(?:e|es|ed)\b",
        "Its bytes are promised.",
        ("memplan",),
        "what a library's documentation promises",
    ),
    Word("in flight", "between", reason="a preposition in prose"),
    Word("cancel", "withdraw withdraws withdrawn", r"\bwithdr(?:aw|aws|awn|ew)\b", "The reload is withdrawn."),
    Word("evictable", "loose", r"\bloose\b", "A tensor that is loose."),
    Word("pinned", "held", where=("memplan",), reason="a plain verb in prose; a file's tensor that is held under another name"),
    Word(
        "in place, donated buffer",
        "takeover takeovers",
        r"\btake-?overs?\b|\bt(?:ake|akes|aken|aking) over\b|\btakes (?:its|an|the) [\w' ]{0,20}bytes over\b",
        "The result takes over its operand's bytes.",
    ),
    Word("in place, donated buffer", "taken", reason="a plain verb in prose; the noun has the row before"),
    Word(
        "start, end",
        "birth births death deaths begin begins",
        r"\b(?:births?|deaths?|born|dies|dying)\b",
        "Its birth, its death.",
        ("einsum_front", "memplan", "kernels", "exec.picture"),
        "the token that begins a text; a process and a thread die",
    ),
    Word(
        "live range",
        prose=r"\b(?:whose|known|half-open|longest|shortest|whole|its|their|a) (?:lives|life)\b",
        example="Buffers whose lives are known.",
        reason="a live range's own word is `live`, which is part of many good names",
    ),
    Word("end", "stop stops", reason="a plain verb in prose"),
    Word("start, end", "lower upper", reason="lower bounds are the field's; a clause may be higher or lower"),
    Word("output", "sink sinks", r"\bsinks?\b", "A sink is written once."),
    Word("host copy", "master masters", r"(?<!/)\bmasters?\b", "The host's master."),
    Word("ruin and recreate, exchange", "trade trades traded", r"\btrad(?:e|es|ed|ing)\b", "One interval is traded for another."),
    Word("rng, accepted", "dice dare dared", r"\b(?:dice|dare[sd]?)\b", "A worse one is dared."),
    Word(
        "Lagrange multipliers",
        "price prices",
        r"\bprices?\b",
        "At these prices.",
        ("memplan.residency", "memplan.bounds", "memplan.schedule"),
        "what evicting a tensor costs, by which the online planner orders its victims",
    ),
    Word("iterations", "market asking askings", r"\b(?:markets?|askings|dearer)\b", "Some of the askings."),
    Word(
        "violation",
        "fault faults",
        r"\bfaults?\b",
        "The judge finds a fault.",
        ("einsum_front", "memplan", "kernels", "exec.command", "exec.device", "exec.dispatch", "exec.planning", "exec.run"),
        "what is wrong with a file of weights",
    ),
    Word("well-formedness", "form forms", where=("memplan",), reason="the forms of an expression and of a call; a plain verb in prose"),
    Word(
        "last user",
        "owner owners",
        r"\bowners?\b",
        "The last owner of these bytes.",
        ("memplan.judge",),
        "whose bytes a region of an arena or a slot on the host is",
    ),
    Word("reachability", "path paths", where=("memplan.judge",), reason="files have paths"),
    Word(
        "lower bounds",
        "floor floors",
        r"\bfloors?\b",
        "Under its floor.",
        ("einsum_front", "memplan.bounds", "memplan.residency", "memplan.schedule", "exec"),
        "division that rounds down; packing's section floor is its literature's term",
    ),
    Word(
        "split range",
        "box boxes",
        r"\bbox(?:es)?\b",
        "The boxes that are open.",
        ("einsum_front.choose.best_first", "einsum_front.choose.lower_bound"),
        "a tile's range of indices along each axis, which is a box",
    ),
    Word("working set", "sizer sizers", r"\bsizers?\b", "The sizer's bytes."),
    Word(
        "describe",
        "spoken said notes",
        r"\bspoken\b",
        "The spoken name.",
        ("einsum_front",),
        "what a profile or a server has said",
    ),
    Word("tied weights", "tie ties", reason="a plain verb in prose"),
    Word(
        "partial definitions",
        "part parts",
        r"\bparts\b",
        "The parts of a value.",
        ("einsum_front.elaborate",),
        "the statements of which a job is made, and parts of anything else",
    ),
    Word("instruction list", "tape tapes", r"\btapes?\b", "The tape of a job."),
    Word("allocates a temporary", "hungry", r"\bhungry\b", "Calls that are hungry."),
    Word("event", "mark marks", r"\bmarks?\b", "It waits for a mark.", STREAMS, "YAML's marks in a text; a verb; a high-water mark"),
    Word("enqueue", "put puts", r"\bput(?:s|ting)?\b", "What is put on a stream.", STREAMS, "a plain verb"),
    Word("polled by the host, issued ahead", "poll polls issue", where=STREAMS, reason="the verb is the field's: a copy is issued"),
    Word(
        "preload, thread init", "bring brings enter enters", where=("exec",), reason="an interval enters a solution; a plain verb in prose"
    ),
    Word("queue heads", "head heads", where=STREAMS, reason="a list's first item, a table's first line, an attention head"),
    Word(
        "arguments",
        "words",
        r"\bwords (?:of|in) (?:the|its) command|\bcommand line's words\b",
        "The command line's words.",
        ("exec.api", "exec.planning", "exec.command", "exec.run"),
        "words of an error, of a file, of generated text",
    ),
    Word("logits", "answer answers", where=("exec.run",), reason="what a process that is asked sends back; a plain verb in prose"),
    Word("spinner", "waiting", where=("exec",), reason="variables of the slot LP; a plain verb in prose"),
)

STANDARD = re.compile(
    r"\b(?:(?:lower|upper) bounds?|prefetch leads?|shadow prices?|queue heads?|critical paths?|floor division|trade-offs?"
    r"|tie[- ]break\w*)\b",
    re.IGNORECASE,
)
"""Terms of the field that hold a word of WORDS."""

ALLOWED: dict[tuple[str, str], str] = {
    ("exec.dispatch.engine", "STOP_S"): "how long threads are given to end",
    ("exec.dispatch.engine", "stop"): "ends the run's threads",
    ("exec.measure.cpu", "stop"): "ends the copying threads",
}
"""(module, name or piece of prose) that a pattern of WORDS finds in another meaning, and which meaning."""


def sources(root: Path) -> Iterator[tuple[str, Path]]:
    """(dotted module below einpage, file)"""
    for folder in FOLDERS:
        for path in sorted(p for p in (root / folder).rglob("*.py") if "__pycache__" not in p.parts):
            yield ".".join(path.relative_to(root).with_suffix("").parts), path


def parts_of(name: str) -> set[str]:
    """`host` and `slots` for HostSlots, HOST_SLOTS and _host_slots; without what is part of a standard term."""
    words = " ".join(found.lower() for found in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name))
    return set(STANDARD.sub("", words).split())


def defined_names(module: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of all that a module defines, itself included."""
    yield from ((1, name) for name in module.split("."))
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.MatchMapping(rest=str(name)) | ast.alias(asname=str(name)):
                yield node.lineno, name


def prose_of(text: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, text on one line) of every docstring, comment and constant text of several words."""
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and (id(node) in docs or len(node.value.split()) > 1):
            yield node.lineno, " ".join(node.value.split())
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def is_in(module: str, places: tuple[str, ...]) -> bool:
    return any(f"{module}.".startswith(f"{place}.") for place in places)


Finding = tuple[str, str, str]
"""(module, name or piece of prose, what to say)"""


@cache
def names_in(module: str, text: str) -> tuple[tuple[int, str], ...]:
    return tuple(defined_names(module, ast.parse(text)))


@cache
def prose_in(text: str) -> tuple[tuple[int, str], ...]:
    return tuple(prose_of(text, ast.parse(text)))


def name_findings(root: Path, rows: tuple[Word, ...] = WORDS) -> Iterator[Finding]:
    for module, path in sources(root):
        words = [(set(w.names.split()), w.but) for w in rows if is_in(module, w.where)]
        for line, name in names_in(module, path.read_text(encoding="utf-8")):
            for bad, but in words:
                if bad & parts_of(name):
                    yield module, name, f"{path.relative_to(root)}:{line} `{name}`: {but}"


def prose_findings(root: Path, rows: tuple[Word, ...] = WORDS) -> Iterator[Finding]:
    for module, path in sources(root):
        words = [(re.compile(w.prose, re.IGNORECASE), w.but) for w in rows if w.prose and is_in(module, w.where)]
        for line, prose in prose_in(path.read_text(encoding="utf-8")):
            for pattern, but in words:
                for found in pattern.finditer(STANDARD.sub(lambda term: "." * len(term[0]), prose)):
                    around = prose[max(0, found.start() - 40) : found.end() + 40]
                    yield module, around, f"{path.relative_to(root)}:{line} …{around}…: {but}"


FINDINGS = {"names": name_findings, "prose": prose_findings}


@cache
def findings_here(kind: str) -> tuple[Finding, ...]:
    return tuple(FINDINGS[kind](ROOT))


def permits(kind: str, module: str, text: str) -> list[tuple[str, str]]:
    """The exceptions that cover a finding."""
    return [(m, part) for m, part in ALLOWED if m == module and (part == text if kind == "names" else " " in part and part in text)]


def classes(root: Path) -> dict[str, list[str]]:
    """By class or alias name (without leading underscores), the modules that define it."""
    modules_by_name: dict[str, list[str]] = {}
    for module, path in sources(root):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        for node in tree.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if re.match("_*[A-Z].*[a-z]", name):
                    names.append(name)
        for name in names:
            modules_by_name.setdefault(name.lstrip("_"), []).append(module)
    return modules_by_name


def doubles(root: Path) -> list[str]:
    return [f"{name}: {', '.join(modules)}" for name, modules in classes(root).items() if len(modules) > 1]


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("kind", FINDINGS)
def test_words(kind: str, folder: str) -> None:
    found = [say for module, text, say in findings_here(kind) if is_in(module, (folder,)) and not permits(kind, module, text)]
    assert not found, "\n".join(found)


def test_exceptions_are_needed() -> None:
    used = {entry for kind in FINDINGS for module, text, _ in findings_here(kind) for entry in permits(kind, module, text)}
    assert set(ALLOWED) == used


def test_a_class_name_is_one_thing() -> None:
    assert doubles(ROOT) == []


def plant(root: Path, module: str, text: str) -> None:
    path = (root / module.replace(".", "/")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_every_exception_has_a_reason() -> None:
    assert [w.but for w in WORDS if w.needs_reason and not w.reason] == []
    assert [w.but for w in WORDS if w.reason and not w.needs_reason] == []


def is_scope_needed(root: Path, word: Word) -> bool:
    """Whether the word occurs outside its row's `where`."""
    everywhere = replace(word, where=FOLDERS)
    found = [module for find in FINDINGS.values() for module, _, _ in find(root, (everywhere,))]
    return any(not is_in(module, word.where) for module in found)


@pytest.mark.parametrize("word", [w for w in WORDS if w.where != FOLDERS], ids=lambda w: w.names or w.example)
def test_a_narrow_scope_is_needed(word: Word) -> None:
    assert is_scope_needed(ROOT, word), f"{word.names}: occurs nowhere else, so look for it everywhere"


def test_a_scope_that_is_not_needed_is_found(tmp_path: Path) -> None:
    word = Word("end", "stop", where=("exec",), reason="an example")
    plant(tmp_path, "exec.a", "def stop(): ...\n")
    assert not is_scope_needed(tmp_path, word)
    plant(tmp_path, "memplan.a", "def stop(): ...\n")
    assert is_scope_needed(tmp_path, word)


@pytest.mark.parametrize("word", [w for w in WORDS if w.names], ids=lambda w: w.names)
def test_a_planted_name_is_found(word: Word, tmp_path: Path) -> None:
    """As a class, a function, a parameter, a field, a local, an attribute, a capture, a module; not where it is only used."""
    bad = word.names.split()[-1]
    module = f"{word.where[0]}.a"
    for text in (
        f"class Some{bad.title()}:\n    pass\n",
        f"def some_{bad}():\n    pass\n",
        f"def f({bad}_s):\n    pass\n",
        f"class A:\n    {bad}: int\n",
        f"def f():\n    for {bad}, b in ():\n        pass\n",
        f"def f(self):\n    self.{bad} = 1\n",
        f"def f(a):\n    match a:\n        case [{bad}, *_]:\n            pass\n",
    ):
        plant(tmp_path, module, text)
        assert len(list(name_findings(tmp_path))) == 1, text
    plant(tmp_path, module, f"def f(a):\n    return a.{bad}, {bad}, 'some {bad}', a({bad}=1)\n")
    assert list(name_findings(tmp_path)) == []
    plant(tmp_path, f"{word.where[0]}.{bad}_b", "")
    assert len(list(name_findings(tmp_path))) == 1


@pytest.mark.parametrize("word", [w for w in WORDS if w.prose], ids=lambda w: w.example)
def test_planted_prose_is_found(word: Word, tmp_path: Path) -> None:
    """In a docstring, under a field, in a comment, in an error's text."""
    for text in (
        f'"""First.\n\n{word.example}"""\n',
        f'class A:\n    a: int\n    """{word.example}"""\n',
        f"a = 1  # {word.example}\n",
        f'def f(a):\n    raise ValueError(f"{{a}} {word.example}")\n',
    ):
        plant(tmp_path, f"{word.where[0]}.a", text)
        assert any(word.but in say for _, _, say in prose_findings(tmp_path)), text


def test_a_planted_double_is_found(tmp_path: Path) -> None:
    plant(tmp_path, "memplan.a", "class Both:\n    pass\n\nOnce = int\nTwice = int\n")
    plant(tmp_path, "exec.a", "class _Both:\n    pass\n\nTwice: type = float\nONCE = 1\n")
    assert doubles(tmp_path) == ["Both: memplan.a, exec.a", "Twice: memplan.a, exec.a"]
