"""`ckptd logs --stage`, `--target`: the lines of the attempts at a stage, or at a delivery."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from daemon.cli.views.markup import say_error, say_lines, say_whole
from daemon.contract.language.catalog import to_translate, translated, translated_text
from daemon.operating.log.stage_log import Attempted, follow_stage

NOT_BEGUN = to_translate("It has not begun yet.")


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
