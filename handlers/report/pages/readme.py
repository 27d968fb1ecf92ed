"""`README.md` of an export: a model card that says what it is, what to deploy, and how each artifact is run; and that of each artifact.

Called by `handlers.report.stage`, and by the stage `pytorch-adapter` for the metadata of its folder. The templates are readme.md and
variant.md: a folder that is copied out of its export says what it is, and how it is run from where it lies. By the metadata hubs list a
model: base, library, task, license, what the check measured. Nothing is claimed that is not known, and nothing names a folder of this box.
The keys are those of the Hugging Face Hub's model cards, and a test reads each card by huggingface_hub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import yaml
from jinja2 import Environment, pass_context
from jinja2.runtime import Context

from daemon.contract.disk.export_layout import README
from daemon.contract.formats.declaration import Variant
from daemon.contract.jobs.figures import LongFigures
from daemon.contract.jobs.messages import Verdict
from daemon.contract.jobs.plan import check_of, find_variant
from daemon.contract.units import is_number
from daemon.contract.values import Json
from handlers.models.tasks import BY_NAME as TASKS
from handlers.report import comparison, lengths
from handlers.report.advice import headline
from handlers.report.advice.targets import rows as target_rows
from handlers.report.model import Artifact, Report
from handlers.report.pages import caveats, decided, html
from handlers.report.usage import Usage, prose

_SENTENCES = "modules.json"
"""The file by which sentence-transformers knows its folders."""
_VERDICTS = {
    Verdict.PASSED: "It was run and compared with the model that was trained, and passed",
    Verdict.UNVERIFIED: "It was not verified",
    Verdict.FAILED: "It failed its check, and was published since the configuration asks for that",
}
_METRICS = (("agreement", "agreement with the live model"), ("kl", "KL divergence from the live model, nats"))


def render(report: Report) -> str:
    """The README of a report, in GitHub's Markdown."""
    return _filled(
        "readme.md", report, Usage(report),
        title=headline.title_line(report), places=target_rows(report), failures=html.roots(report), gaps=caveats.gaps(report),
        lengths=[*decided.sentences(report), *lengths.sentences(report)], of_run=headline.of_run_in_words(report),
        tasks=comparison.tasks(report),
    )  # fmt: skip


def of_artifacts(report: Report) -> dict[str, str]:
    """Folder → README.md of each published artifact that brings none of its own."""
    return {
        artifact.folder: _of_artifact(report, artifact)
        for artifact in report.published
        if artifact.folder and all(file.path != README for file in artifact.files)
    }


def _of_artifact(report: Report, artifact: Artifact) -> str:
    alone = report.model_copy(update={"artifacts": (artifact,)})
    stages = {artifact.variant, check.name if (check := check_of(artifact.variant)) else ""}
    warnings = [warning for warning in report.warnings if warning.source in stages]
    usage = Usage(report, within=True)
    return _filled("variant.md", alone, usage, artifact=artifact, verdict=_VERDICTS[artifact.verdict], warnings=warnings,
        certain=decided.sentence(artifact), length=lengths.sentence(artifact.measured.long or LongFigures()),
    )  # fmt: skip


def _filled(name: str, report: Report, usage: Usage, **values: object) -> str:
    return (
        _engine()
        .get_template(name)
        .render(report=report, metadata=metadata(report), based=_base_in_words(report), usage_texts=usage, **values)
    )


@cache
def _engine() -> Environment:
    made = html.environment().overlay()
    made.filters = made.filters | {"md": prose, "usage": _usage, "last": lambda path: PurePosixPath(path).name}
    return made


@pass_context
def _usage(context: Context, variant: str) -> str:
    usage: Usage = context["usage_texts"]
    return usage.text(variant)


def front_matter(keys: Mapping[str, Any]) -> str:
    """The block that begins a card, its last line included; values that are None or empty are left out."""
    given = {key: value for key, value in keys.items() if value not in (None, "", [], {})}
    return f"---\n{yaml.safe_dump(given, sort_keys=False, allow_unicode=True, width=1 << 20)}---\n"


def license_keys(license_: str | None, name: str | None, link: str | None) -> Json:
    """The keys of a license; the last two belong to `other` alone."""
    return {"license": license_, "license_name": name, "license_link": link}


def _pipeline_tag(task: str | None, sentence: bool) -> str | None:
    """The task as hubs name it; a model of vectors for texts is there for their similarity."""
    return "sentence-similarity" if sentence else TASKS[task].hub_name if task in TASKS else None


def metadata(report: Report) -> str:
    """The metadata of an export's README, as the block that begins it."""
    published = [(artifact, variant) for artifact in report.published if (variant := find_variant(artifact.variant))]
    sentence = any(_is_sentence(artifact) for artifact, _ in published)
    alone = bool(published) and all(variant.deploys == "over its base" for _, variant in published)
    base = report.base
    return front_matter({
        "base_model": base.repository,
        "base_model_relation": ("adapter" if alone else "finetune") if base.repository else None,
        "library_name": _library(published),
        "pipeline_tag": _pipeline_tag(report.task, sentence),
        **license_keys(base.license, base.license_name, base.license_link),
        "tags": list(dict.fromkeys(_tags(report, [variant for _, variant in published]))),
        "model-index": list(_model_index(report)),
    })  # fmt: skip


def _base_in_words(report: Report) -> str:
    """The base for people who have not this box."""
    base = report.base
    if base.title is None:
        return "none: a full fine-tune"
    return base.title if base.repository else f"{base.title}, a folder of the machine that trained it"


def _is_sentence(artifact: Artifact) -> bool:
    return any(file.path == _SENTENCES for file in artifact.files)


def _library(published: Iterable[tuple[Artifact, Variant]]) -> str | None:
    """The library of the first artifact that names one, in plan order."""
    for artifact, variant in published:
        if variant.library:
            return "sentence-transformers" if variant.library == "transformers" and _is_sentence(artifact) else variant.library
    return None


def _tags(report: Report, variants: Iterable[Variant]) -> Iterator[str]:
    yield "ckptd"
    if report.has_base:
        yield tag(report.checkpoint.method)
    for variant in variants:
        yield from (tag(name) for name in (variant.library, "onnx" if "onnx" in variant.traits else "", variant.level or "") if name)


def tag(name: str) -> str:
    """A name as hubs write tags."""
    return re.sub(r"[^a-z0-9.+-]+", "-", name.lower()).strip("-")


def _model_index(report: Report) -> Iterator[Json]:
    """What the check measured, as hubs list results; nothing where the task or a figure is not known."""
    if report.task not in TASKS:
        return
    metrics = [
        {"type": key, "name": f"{artifact.variant}: {name}", "value": float(f"{value:.4g}")}
        for artifact in report.published
        for key, name in _METRICS
        if is_number(value := getattr(artifact.measured, key)) and artifact.verdict.value == "passed"
    ]
    if metrics:
        # `type` may be no repository of somebody else's: hubs make a link of it.
        data = {"type": "ckptd-check", "name": "the prompts of the export's check"}
        run = "-".join(PurePosixPath(report.checkpoint.run).parts) or "model"
        yield {"name": run, "results": [{"task": {"type": _pipeline_tag(report.task, False)}, "dataset": data, "metrics": metrics}]}
