"""A checkpoint's own metadata against a spec: the sizes and scalars they give, and whether their math is the spec's.

In: a Document and an opened Checkpoint. Out: settings for `elaborate`, and warnings; or one WeightError with all that asks for other math.
Every key of the metadata is accounted for by the spec's `config:` or `assume:`, or has a row in metadata_keys.yaml, or is said to be
unknown: weights that fit a spec say nothing of activations, scales and positions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf, isclose
from operator import ge, gt, le, lt

from einpage.checkpoints.files.checkpoint import Checkpoint, WeightError, some_of_each
from einpage.checkpoints.files.random import RandomWeights
from einpage.checkpoints.match.metadata_keys import (
    AbsentKey,
    Harmless,
    MathKey,
    MetadataScalar,
    general_key,
    left_out,
    metadata_keys,
    row_of,
    same_word,
)
from einpage.einsum_front.algebra import arithmetic
from einpage.einsum_front.algebra.expr import Name, Num
from einpage.einsum_front.base.dtype import DType
from einpage.einsum_front.base.errors import SpecError, listing
from einpage.einsum_front.graph.program import Program
from einpage.einsum_front.spec.document import ConfigKey, Document, states_of
from einpage.einsum_front.spec.parse import parse_expression
from einpage.einsum_front.spec.sizes import Evaluator, Setting, override, without_lists
from einpage.einsum_front.spec.source import Snippet

POSITIONS = "positions"
"""What the table of keys calls the number of positions that a query may see."""
_CLOSE = 1e-6
"""Relative: metadata are float32 in GGUF, and 1 / sqrt(head) is written with as many digits as someone liked."""


_COMPARE_BY_SIGN: Mapping[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}


def spec_settings(document: Document, checkpoint: Checkpoint, set_already: Collection[str] = ()) -> dict[str, Setting]:
    """Sizes, scalars and lists that a spec's `config:` takes from a checkpoint: for each name, the first of its keys that the metadata has,
    else the first that the model which they name may leave out. A name with none of them keeps the spec's own value; those `set_already`
    are not looked for. For a size or a scalar, a list that is one value again and again is that value.

    Raises WeightError where a key holds no finite number, for a size none
    that is whole and at least 1, for a list no list of numbers; SpecError where `values:` has no number for what it holds.
    """
    metadata = checkpoint.config()
    sizes, lists = {entry.name for entry in document.sizes}, {entry.name for entry in document.lists}
    absent = {key: entry.value for entry in left_out(metadata) for key in entry.keys}
    settings: dict[str, Setting] = {}
    for name, keys in document.config.items():
        own = [key for key in keys if _is_of(key.key, metadata)]
        given = next(((key, held[key.key]) for held in (metadata, absent) for key in own if held.get(key.key) is not None), None)
        if given is None or name in set_already:
            continue
        key, value = given
        said = f"the checkpoint's `{key.key}` is {_shown(value)}; the spec's"
        if name in lists:
            if not isinstance(value, list):
                raise WeightError(f"{said} list `{name}` is taken from it and needs a list")
            settings[name] = tuple(_as_number(item, key, document, f"{said} list `{name}`", truths=True) for item in value)
            continue
        value = _of_every_layer(value)
        if isinstance(value, list):
            cure = "what differs from layer to layer, a spec reads into its `lists:`"
            raise WeightError(f"{said} `{name}` is taken from it and needs one number, the same in every layer; {cure}")
        number = _as_number(value, key, document, f"{said} `{name}`")
        if name in sizes and (number < 1 or number != int(number)):
            raise WeightError(f"{said} size `{name}` is taken from it and needs a whole number, at least 1")
        settings[name] = number
    return settings


def _of_every_layer(value: object) -> object:
    """Of a list that is one value again and again, that value; anything else as it is."""
    if not isinstance(value, list) or not value:
        return value
    first = value[0]
    return first if all(type(item) is type(first) and item == first for item in value) else value


def _as_number(value: object, key: ConfigKey, document: Document, said: str, truths: bool = False) -> int | float:
    """The number that a value of `key` is or, by `values:`, stands for; `truths` are numbers where asked for."""
    if key.values:
        found = next((number for word, number in key.values if _is_word(value, word)), None)
        if found is None:
            message = f"the checkpoint's `{key.key}` holds {_shown(value)}, for which there is no number here"
            raise document.source.error(key.span, message, expected=" or ".join(word for word, _ in key.values), cure="add it to `values:`")
        return found
    if isinstance(value, bool) and truths:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -inf < value < inf:
        raise WeightError(f"{said} is taken from it and needs {'numbers' if truths else 'a number'}")
    if DType.FP32.is_exceeded_by(value):
        raise WeightError(f"{said} is taken from it and computed in fp32: the number is beyond fp32")
    return value


def check_metadata(document: Document, checkpoint: Checkpoint, settings: Mapping[str, Setting]) -> tuple[str, ...]:
    """Warnings about metadata that nobody here knows; `settings` give sizes and scalars as they will be.

    Raises WeightError where the metadata say what the spec's `assume:` rules out, or hold a key that is known to change the math and that
    no line of the spec accounts for: the weights would fit, and the results be wrong. A spec without weights takes none of its math.
    """
    if not document.reads_weights:
        return ()
    metadata = checkpoint.config()
    entries = override((*document.sizes, *document.scalars), without_lists(document.lists, settings))
    evaluator = Evaluator(entries, _positions(document, Evaluator(entries)))
    accounted = {key.key for keys in document.config.values() for key in keys if _is_of(key.key, metadata)}
    absent = {_named_by(document, accounted, entry): entry for entry in left_out(metadata)}
    given = {**metadata, **{key: entry.value for key, entry in absent.items() if entry.model is not None or key in accounted}}
    said = {key: _said(key, value, absent.get(key)) for key, value in given.items()}
    refused = [*_about_rope_given_twice(metadata)]
    left: dict[str, object] = {}
    for key, value in given.items():
        if _is_empty(value):
            continue
        allowed = _assumed(document, key)
        if allowed is not None:
            if not _is_allowed(value, allowed, evaluator):
                only = f"for {' or '.join(_as_read(word, evaluator) for word in allowed)}" if allowed else "only without it"
                refused.append(f"{said[key]}; the spec is right {only}")
        elif key not in accounted:
            left[key] = value
    unaccounted, unknown = _judged(left, given, evaluator)
    refused += [f"{said[key]}, and changes {row.changes}; no line of the spec accounts for it" for key, row in unaccounted]
    if refused:
        lines = ", ".join(f"{key}: {_written(left[key])}" for key, _ in unaccounted)
        cure = (
            [f"where the spec's math is right for these values, it says so: `assume: {{{lines}}}`"]
            if len(refused) == len(unaccounted)
            else []
        )
        opening = "this checkpoint's metadata ask for other math than the spec's (see `assume:` there)"
        raise WeightError("\n  ".join([opening, *some_of_each(refused), *cure]))
    return (
        *_about_unknown(unknown, left),
        *_about_no_metadata(document, checkpoint, metadata),
        *_about_own_values(document, metadata, settings, evaluator),
    )


def _is_of(key: str, metadata: Mapping[str, object]) -> bool:
    """Whether readers of such a checkpoint look for `key`: in a GGUF they look under its architecture's name alone."""
    architecture = metadata.get("general.architecture")
    return architecture is None or key.startswith((f"{architecture}.", "general.", "tokenizer."))


