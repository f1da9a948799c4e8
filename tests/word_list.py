"""The table of words that were once used here in a meaning of their own, for test_words."""

from __future__ import annotations

from dataclasses import dataclass

FOLDERS = ("einsum_front", "checkpoints", "memplan", "kernels", "exec")
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
