"""Mistakes in the command line, said as every other error is: one sentence with what to do, instead of the parser's own panels."""

from __future__ import annotations

import re

from typer.exceptions import TyperException

from daemon.contract.faults.errors import UsageError
from daemon.contract.faults.fault_codes import FaultCode

_WORDS = (
    (r", unable to parse.*", ""),
    (r"Input should be a valid integer", "it should be a whole number"),
    (r"Input should be a valid", "it should be a"),
    (r"Input should be", "it should be"),
    (r"\(Possible", "(possible"),
    (r"^got unexpected extra argument\(s\) \((.*)\)$", r"unexpected argument: \1"),
)
"""What the parser says → what we say: its words for types are those of a library below it."""

CAUSES = (
    "no such command {name}", "no such option: {name}", "missing argument {name}",
    "no such option: {name} (possible options: {names})", "missing option {name}",
    "missing command", "unexpected argument: {words}", "option {name} requires an argument",
    "option {name} does not take a value", "invalid value: {why}",
    "invalid value for {name}: {why}", "it should be a whole number", "it should be a {kind}",
    "it should be greater than or equal to {number}", "it should be less than or equal to {number}",
    "name a job, or give --failed for all exports that failed; `ckptd list` shows the ids",
    "did you mean {name}? See {verb} --help",
)  # fmt: skip
"""What that comes to, for the catalogue of recorded sentences."""


def mistake_of(error: TyperException) -> UsageError:
    """Our error for one of the command line's parser."""
    context = getattr(error, "ctx", None)
    verb = "ckptd" if context is None else context.command_path
    cause, _, hint = (part.strip().rstrip(".") for part in error.format_message().partition(". "))
    cause = cause[:1].lower() + cause[1:]
    for theirs, ours in _WORDS:
        cause = re.sub(theirs, ours, cause)
    if getattr(error, "option_name", None) == "--set" and context is not None and context.parent is not None:
        hint = f"give it before the command: ckptd --set KEY=VALUE {verb.removeprefix('ckptd ')}."
    remedy = f"{hint[:1].lower()}{hint[1:]} See {verb} --help" if hint else f"see {verb} --help"
    return UsageError(FaultCode.BAD_OPTION, "understand the command line", cause, remedy)
