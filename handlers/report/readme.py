"""`README.md` of an export: what it is and how to run each artifact. Called by `handlers.report.stage`.

The template is readme.md; how each artifact is run says the usage text of its format's declaration. Code blocks run as they stand from the
export's folder, and the tests run them. What comes from outside is escaped for Markdown, or written as a Python literal inside a block.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from daemon.contract.jobs.plan import find_variant
from handlers.models.tasks import BY_NAME as TASKS
from handlers.report import html
from handlers.report.model import Report

PROMPT = "def main():"
QUESTION = "How are you?"
_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~!$])")


def render(report: Report) -> str:
    """The README of a report, in GitHub's Markdown."""
    made = html.environment()
    task = TASKS.get(report.task or "") or TASKS["text-generation"]
    facts = {
        "prompt": _prompt(report), "auto": task.auto, "generates": task.kind != "encoder", "pairs": task.kind == "seq2seq",
        "chat": task.kind == "causal" and _said(report, "chat_template") is True, "question": QUESTION,
        "transformers": _transformers(_said(report, "transformers"), _said(report, "transformers_why")),
    }  # fmt: skip
    files = {artifact.variant: frozenset(file.path for file in artifact.files) for artifact in report.artifacts}
    figures = {stage.name: stage.figures for stage in report.stages}

    def usage(name: str) -> str:
        """How a variant is run, by its format's own words."""
        variant = find_variant(name)
        if variant is None or variant.usage is None:
            return "Its format does not say how it is run."
        about = variant.about[:1].upper() + variant.about[1:]
        try:
            template = made.overlay(autoescape=False).from_string(variant.usage.read_text(encoding="utf-8"))
            told = {"files": files.get(name, frozenset()), "figures": figures.get(name, {})}
            return template.render(variant=name, about=about, **told, **facts).strip()
        except Exception as error:  # another package's text, which may be missing or wrong: the report is everybody's
            return f"Its format's own words can't be shown: {escape(f'{type(error).__name__}: {error}')}"

    made.filters.update(md=escape, literal=literal, word=word, usage=usage)
    return made.get_template("readme.md").render(report=report)


def escape(value: Any) -> str:
    """`value` as one line of Markdown text without markup, links or HTML."""
    text = " ".join(html.shown(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text).replace("://", ":&#47;&#47;")


def literal(text: str) -> str:
    """`text` as an ASCII Python literal that cannot end the code block around it."""
    return ascii(text).replace("`", "\\x60")


def word(text: str) -> str:
    """`text`, which fits into one line of a code block, as one word of a shell's command line."""
    return shlex.quote(text)


def _said(report: Report, figure: str) -> Any:
    """A figure of the stages that make artifacts, which are all made of one checkpoint; None where none gave it."""
    return next((stage.figures[figure] for stage in report.stages if stage.figures.get(figure) is not None), None)


def _transformers(minimum: Any, why: Any) -> str:
    """Which releases of transformers read the folder, as far as anybody tried; plain text from a stage of ours, escaped all the same."""
    if isinstance(why, str):
        return f" ({escape(minimum)} or newer: {escape(why)})"
    if isinstance(minimum, str):
        return f" ({escape(minimum)} or newer)"
    return " (made and checked with transformers 5; no older one was tried)"


def _prompt(report: Report) -> str:
    """The first line of validation's own sample that can stand in every example, a shell's command too; a prompt of ours without one.

    One prompt for all: whoever runs the examples of two artifacts sees whether they agree.
    """
    samples = (artifact.measured.sample for artifact in report.artifacts)
    lines = (line for sample in samples if sample and sample.prompt for line in sample.prompt.splitlines())
    return next((line for line in lines if line.strip() and line.isprintable() and "`" not in line), PROMPT)
