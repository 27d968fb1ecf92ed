"""Ollama's Modelfile: the file, the chat template in Ollama's language, what ends an answer, and the length of the context.

A chat template is a program in Jinja's language; Ollama's templates are Go's. What is written here is found by running the model's own
template on conversations whose texts are known: what stands before and behind each message. It is kept only if filling it in gives, for
other conversations, exactly the text of the model's template. https://github.com/ollama/ollama/blob/main/docs/modelfile.md
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from handlers.texts import chat
from handlers.texts.rows import RowRefused, Turn

NAME = "Modelfile"
_MARK = "MARK{}KRAM"
LENGTH = 4096
"""Tokens of context that Ollama is told to keep memory for, where the model knows more."""


@dataclass(frozen=True)
class Frame:
    """What a template puts around messages: role → text before and behind."""

    start: str
    around: dict[str, tuple[str, str]]
    answer: str

    def filled(self, turns: Sequence[Turn]) -> str:
        """The text of a conversation, with the beginning of the answer."""
        parts = [f"{self.around[turn.role][0]}{turn.content}{self.around[turn.role][1]}" for turn in turns]
        return self.start + "".join(parts) + self.answer

    def template(self) -> str:
        """The same in Go's template language, over Ollama's `.Messages`. Ollama itself puts what begins a text before it."""
        roles = "".join(
            f'{{{{ {"if" if place == 0 else "else if"} eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{behind}'
            for place, (role, (before, behind)) in enumerate(self.around.items())
        )
        return f"{{{{ range .Messages }}}}{roles}{{{{ end }}}}{{{{ end }}}}{self.answer}"


def frame(template: chat.ChatTemplate) -> Frame | None:
    """What a template puts around messages; None where that depends on more than their roles."""
    try:
        candidate = _derive(template)
        tried = [
            [Turn("user", "How are you?")],
            [Turn("user", "a"), Turn("assistant", "b c"), Turn("user", "d")],
            [Turn("user", "1"), Turn("assistant", "2"), Turn("user", "3"), Turn("assistant", "4"), Turn("user", "5 6")],
        ]
        if "system" in candidate.around:
            tried += [[Turn("system", "Be short."), *turns] for turns in tried]
        return candidate if all(candidate.filled(turns) == template.render(turns, answer=True) for turns in tried) else None
    except (RowRefused, ValueError):
        return None


def _derive(template: chat.ChatTemplate) -> Frame:
    marks = [_MARK.format(number) for number in range(5)]
    turns = [Turn(role, mark) for role, mark in zip(("user", "assistant", "user", "assistant", "user"), marks, strict=True)]
    text = template.render(turns, answer=True)
    gaps = _gaps(text, marks)
    plain = template.render(turns)
    if not text.startswith(plain):
        raise ValueError("the beginning of an answer is not appended")
    answer = text[len(plain) :]
    behind_user = gaps[-1].removesuffix(answer) if answer else gaps[-1]
    if not gaps[1].startswith(behind_user) or gaps[1] != gaps[3] or gaps[2] != gaps[4]:
        raise ValueError("what stands around a message depends on its place")
    before_assistant = gaps[1][len(behind_user) :]
    ended = template.render(turns[:4])
    behind_assistant = ended[ended.index(marks[3]) + len(marks[3]) :]
    if not gaps[2].startswith(behind_assistant):
        raise ValueError("what stands behind an answer depends on its place")
    before_user = gaps[2][len(behind_assistant) :]
    if not gaps[0].endswith(before_user):
        raise ValueError("the first message is written otherwise")
    around = {"user": (before_user, behind_user), "assistant": (before_assistant, behind_assistant)}
    start = gaps[0][: len(gaps[0]) - len(before_user)]
    try:
        with_system = template.render([Turn("system", _MARK.format(9)), turns[0]], answer=True)
        first, rest = _gaps(with_system, [_MARK.format(9), marks[0]])[:2]
        if first.startswith(start) and rest.endswith(before_user):
            around = {"system": (first[len(start) :], rest[: len(rest) - len(before_user)]), **around}
    except (RowRefused, ValueError):
        pass  # a model that takes no system message
    return Frame(start, around, answer)


def _gaps(text: str, marks: Sequence[str]) -> list[str]:
    """What stands before, between and behind the marks. ValueError where one is not there exactly once, or not in this order."""
    gaps, at = [], 0
    for mark in marks:
        if text.count(mark) != 1 or (place := text.index(mark)) < at:
            raise ValueError("a message is not written once and in its place")
        gaps.append(text[at:place])
        at = place + len(mark)
    return [*gaps, text[at:]]


def write(folder: Path, files: Sequence[str], source: Path, context: int, stops: Sequence[str], start: str) -> bool | None:
    """Put the Modelfile into `folder`; whether the chat template of `source` is in it, None where there is none.

    `files`: of the language model, and of its towers; Ollama takes a file whose blocks are those of towers alone for a projector.
    `stops`: texts of the tokens that end an answer; `start`: text of the token that llama.cpp puts before each text, "" for none.
    """
    lines = [*(f"FROM ./{file}" for file in files), f"PARAMETER num_ctx {min(context, LENGTH)}"]
    lines += [f"PARAMETER stop {json.dumps(stop, ensure_ascii=False)}" for stop in dict.fromkeys(stops)]
    template, templated = chat.read([source], source), None
    if template is not None:
        framed = frame(template)
        templated = (
            framed is not None
            and framed.start in ("", start)
            and '"""' not in framed.template()
            and "{{" not in "".join((framed.answer, *(text for pair in framed.around.values() for text in pair)))
        )
        if templated and framed is not None:
            lines.append(f'TEMPLATE """{framed.template()}"""')
    else:
        lines.append('TEMPLATE """{{ .Prompt }}"""')
    (folder / NAME).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return templated
