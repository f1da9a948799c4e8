"""Chat templates: a dialogue as the text that a checkpoint was trained on, by the template that it carries.

In: messages with a role and a text. Out: the text before the next answer. The template is that of a GGUF's metadata, of chat_template.jinja
or of tokenizer_config.json. It is a program that somebody else wrote: jinja2's sandbox renders it, in a process of its own that may take so
much time and memory and no more (render_template.py).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.files.gguf import open_gguf
from einpage.checkpoints.text.tokenizer import MOST_CONFIG
from einpage.einsum_front.base.errors import UsageError, one_line
from einpage.einsum_front.base.files import read_bytes
from einpage.einsum_front.base.json_text import JsonError, parsed

Message: TypeAlias = Mapping[str, str]
"""`role` (system, user or assistant) and `content`."""

LONGEST_S = 20.0
"""How long a template may be rendered; its own process may compute for a tenth of it."""
_RENDERER = Path(__file__).with_name("render_template.py")


class TemplateError(UsageError):
    """A checkpoint without a template, or one that cannot be rendered."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    source: str
    """In jinja2's language."""
    tokens: Mapping[str, str]
    """Texts of special tokens by the names under which templates use them: `bos_token`, `eos_token` …"""

    def render(self, messages: Sequence[Message], *, opens_answer: bool = True) -> str:
        """The text of a dialogue; `opens_answer` adds what comes before the assistant's next words. Raises TemplateError."""
        variables = {**self.tokens, "messages": list(messages), "add_generation_prompt": opens_answer}
        asked = {"source": self.source, "variables": variables}
        words = [sys.executable, "-I", str(_RENDERER)]
        try:
            ran = subprocess.run(words, input=json.dumps(asked).encode(), capture_output=True, timeout=LONGEST_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise TemplateError("the chat template takes too long: it may never end") from error
        try:
            found = json.loads(ran.stdout)
        except ValueError as error:
            raise TemplateError("the chat template takes too much time or memory, and was ended") from error
        if "text" in found:
            return str(found["text"])
        raise TemplateError(f"the chat template cannot be rendered: {one_line(str(found.get('error')), 300)}")


def load_template(where: str) -> ChatTemplate:
    """The chat template of the checkpoint that `--weights` names. Raises TemplateError where there is none, WeightError for a broken
    file."""
    path = Path(where)
    if path.suffix == ".gguf":
        return _of_gguf(path)
    folder = path if path.is_dir() else path.parent
    config = _json(folder / "tokenizer_config.json")
    tokens = {name: text for name in config if name.endswith("_token") and (text := _token_text(config[name])) is not None}
    file = folder / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate(read_bytes(file, MOST_CONFIG).decode("utf-8", "replace"), tokens)
    source = _named_default(config.get("chat_template"))
    if source is not None:
        return ChatTemplate(source, tokens)
    ggufs = sorted(path.glob("*.gguf")) if path.is_dir() and not any(path.glob("*.safetensors")) else []
    if len(ggufs) == 1:
        return _of_gguf(ggufs[0])
    raise TemplateError(f"{where} has no chat template: `einpage generate` goes on with a text as it is")


def _of_gguf(path: Path) -> ChatTemplate:
    file = open_gguf(path)
    source = file.metadata.get("tokenizer.chat_template")
    if not isinstance(source, str):
        raise TemplateError(f"{path} has no chat template: `einpage generate` goes on with a text as it is")
    texts = file.array("tokenizer.ggml.tokens") or []
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in names.items()}
    return ChatTemplate(source, {name: str(texts[n]) for name, n in ids.items() if isinstance(n, int) and 0 <= n < len(texts)})


def _json(path: Path) -> Mapping[str, object]:
    if not path.is_file():
        return {}
    try:
        found = parsed(read_bytes(path, MOST_CONFIG))
    except JsonError as error:
        raise WeightError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise WeightError(f"{path}: expected a mapping of keys to values")
    return found


def _token_text(value: object) -> str | None:
    """Of a token as configurations have it: its text, or a mapping with that under `content`."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _named_default(templates: object) -> str | None:
    """One template, or of several the one called `default`."""
    if isinstance(templates, list):
        named = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
        templates = named.get("default")
    return templates if isinstance(templates, str) else None
