"""What `ckptd convert` prints at its end: each file of weights, what was copied, and what is not in the new folder, with the reason."""

from __future__ import annotations

from daemon.cli.views.layout import hanging
from daemon.cli.views.markup import terminal
from daemon.contract import units
from daemon.contract.jobs.processes.conversion import Conversion
from daemon.contract.language.catalog import translated, translated_plural, translated_text
from daemon.contract.language.lists import labelled, names
from daemon.operating.log.wrapping import width_of


def print_conversion(value: Conversion) -> None:
    """`ckptd convert`."""
    console = terminal(soft_wrap=True)
    width = width_of(console)
    for file in value.converted:
        tensors = translated_plural("{count} tensor", "{count} tensors", file.tensors).format(count=file.tensors)
        more = [f"{key} = {text}" for key, text in file.metadata.items() if key != "format"]
        kept = translated("; kept: {what}").format(what=names(more)) if more else ""
        summary = (
            translated("{file}, {tensors}, {size}, equal").format(file=file.target, tensors=tensors, size=units.size(file.size_bytes))
            + kept
        )
        for line in hanging(file.source, summary, width, style="bold"):
            console.print(line)
    for path, why in value.left_out.items():
        for line in hanging("left out", labelled(path, translated_text(why)), width, style="bold"):
            console.print(line)
    count = len(value.copied)
    written = translated_plural("{folder}, with {count} other file", "{folder}, with {count} other files", count)
    for line in hanging("written", written.format(folder=value.target, count=count), width, style="bold"):
        console.print(line)
