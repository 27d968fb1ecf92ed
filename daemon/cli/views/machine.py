"""What `ckptd check` and `ckptd formats` show: by default the part that was asked for, with `everything` all of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from daemon.cli.views.layout import Cell, Column, table
from daemon.cli.views.markup import escape, put, put_field, terminal
from daemon.operating.log.wrapping import width_of
from daemon.system.box import human

if TYPE_CHECKING:
    from rich.console import Console

    from daemon.operating.diagnosis.doctor import Diagnosis, FormatsHere, ProcessorHere, VariantHere
    from daemon.toolchains.overview import ToolchainHere

MATTERS = ("roots", "output", "state", "reads", "bases", "variants", "adds")
"""Facts of a diagnosis that say what is watched, made and written; the others are about the machine."""


def print_check(value: Diagnosis, *, everything: bool = False) -> None:
    """`ckptd check`."""
    console = terminal()
    for key, fact in value.facts.items():
        if everything or key in MATTERS:
            put_field(console, key, str(fact), 19 if everything else 10)
    for problem in value.problems:
        put(console, f"[red]wrong[/red]  {escape(problem)}", indent=7)
    for warning in value.warnings:
        put(console, f"[yellow]note[/yellow]   {escape(warning)}", indent=7)
    if not value.problems:
        notes = f", with {len(value.warnings)} note{'s' * (len(value.warnings) != 1)} above" if value.warnings else ""
        put(console, f"[green]The configuration is valid{notes}.[/green]")


def print_formats(value: FormatsHere, configured: Sequence[str] = (), *, everything: bool = False) -> None:
    """`ckptd formats`. `configured`: the variants that the configuration asks for."""
    console = terminal(soft_wrap=True)
    if everything:
        _print_all(console, value)
    else:
        _print_configured(console, value, configured)
    wrong = [f"{name} can't be made or checked: {flaw}" for name, row in value.variants.items() for flaw in row.wrong]
    for problem in (*value.problems, *wrong):
        put(console, f"[red]{escape(problem)}[/red]")


def _print_configured(console: Console, value: FormatsHere, configured: Sequence[str]) -> None:
    """The configured variants as a table, and the names of all others: by what is missing for them."""
    _print_table(console, {name: row for name, row in value.variants.items() if name in configured})
    _print_unchecked(console, value, configured)
    others = {name: row for name, row in value.variants.items() if name not in configured}
    if here := [name for name, row in others.items() if row.available]:
        put(console, f"[bold]also made here[/bold]: {escape(', '.join(here))}")
    for lack in dict.fromkeys("; ".join(row.lacks) for row in others.values() if row.lacks):
        names = [name for name, row in others.items() if "; ".join(row.lacks) == lack]
        chain = value.toolchains.get(others[names[0]].toolchain or "")
        cure = f" (`{chain.command}`)" if chain is not None and chain.command else ""
        put(console, f"[bold]lacks {escape(lack)}[/bold]{escape(cure)}: {escape(', '.join(names))}")
    put(console, "`ckptd formats --all` shows what each is, the targets of export.deploy, the toolchains, and the limits of checks here.")


def _print_all(console: Console, value: FormatsHere) -> None:
    _print_table(console, value.variants)
    _print_unchecked(console, value, value.variants)
    for target, names in value.targets.items():
        made = escape(", ".join(names)) if names else "[yellow]no installed format fits[/yellow]"
        others = [name for name, row in value.variants.items() if target in row.also_for]
        more = f"; if export.variants names them, also {escape(', '.join(others))}" if others else ""
        put(console, f"export.deploy {escape(target)}: {made}{more}")
    for name, chain in value.toolchains.items():
        put(console, f"toolchain {escape(name)}{_served(name, value)}: {_state(chain)} ({escape(chain.about)})")
    _print_doubts(console, value.processor)


def _print_table(console: Console, variants: dict[str, VariantHere]) -> None:
    """A row for each variant: whether it can be made here, and what it is; with its package where there are several."""
    foreign = len({row.package for row in variants.values()}) > 1
    rows = [[Cell(name), _here(row), Cell(row.about), *([Cell(row.package)] if foreign else [])] for name, row in variants.items()]
    longest = max((len(word) for row in variants.values() for word in row.about.split()), default=12)
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
        put(console, f"[yellow]{escape(', '.join(those))} can't be checked here: {escape(need)}[/yellow]")


def _served(name: str, value: FormatsHere) -> str:
    """The variants that a toolchain makes, and those that it checks without making them."""
    made = [variant for variant, row in value.variants.items() if row.toolchain == name]
    checked = [variant for variant, row in value.variants.items() if row.check_toolchain == name and row.toolchain != name]
    parts = [f"for {', '.join(made)}" if made else "", f"checks {', '.join(checked)}" if checked else ""]
    purposes = "; ".join(filter(None, parts))
    return escape(f" ({purposes})") if purposes else ""


def _state(chain: ToolchainHere) -> str:
    if chain.installed:
        return f"[green]installed, {human(sum(folder.size for folder in chain.folders))}[/green]"
    if chain.command is None:
        return f"[yellow]{escape(chain.state)}[/yellow]"
    there = f", of which {human(chain.downloaded)} are there already" if chain.downloaded else ""
    return f"[yellow]{escape(chain.state)}; `{escape(chain.command)}` {escape(chain.costs)}{there}[/yellow]"


def _here(row: VariantHere) -> Cell:
    if row.available:
        return Cell("yes, and can't be checked", "yellow") if row.check_needs else Cell("yes", "green")
    return Cell(f"lacks {', '.join(row.lacks)}", "yellow") if row.lacks else Cell("no, see below", "red")


def _print_doubts(console: Console, processor: ProcessorHere) -> None:
    """What a check on this box's processor leaves open for others; variants with the same text share a line."""
    names = " ".join(processor.features) or "of unknown instruction sets"
    put(console, f"processor: {escape(processor.model or processor.architecture)} ({escape(names)})")
    kernels = ", ".join(processor.not_run)
    put(console, f"not run on this processor, proved from the weights for int8 variants: {escape(kernels)}")
    variants: dict[str, list[str]] = {}
    for variant, doubt in processor.doubts.items():
        variants.setdefault(doubt, []).append(variant)
    for doubt, those in variants.items():
        put(console, f"checked only for processors like this one: {escape(', '.join(those))}: {escape(doubt)}")