def _about_rope_given_twice(metadata: Mapping[str, object]) -> Iterator[str]:
    """transformers takes `rope_scaling` in place of all of `rope_parameters`; others take both."""
    scaling, parameters = (
        {key.removeprefix(f"{word}."): value for key, value in metadata.items() if key.startswith(f"{word}.")}
        for word in ("rope_scaling", "rope_parameters")
    )
    if scaling and parameters and scaling != parameters:
        yield "`rope_scaling` and `rope_parameters` are both given and differ, and readers do not agree on which one counts; leave one out"


def tied_weights_warnings(program: Program, present: Collection[str], checkpoint: Checkpoint) -> tuple[str, ...]:
    """Warnings where the metadata say that weights are tied and the tensors `present` say that they are not, or the other way round."""
    tied = checkpoint.config().get("tie_word_embeddings")
    if not isinstance(tied, bool):
        return ()
    found: list[str] = []
    for weight in program.weights:
        own = next((source.name for source in weight.sources if source.name in present), None)
        if weight.fallback is not None and tied and own is not None:
            found.append(
                f"`tie_word_embeddings` is true, but the checkpoint holds {own}: that is what the spec's `{weight.base}` is read from"
            )
        if weight.fallback is not None and not tied and own is None:
            found.append(
                f"`tie_word_embeddings` is false, but the checkpoint has no {weight.sources[0].name}: {weight.fallback} stands in for it"
            )
    return tuple(found)


