"""The progress of one piece of work on stderr: a bar on a terminal, lines elsewhere, nothing where a program reads the answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from daemon.cli.views.markup import put, terminal
from daemon.contract.language.catalog import translated, translated_text


class LiveBar:
    """Shown while a verb works."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = terminal(stderr=True)
        self._live = self._console.is_terminal and not quiet
        self._said: str | None = None
        self._bar: TaskID | None = None
        self._progress = Progress(
            SpinnerColumn(), BarColumn(bar_width=20), TimeElapsedColumn(), TextColumn("{task.fields[note]}", markup=False),
            console=self._console, transient=True,
        )  # fmt: skip

    def _line(self, message: str) -> str | None:
        """What is printed of a message where there is no bar; None for nothing. The same line is not printed twice in a row."""
        return message

    def show(self, fraction: float, message: str) -> None:
        """Bring the display up to date."""
        if self._live:
            if self._bar is None:
                self._progress.start()
                self._bar = self._progress.add_task("work", total=1.0, note="")
            self._progress.update(self._bar, completed=fraction, note=translated_text(message))
        elif not self._quiet and (line := self._line(message)) is not None and line != self._said:
            self._said = line
            self.say(translated_text(line))

    def say(self, message: str) -> None:
        """A line of its own."""
        if not self._quiet:
            put(self._console, Text(message))

    def close(self) -> None:
        """End the live display; safe to call again."""
        if self._bar is not None:
            self._progress.stop()
            self._bar = None

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Close the display at the end of a work that keeps nothing of itself after Ctrl-C, and say that."""
        try:
            yield
        except KeyboardInterrupt:
            self.close()
            self.say(translated("interrupted; nothing was kept"))
            raise
        finally:
            self.close()
