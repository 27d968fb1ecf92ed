"""What `ckptd check` and `ckptd formats` show: by default the part that was asked for, with `everything` all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from daemon.cli.views.layout import Cell, Column, table
from daemon.cli.views.markup import escape, put, put_field, terminal
from daemon.contract import units
from daemon.contract.language.catalog import language, to_translate, translated, translated_plural, translated_text
from daemon.contract.language.lists import bracketed, labelled, sentences, spaced
from daemon.contract.language.lists import names as listed
from daemon.operating.log.wrapping import width_of

if TYPE_CHECKING:
    from rich.console import Console

    from daemon.operating.diagnosis.doctor import Diagnosis, FormatsHere, ProcessorHere, VariantHere
    from daemon.toolchains.overview import ToolchainHere

MATTERS = (
    to_translate("roots"), to_translate("output"), to_translate("state"), to_translate("reads"), to_translate("bases"),
    to_translate("variants"), to_translate("targets"), to_translate("adds"), to_translate("cluster"),
)  # fmt: skip
"""Facts of a diagnosis that say what is watched, made and written; the others are about the machine."""
OTHERS = to_translate("an export"), to_translate("toolchains"), to_translate("memory"), to_translate("cores")
"""Those that have a label of words; libraries have their names."""


def print_check(value: Diagnosis, *, everything: bool = False) -> None:
    """`ckptd check`."""
    console = terminal()
    room = 19 if everything else 2 + max(cell_len(translated(key)) for key in MATTERS)
    for key, fact in value.facts.items():
        if everything or key in MATTERS:
            put_field(console, key, _fact(key, str(fact)), room)
    for problem in value.problems:
        _put_finding(console, to_translate("wrong"), "red", problem)
    for warning in value.warnings:
        _put_finding(console, to_translate("note"), "yellow", warning)
    if not value.problems:
        with_notes = translated_plural(
            "The configuration is valid, with {count} note above.", "The configuration is valid, with {count} notes above.",
            len(value.warnings),
        )  # fmt: skip
        verdict = with_notes.format(count=len(value.warnings)) if value.warnings else translated("The configuration is valid.")
        put(console, f"[green]{verdict}[/green]")


def _fact(key: str, text: str) -> str:
    """A fact, whose English a program may read, in the reader's language."""
    if language() == "en":
        return text
    if key in ("output", "state"):
        folder, _, size = text.removesuffix(" free)").rpartition(" (")
        return translated("{folder} ({size} free)").format(folder=folder, size=size)
    if key == "toolchains":
        line = translated("{name} is not installed")
        parts = [part.partition(" is not installed") for part in text.split("; ")]
        missing = listed(bracketed(name, cure.strip(" ()")) if cure else name for name, cut, cure in parts if cut)
        there = [translated_text(name) for name, cut, _ in parts if not cut]
        return sentences([*there, *([line.format(name=missing)] if missing else [])])
    return translated(text) if text == "none" else translated_text(text)


def _put_finding(console: Console, label: str, style: str, text: str) -> None:
    label = translated(label)
    put(console, f"[{style}]{label}[/{style}]{' ' * (7 - cell_len(label))}{escape(translated_text(text))}", indent=7)


def print_formats(value: FormatsHere, configured: Sequence[str] = (), *, everything: bool = False) -> None:
    """`ckptd formats`. `configured`: the variants that the configuration asks for."""
    console = terminal(soft_wrap=True)
    if everything:
        _print_all(console, value)
    else:
        _print_configured(console, value, configured)
    line = translated("{name} can't be made or checked: {flaw}")
    wrong = [line.format(name=name, flaw=translated_text(flaw)) for name, row in value.variants.items() for flaw in row.wrong]
    for problem in (*value.problems, *wrong):
        put(console, f"[red]{escape(translated_text(problem))}[/red]")


def _print_configured(console: Console, value: FormatsHere, configured: Sequence[str]) -> None:
    """The configured variants as a table, and the names of all others: by what is missing for them."""
    _print_table(console, {name: row for name, row in value.variants.items() if name in configured})
    _print_unchecked(console, value, configured)
    others = {name: row for name, row in value.variants.items() if name not in configured}
    if here := [name for name, row in others.items() if row.available]:
        put(console, translated("[bold]also made here[/bold]: {names}").format(names=escape(listed(here))))
    for lack in dict.fromkeys("; ".join(row.lacks) for row in others.values() if row.lacks):
        names = [name for name, row in others.items() if "; ".join(row.lacks) == lack]
        chain = value.toolchains.get(others[names[0]].toolchain or "")
        cure = bracketed("", f"`{chain.command}`") if chain is not None and chain.command else ""
        line = translated("[bold]lacks {lack}[/bold]{cure}: {names}")
        put(console, spaced(line.format(lack=escape(translated_text(lack)), cure=escape(cure), names=escape(listed(names)))))
    put(
        console,
        translated(
            "`ckptd formats --all` shows what each is, the targets of export.deploy, the toolchains, and the limits of checks here."
        ),
    )


