"""How each artifact is installed and run, by the usage text of its format's declaration. Called by `headline` and `readme`.

Code blocks run as they stand from the export's folder, or from that of the artifact, and the tests run them. What comes from outside is
escaped for Markdown, or written as a Python literal inside a block.
"""

from __future__ import annotations

import importlib.metadata
import re
import shlex
from functools import cache, lru_cache, partial
from typing import Any

from jinja2 import Environment, StrictUndefined, Template, pass_context
from jinja2.runtime import Context

from daemon.contract import units
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.plan import find_variant
from handlers.models.tasks import BY_NAME as TASKS
from handlers.report.content.places import local_paths, without_paths
from handlers.report.model import Report
from handlers.report.usage_media import OPENERS, example

PROMPT = "def main():"
QUESTION = "How are you?"
_SPECIAL = re.compile(r"([\\`*{}\[\]#|~!$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
"""Within a word, as in x86_64, an underscore is no markup, and a backslash would be read where the file is not rendered."""
_INSTALL = re.compile(r"^```shell\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_RUN = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Usage:
    """What a report says of how its artifacts are run; `within`: from the artifact's own folder, instead of the export's."""

    def __init__(self, report: Report, *, within: bool = False) -> None:
        task = TASKS.get(report.task or "") or TASKS["text-generation"]
        self._versions, self._within = report.versions, within
        self._files = {artifact.variant: frozenset(file.path for file in artifact.files) for artifact in report.artifacts}
        self._checked = {artifact.variant for artifact in report.artifacts if artifact.verdict is not Verdict.UNVERIFIED}
        self._figures = {stage.name: stage.figures for stage in report.stages}
        self._places = local_paths(report)
        self._facts = {
            "prompt": _prompt(report), "task": task.name, "auto": task.auto,
            "media": task.media, "openers": OPENERS.get(task.media or "", ()), "reading": partial(example, task),
            "spoken": _said(report, "tokenizer_from") is not None,
            "generates": task.kind != "encoder", "pairs": task.kind == "seq2seq",
            "chat": task.kind == "causal" and not task.media and _said(report, "chat_template") is True, "question": _question(report),
            "transformers": _transformers(_said(report, "transformers"), _said(report, "transformers_why")),
            "install": lambda *names: f"```shell\npip install {self.requirements(*names)}\n```", "requirements": self.requirements,
        }  # fmt: skip

    def text(self, name: str) -> str:
        """How a variant is run, in Markdown, by its format's own words."""
        variant = find_variant(name)
        if variant is None or variant.usage is None:
            return "Its format does not say how it is run."
        about = variant.about[:1].upper() + variant.about[1:]
        own = {"checked": name in self._checked, "files": self._files.get(name, frozenset()), "figures": self._figures.get(name, {})}
        try:
            template = _compiled(variant.usage.read_text(encoding="utf-8"))
            values = {"variant": name, "folder": "." if self._within else name, "about": about, "usage_texts": self} | own | self._facts
            return template.render(values).strip()
        except Exception as error:  # another package's text, which may be missing or wrong: the report is everybody's
            return f"Its format's own words can't be shown: {self.prose(f'{type(error).__name__}: {error}')}"

    def blocks(self, name: str) -> tuple[str | None, str | None, str | None]:
        """(the commands that install what a variant needs, those that run it, "sh" or "python" for the latter); None where not said."""
        text = self.text(name)
        install, run = _INSTALL.search(text), _RUN.search(text)
        return install[1].rstrip() if install else None, run[2].rstrip() if run else None, run[1] if run else None

    def requirements(self, *names: str) -> str:
        """Distributions for pip's command line, each in the version that the check ran with, as far as that is known here."""
        return " ".join(f"{name}=={version}" if (version := self._version(name)) else name for name in names)

    def prose(self, value: Any) -> str:
        """`value` as one line of Markdown without markup, and without the folders of this box."""
        return escape(without_paths(units.shown(value), self._places))

    def _version(self, name: str) -> str | None:
        """The public part of the version: an index has no `2.13.0+cpu`. Of a library of which two took part, the one installed here."""
        loaded = self._versions.get(name) or self._versions.get(name.replace("-", "_"))
        try:
            version = loaded if loaded and " " not in loaded else importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None
        public = version.partition("+")[0]
        return public if re.fullmatch(r"[\w.!]+", public, re.ASCII) else None


@pass_context
def prose(context: Context, value: Any) -> str:
    """The filter `md` of templates: `Usage.prose` of the `usage_texts` that they are filled with."""
    usage: Usage = context["usage_texts"]
    return usage.prose(value)


@cache
def _engine() -> Environment:
    made = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)  # Markdown  # noqa: S701
    made.filters.update(units.FILTERS, md=prose, literal=literal, word=word)
    return made


@lru_cache(maxsize=64)
def _compiled(text: str) -> Template:
    """The template of a usage text. Compiling takes longer than filling, and a report fills each several times."""
    return _engine().from_string(text)


def escape(value: Any) -> str:
    """`value` as one line of Markdown text without markup, links or HTML."""
    text = " ".join(units.shown(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
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
    """The first line of validation's own sample that can stand in every example, a shell's command too; a prompt of ours without one. Of a
    conversation it is the last question, without what the chat template puts around it.

    One prompt for all: whoever runs the examples of two artifacts sees whether they agree.
    """
    samples = (artifact.measured.sample for artifact in report.artifacts)
    texts = (sample.question or sample.prompt for sample in samples if sample)
    lines = (line for text in texts if text for line in text.splitlines())
    return next((line for line in lines if line.strip() and line.isprintable() and "`" not in line), PROMPT)


def _question(report: Report) -> str:
    """A question for a model with a chat template: the data's, else one of ours."""
    asked = any(artifact.measured.sample and artifact.measured.sample.question for artifact in report.artifacts)
    return _prompt(report) if asked else QUESTION