def _about_unknown(unknown: list[str], left: Mapping[str, object]) -> Iterator[str]:
    if unknown:
        said = listing(f"`{key}` is {_shown(left[key])}" for key in unknown)
        yield f"the checkpoint says what neither the spec nor einpage knows, and what may ask for other math: {said}; see `assume:`"


def _about_no_metadata(document: Document, checkpoint: Checkpoint, metadata: Mapping[str, object]) -> Iterator[str]:
    if not metadata and document.config and not isinstance(checkpoint, RandomWeights):
        yield "the checkpoint has no metadata (no config.json beside it): sizes and scalars are the spec's own, and so may its math be"
    elif metadata and "model_type" in document.assume and not any(isinstance(metadata.get(key), str) for key in metadata_keys().names):
        yield "the checkpoint's metadata name no model (`model_type`): whether its math is the spec's cannot be known from them"


def _about_own_values(
    document: Document, metadata: Mapping[str, object], settings: Mapping[str, Setting], evaluator: Evaluator
) -> Iterator[str]:
    """What a checkpoint should have said and does not, where its tensors will not tell either.

    Where a spec has keys of Hugging Face alone, no GGUF should: the number is the spec's on purpose. A null says that there is none,
    so that what the spec makes of its other numbers is right.
    """
    own: list[str] = []
    made = {entry.name for entry in (*document.sizes, *document.scalars) if not isinstance(entry.expr, Num)}
    for name, keys in document.config.items():
        rows = [row_of(general_key(key.key, metadata.get("general.architecture"))) for key in keys]
        if not any(_is_of(key.key, metadata) for key in keys):
            continue
        if name in made and any(key.key in metadata and metadata[key.key] is None for key in keys):
            continue
        if metadata and name not in settings and not any(isinstance(row, Harmless) for row in rows):
            value = f" = {evaluator.value(name)}" if evaluator.knows(name) else ""
            own.append(f"`{name}`{value} ({' or '.join(key.key for key in keys)})")
    if own:
        yield f"the checkpoint does not say, so the spec's own is taken: {listing(own)}; where that is wrong, say --set NAME=VALUE"


def _positions(document: Document, evaluator: Evaluator) -> dict[str, arithmetic.Number]:
    """How many positions a query may see, for the table of keys: those of a run, or of the axes along which states are written."""
    along = {state.along[0] for state in states_of(document) if state.along is not None}
    sizes = [evaluator.number(axis.expr, axis.source) for axis in document.axes if axis.name in along]
    sizes += [evaluator.value("seq")] if evaluator.knows("seq") else []
    return {POSITIONS: max(sizes)} if sizes and not evaluator.knows(POSITIONS) else {}


def _named_by(document: Document, accounted: Collection[str], absent: AbsentKey) -> str:
    """Of the keys of what is left out, the one that the spec has a line for; else the first."""
    return next((key for key in absent.keys if key in accounted or _assumed(document, key) is not None), absent.keys[0])


def _assumed(document: Document, key: str) -> tuple[Snippet, ...] | None:
    """What `assume:` allows for `key`; None where no line of it has the key."""
    return next((allowed for under, allowed in document.assume.items() if key == under or key.startswith(f"{under}.")), None)


def _said(key: str, value: object, absent: AbsentKey | None) -> str:
    return f"`{key}` is {_shown(value)}" if absent is None else f"`{key}` is left out, which for {absent.model} means {_shown(value)}"


def _as_read(word: Snippet, evaluator: Evaluator) -> str:
    """An allowed value for a message; a condition with its number."""
    sign = _sign(word.text)
    return word.text if sign is None else f"{word.text} ({_limit(word, sign, evaluator)})"