def _print_all(console: Console, value: FormatsHere) -> None:
    _print_table(console, value.variants)
    _print_unchecked(console, value, value.variants)
    for target, names in value.targets.items():
        made = escape(listed(names)) if names else f"[yellow]{translated('no installed format fits')}[/yellow]"
        others = [name for name, row in value.variants.items() if target in row.also_for]
        also = translated("; if export.variants names them, also {names}").format(names=escape(listed(others)))
        more = also if others else ""
        put(console, labelled(f"export.deploy {escape(target)}", f"{made}{more}"))
    for name, chain in value.toolchains.items():
        label = translated("toolchain {name}").format(name=escape(name))
        put(console, labelled(f"{label}{_served(name, value)}", bracketed(_state(chain), escape(translated(chain.about)))))
    _print_doubts(console, value.processor)


def _print_table(console: Console, variants: dict[str, VariantHere]) -> None:
    """A row for each variant: whether it can be made here, and what it is; with its package where there are several."""
    foreign = len({row.package for row in variants.values()}) > 1
    rows = [
        [Cell(name), _here(row), Cell(translated(row.about)), *([Cell(row.package)] if foreign else [])] for name, row in variants.items()
    ]
    longest = max((len(word) for row in variants.values() for word in translated(row.about).split() if word.isascii()), default=12)
    columns = (
        Column("variant", least=max(map(len, variants), default=8)), Column("here", "words", least=8),
        Column("what it is", "words", least=longest), *([Column("package", "words", least=8)] if foreign else []),
    )  # fmt: skip
    for line in (line for row in table(columns, rows, width_of(console)) for line in row):
        console.print(line)


def _print_unchecked(console: Console, value: FormatsHere, names: Iterable[str]) -> None:
    """Which of the variants can be made and not checked, by what is missing for it."""
    unchecked: dict[str, list[str]] = {}
    for name in names:
        row = value.variants[name]
        if row.check_toolchain != row.toolchain:  # what makes it is missing too, which is said of that toolchain
            for need in row.check_needs:
                unchecked.setdefault(need, []).append(name)
    for need, those in unchecked.items():
        line = translated("{names} can't be checked here: {need}").format(names=listed(those), need=_need(need))
        put(console, f"[yellow]{escape(line)}[/yellow]")


def _need(text: str) -> str:
    """What is missing for a check, in the reader's language: "CAUSE (it COSTS); run `COMMAND`"."""
    what, cut, command = text.rpartition("; run `")
    if language() == "en" or not cut:
        return translated_text(text)
    lacking = translated_text(what.replace(" (it ", " ("))
    return translated("{lacking}; run `{command}").format(lacking=lacking, command=command)


def _served(name: str, value: FormatsHere) -> str:
    """The variants that a toolchain makes, and those that it checks without making them."""
    made = [variant for variant, row in value.variants.items() if row.toolchain == name]
    checked = [variant for variant, row in value.variants.items() if row.check_toolchain == name and row.toolchain != name]
    parts = [
        translated("for {variants}").format(variants=listed(made)) if made else "",
        translated("checks {variants}").format(variants=listed(checked)) if checked else "",
    ]
    purposes = sentences(filter(None, parts))
    return escape(bracketed("", purposes)) if purposes else ""


def _state(chain: ToolchainHere) -> str:
    if chain.installed:
        installed = translated("installed, {size}").format(size=units.size(sum(folder.size for folder in chain.folders)))
        return f"[green]{installed}[/green]"
    if chain.command is None:
        return f"[yellow]{escape(translated_text(chain.state))}[/yellow]"
    there = translated(", of which {size} are there already").format(size=units.size(chain.downloaded)) if chain.downloaded else ""
    cure = f"`{escape(chain.command)}` {escape(translated_text(chain.costs))}{there}"
    return f"[yellow]{sentences([escape(translated_text(chain.state)), cure])}[/yellow]"


def _here(row: VariantHere) -> Cell:
    if row.available:
        return Cell(translated("yes, and can't be checked"), "yellow") if row.check_needs else Cell(translated("yes"), "green")
    return (
        Cell(spaced(translated("lacks {what}").format(what=listed(map(translated_text, row.lacks)))), "yellow")
        if row.lacks
        else Cell(translated("no, see below"), "red")
    )


def _print_doubts(console: Console, processor: ProcessorHere) -> None:
    """What a check on this box's processor leaves open for others; variants with the same text share a line."""
    names = " ".join(processor.features) or translated("of unknown instruction sets")
    line = translated("processor: {model} ({features})")
    put(console, escape(line.format(model=processor.model or processor.architecture, features=names)))
    kernels = listed(map(translated, processor.not_run))
    put(
        console,
        translated("not run on this processor, proved from the weights for int8 variants: {kernels}").format(kernels=escape(kernels)),
    )
    variants: dict[str, list[str]] = {}
    for variant, doubt in processor.doubts.items():
        variants.setdefault(doubt, []).append(variant)
    for doubt, those in variants.items():
        line = translated("checked only for processors like this one: {names}: {doubt}")
        put(console, escape(line.format(names=listed(those), doubt=translated(doubt))))
