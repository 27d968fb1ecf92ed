"""A question as the model in this folder expects it in a chat: its chat template, filled in.

    render(Path("."), [{"role": "user", "content": "How are you?"}])

Needs jinja2, 3.1.6 or newer, alone. The text is the one that transformers' `apply_chat_template` makes, with what begins the answer at
its end; its tokens are those of the text without further special tokens.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    """The tag around what a model said, which marks it for training; nothing to do here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> Any:
        """What is between the tags, as it stands."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template(folder: Path) -> str | None:
    """The chat template of a folder; None where there is none."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.json"):
        text = _json(folder / name).get("chat_template")
        if isinstance(text, list):
            text = next((named["template"] for named in text if named.get("name") == "default"), None)
        if isinstance(text, str):
            return text
    return None


def render(folder: Path, messages: list[dict[str, str]]) -> str:
    """The text of messages. ValueError where the folder has no template; jinja2.TemplateError where it takes other messages."""
    text = template(folder)
    if text is None:
        raise ValueError(f"{folder} has no chat template")
    if tuple(int(part) for part in jinja2.__version__.split(".")[:3]) < (3, 1, 6):
        raise ValueError(f"jinja2 is {jinja2.__version__}, and templates of others need 3.1.6 or newer: pip install -U jinja2")
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.datetime.now().strftime(pattern)
    return environment.from_string(text).render(
        messages=messages, tools=None, documents=None, add_generation_prompt=True, **_special_tokens(folder)
    )


def _special_tokens(folder: Path) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        values = _json(folder / name)
        named = values.get("extra_special_tokens")
        for key, value in {**(named if isinstance(named, dict) else {}), **values}.items():
            content = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(content, str):
                tokens[key] = content
    return tokens


def _to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _json(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return value if isinstance(value, dict) else {}
