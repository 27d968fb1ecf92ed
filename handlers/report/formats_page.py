"""docs/formats.md: what can be made, of which models, and what was verified of it, from the formats' declarations.

`python -m handlers.report.formats_page` prints it; a test holds the file equal.
"""

from __future__ import annotations

from collections.abc import Iterator

from daemon.contract.formats.catalog import Catalog, catalog
from daemon.contract.formats.declaration import Format, Variant
from daemon.contract.formats.targets import PLACES, fitting, made_for

INTRO = """# Formats

This page is generated from the formats' declarations: `python -m handlers.report.formats_page > docs/formats.md`. `ckptd formats` says
which formats this machine can make. Another package can add a format by an entry point ([writing a format](writing-a-format.md)). The last
three columns of a variant's row are the defaults of `[validate.thresholds]`: the limits that the variant must meet, compared with the live
model, to be published ([validation](validation.md)).
"""


def text(known: Catalog) -> str:
    """The page."""
    return "\n".join([INTRO, *_families(known), *_targets(known), *(line for one in known.formats for line in _format(one))])


def _families(known: Catalog) -> Iterator[str]:
    names = list(dict.fromkeys(family for one in known.formats for family in one.families))
    yield "## What was verified\n"
    yield f"| format | {' | '.join(names)} |"
    yield f"| --- |{' --- |' * len(names)}"
    for one in known.formats:
        yield f"| [{one.name}](#{one.name}) | {' | '.join(one.families.get(name, 'not verified') for name in names)} |"
    yield ""


def _targets(known: Catalog) -> Iterator[str]:
    yield "## Which variant for which target\n"
    yield (
        "`export.deploy` names targets. For each of them, ckptd makes the variants in the second column. The report recommends one artifact"
        " for each target, by its figures; the variants in the third column can be recommended too, if they were made"
        " ([validation](validation.md)). Another package's variant joins by `targets` and `also_for` in its declaration.\n"
    )
    yield "| target | made for it | can be used too |"
    yield "| --- | --- | --- |"
    for target, place in PLACES.items():
        made = made_for(target, known)
        named = ", ".join(f"`{one.name}`" for one in made) or f"nothing: no installed format ({' or '.join(place.formats)}) fits"
        others = ", ".join(f"`{one.name}`" for one in fitting(target, known) if one not in made)
        yield f"| `{target}`: {place.about} | {named} | {others} |"
    yield ""


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
    yield f"\nChecked with the engine {', '.join(engines)}. All variants have: {', '.join(traits)}.\n"


def _row(spec: Variant) -> str:
    limits = spec.thresholds
    cells = (f"`{spec.name}`", spec.about, ", ".join(spec.needs), spec.form_of or "", spec.fallback or "")
    return f"| {' | '.join(cells)} | {limits.agreement} | {limits.kl} | {limits.error} |"


if __name__ == "__main__":
    print(text(catalog()).rstrip())
