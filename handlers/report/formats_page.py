"""docs/formats.md: what can be made, of which models, and what was verified of it, from the formats' declarations.

`python -m handlers.report.formats_page` prints it; a test holds the file equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from daemon.contract.formats.catalog import Catalog, catalog
from daemon.contract.formats.declaration import Format, Target, Variant
from daemon.contract.formats.targets import PLACES, fitting, made_for
from daemon.contract.values import Json

FIGURES = Path(__file__).parents[2] / "docs" / "formats.json"
"""What `benchmarks/formats.py --json` wrote; without it the tables have no figures."""

INTRO = """# Formats

This page is generated from the formats' declarations: `python -m handlers.report.formats_page > docs/formats.md`. `ckptd formats` says
which formats this machine can make. Another package can add a format by an entry point ([writing a format](writing-a-format.md)). The last
three columns of a variant's row are the defaults of `[validate.limits]`: the limits that the variant must meet, compared with the live
model, to be published ([validation](validation.md)).
"""


def text(known: Catalog, figures: Json | None = None) -> str:
    """The page. `figures`: what the benchmark wrote, by default that of the repository."""
    if figures is None:
        figures = json.loads(FIGURES.read_bytes()) if FIGURES.is_file() else {}
    published = [declared for declared in known.formats if declared.variants]
    return "\n".join([INTRO, *_families(known), *_targets(known, figures), *(line for declared in published for line in _format(declared))])


def _families(known: Catalog) -> Iterator[str]:
    names = list(dict.fromkeys(family for declared in known.formats for family in declared.families))
    yield "## What was verified\n"
    yield f"| format | {' | '.join(names)} |"
    yield f"| --- |{' --- |' * len(names)}"
    for declared in filter(lambda declared: declared.variants, known.formats):
        yield f"| [{declared.name}](#{declared.name}) | {' | '.join(declared.families.get(name, 'not verified') for name in names)} |"
    yield ""


def _targets(known: Catalog, figures: Json) -> Iterator[str]:
    yield "## Which variant for which target\n"
    yield (
        "`export.deploy` names targets. For each of them, ckptd makes the variants in bold. The report recommends one artifact for each"
        " target, by its figures; the other variants of a table can be recommended too, if they were made ([validation](validation.md))."
        " The sections below say how each format was checked. Another package's variant joins by `targets` and `also_for` in its"
        " declaration.\n"
    )
    if figures:
        yield _measured(figures)
    for target, place in PLACES.items():
        yield f"### `{target}`: {place}\n"
        yield from _choice(target, known, figures)
        yield ""


def _measured(figures: Json) -> str:
    """Where the tables' figures come from."""
    machine, made = figures["machine"], figures["figures"]["made"]
    return (
        f"The figures are those of one run of `benchmarks/formats.py`, of a language model with {made['parameters'] / 1e6:.2g} M"
        f" parameters, on {machine['cores']} cores ({machine['processor']}). In a model this small, the fixed cost of each call decides the"
        " speed, and tokenizer and configuration much of the size: compare rows, and measure your own model with `ckptd bench`. Time and"
        " memory are those of the stage that makes the variant, from what it is made of. A cell without a figure was not measured.\n"
    )


def _choice(target: Target, known: Catalog, figures: Json) -> Iterator[str]:
    made, others = made_for(target, known), fitting(target, known)
    if not others:
        yield "Nothing: no installed format fits."
        return
    yield "| variant | runs with | size | × PyTorch's speed | divergence (KL) | made in | peak memory |"
    yield f"|{' --- |' * 7}"
    formats = {spec.name: declared for declared in known.formats for spec in declared.variants}
    for spec in (*made, *(other for other in others if other not in made)):
        name = f"**`{spec.name}`**" if spec in made else f"`{spec.name}`"
        measured = (figures["figures"]["made"] if figures else {}).get(spec.name, {})
        cells = (name, ", ".join(formats[spec.name].runtimes), *_figures(measured))
        yield f"| {' | '.join(cells)} |"


def _figures(measured: Json) -> tuple[str, ...]:
    """Cells of what was measured of a variant."""

    def cell(name: str, form: str) -> str:
        return "" if measured.get(name) is None else form.format(measured[name])

    return (
        cell("size_mb", "{:.3g} MB"), cell("speed_over_eager", "{:.1f}"), cell("kl", "{:.1g}"), cell("seconds", "{:.2g} s"),
        cell("peak_mb", "{:.0f} MB"),
    )  # fmt: skip


def _format(declared: Format) -> Iterator[str]:
    yield f"## {declared.name}\n\n{declared.about}"
    if declared.section:
        yield f"Its keys are in `[{declared.section}]`."
    yield "\n| variant | what it is | made of | smaller form of | if not exact enough | agreement ≥ | KL ≤ | error ≤ |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for spec in declared.variants:
        yield _row(spec)
    traits = sorted(set.intersection(*(set(spec.traits) for spec in declared.variants)) - {"onnx", "graphs", "merged"})
    engines = sorted({spec.limits.engine for spec in declared.variants})
    yield f"\nChecked with the engine {', '.join(engines)}. All variants have: {', '.join(traits)}."
    where: dict[str, list[str]] = {}
    for spec in filter(lambda spec: spec.elsewhere, declared.variants):
        where.setdefault(spec.elsewhere, []).append(f"`{spec.name}`")
    for elsewhere, names in where.items():
        yield f"\n{', '.join(names)}: {elsewhere}."
    if declared.notes is not None:
        yield f"\n{declared.notes.read_text('utf-8').rstrip()}"
    yield ""


def _row(spec: Variant) -> str:
    limits = spec.thresholds
    cells = (f"`{spec.name}`", spec.about, ", ".join(spec.needs), spec.form_of or "", spec.fallback or "")
    return f"| {' | '.join(cells)} | {limits.agreement} | {limits.kl} | {limits.error} |"


if __name__ == "__main__":
    print(text(catalog()).rstrip())
