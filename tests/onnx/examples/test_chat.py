"""A chat model's ONNX folder answers a question as transformers does with the model's own chat template."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handlers.folder.examples import CHAT, place_beside
from tests import models
from tests.onnx.conftest import Exported

QUESTION = "How are you? <b>ü</b>"
MESSAGES = [{"role": "user", "content": QUESTION}]
TEMPLATES = {
    "plain": models.CHAT_TEMPLATE,
    "turns": "{% for message in messages %}\n  {{ bos_token or '' }}[{{ message.role }}] {{ message['content'] | trim }}{{ eos_token }}\n"
    "{% endfor %}\n{% if add_generation_prompt %}\n[assistant]\n{% endif %}\n",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}{% endfor %}",
    "json": "{{ messages | tojson }}{{ messages | tojson(indent=2) }}{% if tools %}tools{% endif %}{{ documents is none }}",
    "loops": "{% for m in messages %}{% if m.role != 'user' %}{% continue %}{% endif %}{{ m.content }}{% break %}{% endfor %}",
    "names": "{% set ns = namespace(seen=false) %}{% for m in messages %}{% set ns.seen = true %}{% endfor %}{{ ns.seen }}{{ tool_token }}",
}


def rendered(folder: Path) -> str:
    return str(runpy.run_path(str(folder / CHAT))["render"](folder, MESSAGES))


def tokenizer_with(template: Any, folder: Path, **options: Any) -> Any:
    """A tokenizer saved with a template, and what fills it in beside it; as it is read again."""
    from transformers import AutoTokenizer

    tokenizer = models.make_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder, **options)
    place_beside(CHAT, folder)
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_is_that_of_apply_chat_template(name: str, tmp_path: Path) -> None:
    whole = tokenizer_with(TEMPLATES[name], tmp_path)
    begin = {"__type": "AddedToken", "content": "<s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    config = models.read_json(tmp_path / "tokenizer_config.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": begin, "tool_token": "<tool>"}))
    whole = type(whole).from_pretrained(tmp_path)
    wanted = whole.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True)
    assert wanted and rendered(tmp_path) == wanted


@pytest.mark.parametrize("several", [False, True])
def test_a_template_inside_the_tokenizers_configuration_is_found(several: bool, tmp_path: Path) -> None:
    tokenizer_with(models.CHAT_TEMPLATE, tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    other, plain = {"name": "tool_use", "template": "no"}, {"name": "default", "template": models.CHAT_TEMPLATE}
    config = models.read_json(tmp_path / "tokenizer_config.json")
    config["chat_template"] = [other, plain] if several else models.CHAT_TEMPLATE
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert rendered(tmp_path) == f"<|user|>{QUESTION}<|end|>"


def test_a_template_gets_no_hold_of_python(tmp_path: Path) -> None:
    import jinja2

    tokenizer_with("{{ messages.__class__.__mro__[1].__subclasses__() }}", tmp_path)
    with pytest.raises(jinja2.exceptions.SecurityError):
        rendered(tmp_path)


def ask(folder: Path, *arguments: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """example.py in a process that has none of our modules, and neither torch, transformers nor what `without` names."""
    missing = ("torch", "transformers", "handlers", "daemon", *without)
    program = (
        f"import runpy, sys\nfor name in {missing!r}:\n    sys.modules[name] = None\n"
        "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-I", "-c", program, str(folder / "example.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})


@pytest.mark.slow
def test_the_example_answers_as_transformers_does(qwen3: Exported) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen3.folder)
    model = AutoModelForCausalLM.from_pretrained(qwen3.source, dtype=torch.float32)
    asked = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    made = model.generate(**asked, max_new_tokens=12, do_sample=False)[0, asked["input_ids"].shape[1] :]
    before = sorted(path.name for path in qwen3.folder.iterdir())
    answer = ask(qwen3.folder, "--chat", QUESTION, "--tokens", "12", "--ids")
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout) == made.tolist()
    shown = ask(qwen3.folder, "--chat", QUESTION, "--tokens", "12").stdout
    assert shown == tokenizer.decode(made, skip_special_tokens=True) + "\n"
    assert sorted(path.name for path in qwen3.folder.iterdir()) == before
    assert ask(qwen3.folder, QUESTION, "--tokens", "12", "--ids").stdout != answer.stdout


def test_what_is_missing_for_a_chat_is_said(qwen3: Exported, tmp_path: Path) -> None:
    answer = ask(qwen3.folder, "--chat", QUESTION, without=("jinja2",))
    assert (answer.returncode, answer.stderr) == (1, "--chat needs the Python package jinja2: pip install jinja2\n")
    folder = Path(shutil.copytree(qwen3.folder, tmp_path / "copy"))
    (folder / CHAT).unlink()
    answer = ask(folder, "--chat", QUESTION)
    assert (answer.returncode, answer.stderr) == (1, "This model has no chat template: leave out --chat\n")
    assert ask(folder, QUESTION, without=("jinja2",)).returncode == 0
