"""`ckptd logs`: the daemon's log, or the lines of the attempts at a stage or at a delivery."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from daemon.cli.views.markup import say_error, say_lines, say_whole, terminal
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.operating.log.log_line import log_lines
from daemon.operating.log.reading import follow as records
from daemon.operating.log.stage_log import Attempted, follow_stage
from daemon.operating.log.wrapping import width_of

NOT_BEGUN = to_translate("It has not begun yet.")


def print_log(file: Path, *, follow: bool, lines: int, job: str, as_json: bool) -> None:
    """Print the records of the daemon's log."""
    console = terminal(soft_wrap=True)
    if not file.exists():
        say_error(translated("There is no log yet at {file}; the daemon writes it when it runs.").format(file=file))
        if not follow:
            return
    try:
        for record in records(file, tail=lines, forever=follow, job=job):
            if as_json:
                say_whole(json.dumps(record))
            else:
                for line in log_lines(record, width_of(console)):
                    console.print(line)
    except KeyboardInterrupt:
        return


def print_stage_log(
    look: Callable[[], Attempted], said: Callable[[Path], str], *, follow: bool, lines: int, as_json: bool
) -> None:  # fmt: skip
    """Print them. What the stage or delivery waits for is said on stderr while it has printed nothing."""
    silent = _Silence(look)
    try:
        for line in follow_stage(silent.look, said, tail=lines, forever=follow):
            silent.broken = True
            if as_json:
                say_whole(json.dumps({"attempt": line.attempt, "line": line.text}))
            else:
                say_lines(line.text)
    except KeyboardInterrupt:
        return
    silent.end()


class _Silence:
    """Of a stage or delivery that has printed nothing so far."""

    def __init__(self, look: Callable[[], Attempted]) -> None:
        self._look, self._doing = look, ""
        self.broken = False

    def look(self) -> Attempted:
        """The latest attempt."""
        attempt = self._look()
        doing = attempt.doing or ("" if attempt.number else NOT_BEGUN)
        if not self.broken and not attempt.over and doing != self._doing:
            self._doing = doing
            say_error(translated(doing) if doing == NOT_BEGUN else translated_text(doing))
        return attempt

    def end(self) -> None:
        """Say that there is nothing."""
        if not self.broken and not self._doing:
            say_error(translated("It has printed nothing."))
