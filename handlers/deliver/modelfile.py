"""Reads Ollama's Modelfile, as far as exports write it and people change it: FROM, ADAPTER, PARAMETER, TEMPLATE, SYSTEM and LICENSE.

https://github.com/ollama/ollama/blob/main/docs/modelfile.mdx
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

NAME = "Modelfile"
_LINE = re.compile(r'[ \t]*(?:#[^\n]*|([A-Za-z]+)[ \t]+(?:"""(.*?)"""|(?!""")([^\n]*)))?[ \t]*(?:\n|\Z)', re.DOTALL)
_WHOLE = frozenset(
    {"num_ctx", "num_predict", "num_keep", "num_batch", "num_gpu", "num_thread", "main_gpu", "seed", "top_k", "repeat_last_n"}
)
_FRACTIONS = frozenset({"temperature", "top_p", "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty"})


@dataclass(frozen=True)
class Modelfile:
    """What a Modelfile says."""

    sources: tuple[str, ...] = ()
    """Of FROM, as written: files begin with "./"."""
    adapters: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """As Ollama's API takes them: numbers, and lists of texts for `stop`."""
    template: str = ""
    system: str = ""
    license: str = ""


def read(text: str) -> Modelfile:
    """Read it. Raises ValueError for a line that is none."""
    known: dict[str, list[str]] = {}
    at = 0
    while at < len(text):
        match = _LINE.match(text, at)
        if match is None or match.end() == at:
            raise ValueError(f"line {text.count(chr(10), 0, at) + 1} can't be read")
        if match.group(1):
            value = match.group(2) if match.group(2) is not None else match.group(3).strip()
            known.setdefault(match.group(1).upper(), []).append(value)
        at = match.end()
    return Modelfile(
        tuple(known.get("FROM", ())), tuple(known.get("ADAPTER", ())), _parameters(known.get("PARAMETER", [])),
        known.get("TEMPLATE", [""])[-1], known.get("SYSTEM", [""])[-1], "\n".join(known.get("LICENSE", ())),
    )  # fmt: skip


def _parameters(lines: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for line in lines:
        name, _, text = line.partition(" ")
        name, text = name.lower(), _unquoted(text.strip())
        if name == "stop":
            values.setdefault(name, []).append(text)
        elif name in _WHOLE or name in _FRACTIONS:
            values[name] = int(text) if name in _WHOLE else float(text)
        else:
            values[name] = text
    return values


def _unquoted(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text[1:-1]
    return text
