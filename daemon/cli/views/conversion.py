"""What `ckptd convert` prints at its end: each file of weights, what was copied, and what is not in the new folder, with the reason."""

from __future__ import annotations

from daemon.cli.views.layout import hanging
from daemon.cli.views.markup import terminal
from daemon.contract.jobs.conversion import Conversion
from daemon.operating.log.wrapping import width_of
from daemon.system.box import human


def print_conversion(value: Conversion) -> None:
    """`ckptd convert`."""
    console = terminal(soft_wrap=True)
    width = width_of(console)
    for file in value.converted:
        tensors = f"{file.tensors} tensor{'s' if file.tensors != 1 else ''}"
        more = [f"{key} = {text}" for key, text in file.metadata.items() if key != "format"]
        summary = f"{file.target}, {tensors}, {human(file.size_bytes)}, equal{'; kept: ' + ', '.join(more) if more else ''}"
        for line in hanging(file.source, summary, width, style="bold"):
            console.print(line)
    for path, why in value.left_out.items():
        for line in hanging("left out", f"{path}: {why}", width, style="bold"):
            console.print(line)
    count = len(value.copied)
    for line in hanging("written", f"{value.target}, with {count} other file{'s' if count != 1 else ''}", width, style="bold"):
        console.print(line)
