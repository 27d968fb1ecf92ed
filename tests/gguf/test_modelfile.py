"""Ollama's template says what the model's own chat template says, or is left out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from handlers.gguf import modelfile
from handlers.texts import chat
from handlers.texts.rows import Turn

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('no') }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|system|>You are helpful.<|end|>' }}{% endif %}"
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
NUMBERED = (
    "{% for message in messages %}{{ loop.index }}: {{ message['content'] }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
THINKING = (
    "{% for message in messages %}{% if message.role == 'assistant' and not loop.last %}<a>{{ message.content.split('</t>')[-1] }}</a>"
    "{% else %}<{{ message.role }}>{{ message.content }}</{{ message.role }}>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def placed(folder: Path, template: str | None) -> Path:
    """A model's folder with the template alone."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def in_go(template: str, turns: list[Turn]) -> str:
    """What Go makes of a template of this form: a range over messages with a chain of comparisons of their role, and text behind it."""
    found = re.fullmatch(r"\{\{ range \.Messages \}\}(.*)\{\{ end \}\}\{\{ end \}\}(.*)", template, re.DOTALL)
    assert found is not None
    parts = re.findall(r'\{\{ (?:if|else if) eq \.Role "(\w+)" \}\}(.*?)\{\{ \.Content \}\}(.*?)(?=\{\{ else if|\Z)', found[1], re.DOTALL)
    around = {role: (before, behind) for role, before, behind in parts}
    return "".join(around[turn.role][0] + turn.content + around[turn.role][1] for turn in turns if turn.role in around) + found[2]


@pytest.mark.parametrize(("name", "template"), [("chatml", CHATML), ("llama 3", LLAMA3), ("inst", INST), ("gemma", GEMMA)])
def test_the_template_in_ollamas_language_writes_what_the_models_own_writes(tmp_path: Path, name: str, template: str) -> None:
    source = placed(tmp_path / "source", template)
    assert modelfile.write(tmp_path, ["model.gguf"], source, 2048, ["</s>"], "<s>") is True
    text = (tmp_path / "Modelfile").read_text()
    assert text.startswith('FROM ./model.gguf\nPARAMETER num_ctx 2048\nPARAMETER stop "</s>"\n')
    (written,) = re.findall(r'TEMPLATE """(.*)"""', text, re.DOTALL)
    own = chat.read([source], source)
    assert own is not None
    turns = [Turn("user", "What is  1 + 1?"), Turn("assistant", "2\nsurely"), Turn("user", "And 2 + 2?")]
    if name in ("chatml", "llama 3"):
        turns = [Turn("system", "Be short."), *turns]
    assert in_go(written, turns) == own.render(turns, answer=True).removeprefix("<s>")


@pytest.mark.parametrize(
    "template", [DEFAULT_SYSTEM, NUMBERED, THINKING, "{{ messages[0].content }}", CHATML.replace("im_end", "{{im_end")]
)
def test_a_template_that_depends_on_more_than_roles_is_left_to_ollama(tmp_path: Path, template: str) -> None:
    source = placed(tmp_path / "source", template)
    assert modelfile.write(tmp_path, ["model.gguf"], source, 9999, [], "") is False
    text = (tmp_path / "Modelfile").read_text()
    assert "TEMPLATE" not in text and "num_ctx 4096" in text


def test_a_start_that_llama_cpp_does_not_write_is_not_left_out(tmp_path: Path) -> None:
    source = placed(tmp_path / "source", LLAMA3)
    assert modelfile.write(tmp_path, ["model.gguf"], source, 2048, [], "") is False, "the file would not say <s>, and Ollama neither"


def test_a_model_without_a_template_is_given_the_prompt_as_it_is(tmp_path: Path) -> None:
    source = placed(tmp_path / "source", None)
    assert modelfile.write(tmp_path, ["model.gguf"], source, 2048, ['a "b"'], "") is None
    text = (tmp_path / "Modelfile").read_text()
    assert 'TEMPLATE """{{ .Prompt }}"""' in text and r'stop "a \"b\""' in text
