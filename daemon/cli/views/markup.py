"""The one way to the terminal: consoles, lines and error messages, and text out of files and names made harmless for them."""

from __future__ import annotations

import atexit
import codecs
import io
import os
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

from daemon.contract.faults.text import printable, printable_lines
from daemon.contract.language.catalog import speak_english, to_translate, translated

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

STATE_STYLE = {
    to_translate("succeeded"): "green", to_translate("passed"): "green", to_translate("running"): "cyan", to_translate("partial"): "yellow",
    to_translate("unverified"): "yellow", to_translate("failed"): "red", to_translate("unpublished"): "red",
    to_translate("waiting"): "yellow", to_translate("paused"): "yellow", to_translate("stopped"): "yellow",
    to_translate("pending"): "dim", to_translate("skipped"): "dim", to_translate("superseded"): "dim", to_translate("cancelled"): "dim",
    to_translate("delivered"): "green", to_translate("dropped"): "dim",
}  # fmt: skip
"""State of an export or a stage, or verdict of an artifact → its style. Who shows one translates it."""
_NO_WIDTH = 40
_CHINESE = "用法"
"""Two characters that are in every encoding of Chinese."""


def set_up_outputs() -> None:
    """Let the outputs show `?` for what their encoding has no character for, where it is not UTF-8: no verb fails for its last words.

    Where that would be every word of a Chinese sentence, the sentences are English.
    What the caller has closed (`>&-`) leads nowhere: there is no stream then, and its number would be that of the next file that is opened.
    A width that nothing could be read in, as some tools pass it on where there is no terminal, is as good as none.
    What stderr did not take, since its disk is full, does not decide how the program ends.
    """
    _open_closed()
    atexit.register(_leave_unwritten)
    if not (columns := os.environ.get("COLUMNS", "")).isdecimal() or int(columns) < _NO_WIDTH:
        os.environ.pop("COLUMNS", None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors="replace")
            if not _can_show(_CHINESE, stream.encoding):
                speak_english()


def _leave_unwritten() -> None:
    """Python ends with 120 where what stderr keeps can't be written in the end either."""
    try:
        sys.stderr.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def _can_show(text: str, encoding: str) -> bool:
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _open_closed() -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115


def _raise_again(_: Console) -> NoReturn:
    raise  # rich calls it where it has caught the error


def terminal(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console that shows text as it is: no colours for numbers, no pictures for `:words:`.

    One whose reader has left raises BrokenPipeError as `print` does; rich's own way is to end with 1.
    """
    from rich.console import Console

    Console.on_broken_pipe = _raise_again  # type: ignore[assignment, method-assign]
    return Console(stderr=stderr, highlight=False, emoji=False, soft_wrap=soft_wrap)


def escape(text: str) -> str:
    """The text in one line, for what a console prints."""
    from rich.markup import escape as escaped

    return _closed(escaped(printable(text)))


def escape_lines(text: str) -> str:
    """The same with its line ends, for a traceback."""
    from rich.markup import escape as escaped

    return _closed(escaped(printable_lines(text)))


def _closed(text: str) -> str:
    """The text with an even number of backslashes at its end: an odd one would escape the tag that follows."""
    return text + "\\" * ((len(text) - len(text.rstrip("\\"))) % 2)


def styled(state: str) -> str:
    """A state in its colour, as rich markup."""
    style = STATE_STYLE.get(state)
    return f"[{style}]{translated(state)}[/{style}]" if style else escape(state)


def put(console: Console, text: str | Text, *, indent: int = 2) -> None:
    """Print a line, as rich markup where it is a `str`; on a terminal broken between words, with what goes on indented."""
    from rich.text import Text

    from daemon.operating.log.wrapping import fold, width_of

    shown = Text.from_markup(text, emoji=False) if isinstance(text, str) else text
    for line in fold(shown, width_of(console), indent):
        console.print(line, soft_wrap=True)


def put_field(console: Console, label: str, text: str, room: int, style: str = "") -> None:
    """Print a label, padded to `room` cells, and its text; on a terminal the text's further lines begin where it does."""
    from rich.cells import cell_len
    from rich.text import Text

    label = translated(label)
    label += " " * max(1, room - cell_len(label))
    put(console, Text.assemble((label, "bold"), (printable(text), style)), indent=cell_len(label))


def say(text: str) -> None:
    """Print a sentence, without markup; broken between words where the width is known, as `wrapping.width_of` says it."""
    if _has_width(sys.stdout) and not _is_short(text):
        from rich.text import Text

        put(terminal(), Text(printable(text), overflow="ignore"))
        sys.stdout.flush()
    else:
        say_whole(text)


def _has_width(stream: TextIO) -> bool:
    """Whether lines have a width: on a terminal, or where COLUMNS says one. Without either no library for it is imported."""
    return stream.isatty() or bool(os.environ.get("COLUMNS"))


def _is_short(text: str) -> bool:
    """Whether a text surely fits into a line of any terminal, so that nothing needs to be loaded to break it."""
    return len(text) <= 20 and text.isascii() and "\n" not in text


def say_whole(text: str) -> None:
    """Print one line as it is, without markup: for programs, or to be copied."""
    print(printable(text), flush=True)


def say_lines(text: str) -> None:
    """Print a text that has several lines as it is, without markup: for programs, or to be copied."""
    print(printable_lines(text), flush=True)


def say_error(text: str) -> None:
    """Print a message to stderr, without markup; it may have several lines. Where the width is known they are broken between words.

    Raises BrokenPipeError where the reader has left; no other error of writing.
    """
    try:
        if _has_width(sys.stderr):
            from rich.text import Text

            put(terminal(stderr=True), Text(printable_lines(text), overflow="ignore"))
        else:
            print(printable_lines(text), file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        pass  # stderr lies on a full disk: the exit code still says what kind of error it is
