"""Chat templates: rendered as transformers renders them, found where checkpoints keep them, and harmless where they are hostile."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from time import perf_counter

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from einpage.checkpoints.files.checkpoint import WeightError
from einpage.checkpoints.text.chat_template import ChatTemplate, Message, TemplateError, load_template
from einpage.checkpoints.text.render_template import render
from smollm2 import smollm2_path

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
HEADERS = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\nYear: " + strftime_now("%Y") + "\\n" + system_message + "<|eot|>" }}
{%- for message in messages %}
    {{- '<|start|>' + message['role'] + '<|end|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""
BRACKETS = """\
{%- if messages[0]['role'] == 'system' -%}{%- set loop_messages = messages[1:] -%}{%- set system = messages[0]['content'] -%}
{%- else -%}{%- set loop_messages = messages -%}{%- set system = false -%}{%- endif -%}
{%- for message in loop_messages -%}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('roles must alternate') }}{%- endif -%}
{%- if loop.index0 == 0 and system is not false -%}{%- set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] -%}
{%- else -%}{%- set content = message['content'] -%}{%- endif -%}
{%- if message['role'] == 'user' -%}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message['role'] == 'assistant' -%}{% generation %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endgeneration %}{%- endif -%}
{%- endfor -%}
"""
TURNS = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}
{% for message in messages %}
{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}
"""
SPACES = """\
{% set ns = namespace(found=false, count=0) %}
{% for message in messages %}
    {% if message.role == 'system' and not ns.found %}{% set ns.found = true %}{{ message | tojson(indent=2) }}{% continue %}{% endif %}
    {% set ns.count = ns.count + 1 %}
    {% if ns.count > 6 %}{% break %}{% endif %}
<|{{ message.role }}|>{{ ns.count }}
    {{ message.content }}<|end|>
{% endfor %}
{%- if add_generation_prompt -%}<|assistant|>{%- else -%}{{ eos_token }}{%- endif %}
"""
TEMPLATES = {
    "smollm2": load_template(str(smollm2_path())).source,
    "headers": HEADERS,
    "brackets": BRACKETS,
    "turns": TURNS,
    "spaces": SPACES,
}
WORDS = ("Hello", " a\n b ", "é𝔸", "<|im_end|>", "{{ 7 * 7 }}", "", "\\n", "'\"", "\t", "x" * 300)


def dialogue(name: str, seed: int) -> list[Message]:
    random = Random(seed)
    messages: list[Message] = []
    if name not in ("turns",) and random.random() < 0.5:
        messages.append({"role": "system", "content": random.choice(WORDS)})
    for n in range(random.randint(1, 8)):
        content = " ".join(random.choices(WORDS, k=random.randint(1, 4)))
        messages.append({"role": ("user", "assistant")[n % 2], "content": content})
    return messages


@pytest.mark.parametrize("name", TEMPLATES)
def test_dialogues_are_rendered_as_transformers_does(name: str) -> None:
    for seed in range(50):
        messages, opens = dialogue(name, seed), seed % 3 > 0
        variables = {**TOKENS, "messages": messages, "add_generation_prompt": opens}
        (wanted,), _ = render_jinja_template([list(messages)], chat_template=TEMPLATES[name], add_generation_prompt=opens, **TOKENS)
        assert render(TEMPLATES[name], variables) == wanted
        if seed < 2:
            assert ChatTemplate(TEMPLATES[name], TOKENS).render(messages, opens_answer=opens) == wanted


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "too much time or memory"),
        ("{{ 'a' * 10 ** 10 }}", "MemoryError"),
        (  # eight times as long each time: memory ends it long before time does, on slow machines too
            "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x" + " ~ ns.x" * 7 + " %}{% endfor %}{{ ns.x }}",
            "MemoryError",
        ),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError"),
        ("{% include '/etc/passwd' %}", "TypeError"),
        ("{{ raise_exception('only two roles') }}", "only two roles"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "RecursionError"),
        ("{{ nothing.at_all }}", "UndefinedError"),
    ],
)
def test_a_hostile_template_is_refused(source: str, told: str) -> None:
    began = perf_counter()
    with pytest.raises(TemplateError, match=told) as refused:
        ChatTemplate(source, TOKENS).render([{"role": "user", "content": "Hi"}])
    assert len(str(refused.value).splitlines()) == 1 and perf_counter() - began < 30


def test_where_templates_are_found(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(TemplateError, match="has no chat template"):
        load_template(str(tmp_path))
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({"bos_token": {"content": "<b>"}, "eos_token": "<e>", "pad_token": None, "chat_template": "one"}))
    assert load_template(str(tmp_path)) == ChatTemplate("one", {"bos_token": "<b>", "eos_token": "<e>"})
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert load_template(str(tmp_path / "model.safetensors")).source == "two"
    (tmp_path / "chat_template.jinja").write_text("three", encoding="utf-8")
    assert load_template(str(tmp_path)).source == "three"
    (tmp_path / "chat_template.jinja").unlink()
    for damaged in ("[", "[]"):
        config.write_text(damaged)
        with pytest.raises(WeightError, match="tokenizer_config"):
            load_template(str(tmp_path))


def test_the_real_models_template_has_its_tokens() -> None:
    found = load_template(str(smollm2_path()))
    assert found.tokens["bos_token"] == "<|im_start|>" and found.tokens["eos_token"] == "<|im_end|>"
    text = found.render([{"role": "user", "content": "Hi"}])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant") and text.endswith("<|im_start|>assistant\n")
