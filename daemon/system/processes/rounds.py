"""Rounds of a thread that must not end: an error is logged once, in a sentence, as long as it lasts.

Used by the runner, the watcher and the notifier. A disk that is full for an hour gives one line, not one a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from daemon.contract.faults.errors import CkptdError, Fault, from_oserror
from daemon.contract.faults.events import Event
from daemon.contract.faults.fault_codes import FaultCode


class Complaints:
    """The errors of one thread; `who` begins the sentences, for example "the watcher"."""

    def __init__(self, log: Any, who: str) -> None:
        self._log, self.who = log, who
        self._said: str | None = None
        self.noted: Callable[[Fault], object] = lambda fault: None
        """Called with the error of each round that fails."""
        self.trouble: Fault | None = None
        """The error of the last round; None if it succeeded."""
        self.since = 0.0
        """When the error first occurred, in monotonic seconds."""
        self.failed = 0
        """Rounds that failed since the last one that succeeded."""

    def during(self, work: Callable[[], object]) -> bool:
        """Do one round; returns whether it succeeded."""
        try:
            work()
        except CkptdError as error:
            self._say(error)
        except OSError as error:
            self._say(from_oserror(error, f"do a round of {self.who}"))
        except Exception as error:
            if self._said != repr(error):
                self._log.exception(f"{self.who} met an error that nobody foresaw, and goes on", event_id=Event.ROUND_FAILED)
            self._said = repr(error)
            cause = f"{type(error).__name__}: {error}"
            remedy = "report it with the traceback in the log"
            self._note(Fault(code=FaultCode.UNEXPECTED, operation=f"do a round of {self.who}", cause=cause, remedy=remedy))
        else:
            self.trouble, self.failed = None, 0
            if self._said is not None:
                self._log.info(f"{self.who} works again", event_id=Event.ROUND_RECOVERED)
            self._said = None
            return True
        return False

    def _say(self, error: CkptdError) -> None:
        if self._said != error.fault.code:
            self._log.error(error.fault.sentence(), event_id=Event.ROUND_FAILED, code=error.fault.code)
        self._said = error.fault.code
        self._note(error.fault)

    def _note(self, fault: Fault) -> None:
        if self.trouble is None:
            self.since = time.monotonic()
        self.trouble = fault
        self.failed += 1
        self.noted(fault)
