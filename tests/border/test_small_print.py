"""What libraries and logs say beside a message is bounded, shows no secret, and does nothing to a terminal, whichever way it comes."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from daemon.contract.disk.attempt_log import AttemptLog
from daemon.contract.faults import secrets
from daemon.contract.faults.errors import Fault, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.faults.text import MOST_OF_SMALL_PRINT, small_print
from daemon.contract.jobs.figures import CheckFigures
from daemon.running.attempts import post_mortem
from tests.workers.helpers import make_context

KNOWN = "S3CRETknown4711abc"
SAID = f"begins\tso\n\x1b[2J\x1b]0;title\x07 \u202egnp.exe \ud800 \x9b31m https://user:S3CRETword@host/x and {KNOWN}\nends so"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {KNOWN: None})


def refuse(text: str | None) -> None:
    """Fail for a text that is too long, shows a secret or does something to a terminal."""
    assert text and len(text) <= MOST_OF_SMALL_PRINT and "S3CRET" not in text
    assert all(character.isprintable() or character in "\n\t" for character in text)
    assert text.startswith("begins\tso\n") and text.endswith("\nends so"), "both ends are kept"


def ways(text: str) -> list[str | None]:
    """The text by every way to the small print of a fault or a report."""
    fault = Fault(code=FaultCode.UNEXPECTED, operation="read", cause="it is wrong", remedy="correct it")
    error = Permanent(fault.code, fault.operation, fault.cause, fault.remedy, details=text)
    copied = fault.model_copy(update={"details": text})
    return [
        error.fault.details,
        copied.details,
        Fault.model_validate_json(copied.model_dump_json()).details,
        CheckFigures(log_end=text).log_end,
    ]


@pytest.mark.parametrize("middle", ["", "x" * (3 << 20), f"{KNOWN}\n" * 300_000], ids=["short", "one long line", "many lines"])
def test_every_way_to_the_small_print_bounds_and_cleans_it(middle: str) -> None:
    begin, _, end = SAID.rpartition("\n")
    for text in ways(f"{begin}\n{middle}\n{end}"):
        refuse(text)


def test_a_long_text_says_how_much_is_left_out_also_after_it_was_read_again() -> None:
    short = small_print("a" * 3_000_000)
    note = re.search(r"\[… ([\d,]+) more characters …\]", short)
    assert note and int(note[1].replace(",", "")) + short.count("a") - note[0].count("a") == 3_000_000
    assert small_print(short) == short


def test_the_end_of_an_attempts_log_is_cleaned_before_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(SAID.encode("utf-8", "surrogatepass"))
    log = AttemptLog(tmp_path / "log", 1 << 20)
    result = post_mortem.conclude(make_context(tmp_path), log, post_mortem.Death(code=-signal.SIGKILL), 1.0)
    assert result.fault is not None and result.fault.path == str(log.path)
    refuse(result.fault.details)
