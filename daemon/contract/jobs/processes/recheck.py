"""What `ckptd verify --deep` asks of a child, and what it says of each variant. Pure."""

from __future__ import annotations

from pydantic import Field

from daemon.contract.jobs.messages import Verdict
from daemon.contract.values import Frozen, Json

ENTRY = "handlers.validate.recheck:run"
"""It is run as the stage that checks the variant."""
ANSWERS_INPUT = "answers"
"""Input of that stage: the file of kept answers, in place of the folder `reference`."""
FOREIGN = "foreign"
"""Input of a stage that checks what another program made: its folder."""
TRUSTED = "trusted"
"""The same where a person trusts what is checked: code in it is run."""


class Rechecked(Frozen):
    """One artifact, checked again."""

    variant: str
    """The variant whose limits count."""
    folder: str
    """Its folder."""
    verdict: Verdict
    """Of this check."""
    reasons: tuple[str, ...] = ()
    """Why it did not pass, as sentences."""
    remedy: str | None = None
    """What to do about that."""
    not_checked: tuple[str, ...] = ()
    """Comparisons that were left out here, and why, as sentences."""
    notes: tuple[str, ...] = ()
    """What must be known of the check although it decides nothing, as sentences."""
    figures: Json = Field(default_factory=dict)
    """Figures of this check, as in report.json."""
    seconds: float = 0.0
    """Time that it took."""