def _judged(
    left: Mapping[str, object], metadata: Mapping[str, object], evaluator: Evaluator
) -> tuple[list[tuple[str, MathKey]], list[str]]:
    """Of keys that no line of the spec accounts for: those that change the math here, each with its row, and those that are unknown."""
    architecture = metadata.get("general.architecture")
    unaccounted: list[tuple[str, MathKey]] = []
    unknown: list[str] = []
    for key, value in left.items():
        general = general_key(key, architecture)
        found = row_of(general)
        if found is None:
            unknown.append(key)
        elif isinstance(found, MathKey) and not (
            _is_neutral(value, found, evaluator) or _is_unread(key, general, found, metadata, evaluator)
        ):
            unaccounted.append((key, found))
    return unaccounted, unknown


def _is_neutral(value: object, row: MathKey, evaluator: Evaluator) -> bool:
    """Whether a value, or every element of a list, is one under which a key changes nothing."""
    if isinstance(value, list):
        return all(_is_neutral(item, row, evaluator) for item in value)
    return any(_meets(value, word, evaluator) for word in row.neutral)


def _meets(value: object, word: MetadataScalar, evaluator: Evaluator) -> bool:
    """Whether a value is what a row says, a word or a condition. A condition over what the spec has not is not met."""
    if not isinstance(word, str) or _sign(word) is None:
        return value == word
    try:
        return _says(value, Snippet.alone(word), evaluator)
    except SpecError:
        return False


def _is_unread(key: str, general: str, row: MathKey, metadata: Mapping[str, object], evaluator: Evaluator) -> bool:
    """Whether another key of the same mapping switches this one off."""
    start = key[: -len(general.removeprefix("{arch}"))]
    others = ((metadata.get(start + other.removeprefix("{arch}")), values) for other, values in row.unless)
    return any(_meets(value, allowed, evaluator) for value, values in others for allowed in values)


def _is_empty(value: object) -> bool:
    """Whether a key holds nothing: null, no element, no letter."""
    return value is None or value in ([], "")


def _is_allowed(value: object, allowed: tuple[Snippet, ...], evaluator: Evaluator) -> bool:
    """Whether a value, or every element of a list, is one of those that `assume:` allows. Raises SpecError."""
    if isinstance(value, list):
        return all(_is_allowed(item, allowed, evaluator) for item in value)
    return any(_says(value, word, evaluator) for word in allowed)


def _says(value: object, word: Snippet, evaluator: Evaluator) -> bool:
    """Whether `value` is what `word` says in a spec: text, a truth, a number over sizes and scalars, or `>=` such a number.

    Raises SpecError for an expression that has no value.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _is_word(value, word.text)
    sign = _sign(word.text)
    if sign is not None:
        return _COMPARE_BY_SIGN[sign](value, _limit(word, sign, evaluator))
    number = _number(word, evaluator)
    return number is not None and isclose(number, value, rel_tol=_CLOSE)


def _is_word(value: object, word: str) -> bool:
    """Whether `value` is what a plain `word` says: text, a truth or a number."""
    if isinstance(value, bool):
        return word.lower() in (str(value).lower(), str(int(value)))
    if isinstance(value, int | float):
        try:
            return float(word) == value
        except ValueError:
            return False
    return same_word(str(value), word)


def _sign(word: str) -> str | None:
    """The comparison with which a condition begins, as `>= seq`; None for a word or a number."""
    return next((sign for sign in _COMPARE_BY_SIGN if word.startswith(sign)), None)


def _limit(word: Snippet, sign: str, evaluator: Evaluator) -> float:
    """The number that a condition compares with. Raises SpecError."""
    limit = word.part(len(sign), len(word.text))
    return evaluator.number(parse_expression(limit), limit.source)


def _number(word: Snippet, evaluator: Evaluator) -> float | None:
    """The number that a word stands for; None where it is a word like any other, as `silu`."""
    try:
        expr = parse_expression(word)
    except SpecError:
        return None
    if isinstance(expr, Name) and not evaluator.knows(expr.word):
        return None
    return evaluator.number(expr, word.source)


def _shown(value: object) -> str:
    """A value for a message: a long list or table is cut."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _written(value: object) -> str:
    """A value as YAML has it; of a list that is one value again and again, that value."""
    if isinstance(value, list):
        distinct = list(dict.fromkeys(map(str, value)))
        return distinct[0] if len(distinct) == 1 else f"[{', '.join(distinct)}]"
    if isinstance(value, dict):
        return _shown(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
