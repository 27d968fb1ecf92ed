"""The tables of docs/models.md, from the results of runs: `python -m tests.families.page` writes them there.

`results.json` beside this file is written by `python -m tests.families.measuring FOLDER`; that of models that read pictures or sound, in
`tests/media`, by `python -m tests.media.measuring FOLDER`.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from daemon.contract.jobs.options import Work
from daemon.contract.jobs.plan import plan
from daemon.contract.values import Json
from daemon.running.rules.suitable import unsuited
from tests.families.measuring import EQUAL, RESULTS, VARIANTS
from tests.media import measuring as media

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN, END = "<!-- measured: begin -->\n", "<!-- measured: end -->"
MEDIA_BEGIN, MEDIA_END = "<!-- pictures and sound: begin -->\n", "<!-- pictures and sound: end -->"
OTHERS = ("onnx-genai-fp32", "web", "openvino", "gguf-f16", "pt2", "coreml", "tensorrt-llm")
"""Variants that no family was tried with, of which config.json alone says whether they are refused; the first form of each format."""


def page(text: str, results: dict[str, Any], of_media: dict[str, Any]) -> str:
    """Return the page `text` with its tables made anew. `results`, `of_media`: a family → what it is and what came of its export."""
    for begin, end, tables in ((BEGIN, END, _tables(results)), (MEDIA_BEGIN, MEDIA_END, _media(of_media))):
        before, _, rest = text.partition(begin)
        text = before + begin + tables + end + rest.partition(end)[2]
    return text


def refused(config: Json, variants: tuple[str, ...]) -> set[str]:
    """The variants that are refused before the merge of a model with this config.json."""
    return {*unsuited(plan(variants), config, Work.recovered("{}"), variants)} & {*variants}


def _media(results: dict[str, Any]) -> str:
    """The table of models that read pictures or sound."""
    forms = list(dict.fromkeys(form for result in results.values() for form in result["forms"]))
    rows = [("`model_type`", "class", *(f"`{form}`" for form in forms)), ("---",) * (2 + len(forms))]
    for result in results.values():
        cells = (_media_cell(result["forms"].get(form)) for form in forms)
        rows.append((f"`{result['model_type']}`", f"`{result['class']}`", *cells))
    versions = ", ".join(sorted({result["transformers"] for result in results.values()}))
    return f"transformers {versions}.\n\n" + _lines(rows)


def _media_cell(made: dict[str, Any] | None) -> str:
    if made is None or made["outcome"] != "published":
        return str(made["outcome"]) if made else "–"
    return f"{'equal' if made['difference'] <= EQUAL else 'passed'}, {made['difference']:g}"


def _lines(rows: list[tuple[str, ...]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def _tables(results: dict[str, Any]) -> str:
    head = ("`model_type`", "class", "trained", *(f"`{name}`" for name in (*VARIANTS, *OTHERS)))
    rows = [head, tuple("---" for _ in head), *(_row(family, result) for family, result in results.items())]
    versions = ", ".join(sorted({result["transformers"] for result in results.values()}))
    counts = Counter(result["variants"][name]["outcome"] for result in results.values() for name in VARIANTS)
    said = ", ".join(f"{counts[name]} {word}" for name, word in (("equal", "equal"), ("refused", "refused"), ("failed", "failed")))
    first = f"transformers {versions}; {len(results)} families with {len(VARIANTS)} variants each: {said}.\n\n"
    return first + _lines(rows) + _reasons(results)


def _row(family: str, result: dict[str, Any]) -> tuple[str, ...]:
    cells = [_cell(result["variants"][name]) for name in VARIANTS]
    early = refused(result["config"], OTHERS)
    method = "LoRA" if result["how"] == "LoRA" else "whole"
    return (
        f"`{family.partition('/')[0]}`",
        f"`{result['class']}`",
        method,
        *cells,
        *("refused" if name in early else "–" for name in OTHERS),
    )


def _cell(variant: dict[str, Any]) -> str:
    if variant["outcome"] == "equal":
        return "equal" if variant["difference"] == 0 else f"equal, {variant['difference']:.0e}"
    return str(variant["outcome"])


def _reasons(results: dict[str, Any]) -> str:
    """What failed after the merge had begun, and why."""
    lines = [
        f"- `{family.partition('/')[0]}` ({result['class']}), `{name}`: {_short(result['variants'][name]['why'])}"
        for family, result in results.items() for name in VARIANTS if result["variants"][name]["outcome"] in ("failed", "other")
    ]  # fmt: skip
    return "\nFailed:\n\n" + "\n".join(lines) + "\n" if lines else ""


def _short(text: str) -> str:
    """The first clauses of a reason, so that a row stays readable."""
    text = text.replace("|", "/").replace("<", "‹").replace(">", "›")
    return text if len(text) <= 300 else text[:300].rsplit(" ", 1)[0] + " …"


if __name__ == "__main__":
    measured = (json.loads(file.read_text("utf-8")) for file in (RESULTS, media.RESULTS))
    PAGE.write_text(page(PAGE.read_text("utf-8"), *measured), "utf-8")
