"""The model card, README.md: YAML for the Hub's search, and a section about the version, both between marks of ckptd's own.

What people write outside of the marks stays to the byte, and a key of the YAML that they wrote is theirs. Values are written as JSON,
which is YAML too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from daemon.contract.values import Json, number_at, text_at

YAML_BEGIN, YAML_END = "# ckptd writes from here", "# ckptd writes to here"
TEXT_BEGIN, TEXT_END = "<!-- ckptd writes from here -->", "<!-- ckptd writes to here -->"
FIGURES = {
    "kl": "divergence (KL) from the live model",
    "agreement": "agreement with the live model",
    "perplexity_ratio": "perplexity, ratio",
}
"""Figures of an artifact that the card names, with what they are called there."""
PIPELINES = {"causal-lm": "text-generation"}
REPOSITORY = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)
KEY = re.compile(r"^([\w-]+):", re.MULTILINE)


def metadata(report: Json, license_name: str, tags: Sequence[str], library: str, version: str) -> dict[str, Any]:
    """The YAML's keys for a version. `report`: the export's, or {}."""
    values: dict[str, Any] = {"library_name": library, "tags": ["ckptd", *tags]}
    if license_name:
        values["license"] = license_name
    if (base := base_model(report)) is not None:
        values["base_model"] = base
    if (pipeline := pipeline_tag(report)) is not None:
        values["pipeline_tag"] = pipeline
        if results := list(_results(report, pipeline)):
            values["model-index"] = [{"name": version, "results": results}]
    return values


def base_model(report: Json) -> str | None:
    """The base's name on the Hub; None for a folder of the training box, whose path is nobody's business."""
    for names in (("base", "id"), ("base", "name"), ("base", "repo"), ("checkpoint", "metadata", "base_model"), ("base", "path")):
        name = text_at(report, *names)
        if name and REPOSITORY.fullmatch(name):
            return name
    return None


def pipeline_tag(report: Json) -> str | None:
    """The Hub's word for the model's task."""
    task = text_at(report, "task") or text_at(report, "task", "name")
    return PIPELINES.get(task, task) if task and re.fullmatch(r"[a-z0-9-]+", PIPELINES.get(task, task)) else None


def _results(report: Json, pipeline: str) -> Any:
    artifacts = report.get("artifacts")
    for row in artifacts if isinstance(artifacts, list) else ():
        metrics = [
            {"type": name, "name": called, "value": number}
            for name, called in FIGURES.items()
            if (number := number_at(row, "figures", name)) is not None
        ]
        if metrics:
            dataset = {"type": "ckptd-samples", "name": f"{text_at(row, 'variant')}, compared with the live model by ckptd"}
            yield {"task": {"type": pipeline}, "dataset": dataset, "metrics": metrics}


def section(title: str, lines: Sequence[str], rows: Sequence[tuple[str, str, str]], verdicts: Mapping[str, str]) -> str:
    """The text about a version. `rows`: variant, where it lies, how it is used."""
    table = [f"| `{name}` | {verdicts.get(name, 'unknown')} | `{place}` | {how} |" for name, place, how in rows]
    return "\n".join([f"## {title}", "", *lines, "", "| variant | verdict | where | use |", "| --- | --- | --- | --- |", *table])


def written(old: str, values: Mapping[str, Any], text: str) -> str:
    """The card with ckptd's parts replaced, or added where it has none."""
    yaml, body = _divided(old)
    kept = _without(yaml, YAML_BEGIN, YAML_END)
    theirs = set(KEY.findall(kept))
    ours = "\n".join(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in values.items() if key not in theirs)
    block = f"{YAML_BEGIN}\n{ours}\n{YAML_END}\n" if ours else ""
    marked = f"{TEXT_BEGIN}\n{text}\n{TEXT_END}"
    start, end = body.find(TEXT_BEGIN), body.find(TEXT_END)
    if 0 <= start < end:
        body = body[:start] + marked + body[end + len(TEXT_END) :]
    else:
        body = f"{body.rstrip()}\n\n{marked}\n" if body.strip() else f"\n{marked}\n"
    return f"---\n{kept}{block}---\n{body}"


def _divided(card: str) -> tuple[str, str]:
    """The YAML between the first two lines `---`, and the rest."""
    match = re.match(r"---[ \t]*\r?\n(.*?)^---[ \t]*(?:\r?\n|\Z)", card, re.DOTALL | re.MULTILINE)
    return (match.group(1), card[match.end() :]) if match else ("", card)


def _without(text: str, begin: str, end: str) -> str:
    start, stop = text.find(begin), text.find(end)
    if not 0 <= start < stop:
        return text
    return text[:start] + text[stop + len(end) :].removeprefix("\n")
