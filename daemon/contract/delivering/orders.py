"""What a delivery's process is asked, as one JSON object on standard input, and what it says, a JSON object a line on standard output.

The daemon starts `python -m handlers.deliver` and writes an `Order`; secrets reach the process by that and by nothing else. The process
says `Note`s, `Report`s and at last one `End`. It reads an export's folder and never writes to it, and it never touches the journal: what
it notes is journaled by the daemon, and is handed back with the next attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from daemon.contract.faults.errors import Fault
from daemon.contract.light import dataclass
from daemon.contract.records import Record
from daemon.contract.values import Json

CONTRACT_VERSION = 1

Action = Literal["deliver", "look", "list", "remove"]
"""deliver: carry the export there; look: find out, without changing anything there, whether it could be; list: what lies there; remove:
take versions away."""
Move = Literal["move", "keep", "force"]
"""Of the name that people follow (`main`, `latest.json`, a tag, an alias): move it if what it stands for is no later step of the same run;
leave it as it is; move it whatever it stands for."""


class Order(Record):
    """One attempt at a delivery."""

    kind: str
    entry: str
    """`module:class` of the target."""
    name: str
    """The target's name in the configuration."""
    action: Action = "deliver"
    contract: int = CONTRACT_VERSION
    options: Json = field(default_factory=dict)
    """The kind's own, as its class dumps them, secrets in clear."""
    secret: str = ""
    """The contents of the target's secret file, or ""."""
    export: str = ""
    """The export's published folder."""
    job: str = ""
    """The export's id: another export in that folder is not delivered; "": whichever lies there."""
    variants: tuple[str, ...] = ()
    """Those that are carried; none: all that lie there."""
    move: Move = "move"
    keep: int = 0
    """Versions of the run that stay at the far end, this one counted; 0: all."""
    remove: tuple[str, ...] = ()
    """Names of the versions to take away."""
    bandwidth: int = 0
    """Bytes a second; 0: without a limit."""
    read_back: bool = True
    """Whether what was carried is read from the far end and compared; without it the far end's own digests are, where it has some."""
    share: float = 0.9
    """Of a target that answers: how much of the fine-tuning must be in its answers."""
    resume: Mapping[str, Json] = field(default_factory=dict)
    """What earlier attempts at the same delivery noted, by the note's name."""
    scratch: str = ""
    """A folder for temporary files, which is removed afterwards."""
    run: str = ""
    """Of `list`."""


class Note(Record):
    """What a later attempt goes on with: a part that arrived, the number of an upload."""

    name: str
    value: Json | None
    """None: it is of no use any more."""
    say: Literal["note"] = "note"


class Report(Record):
    """How far it is."""

    fraction: float
    message: str
    bytes: int = 0
    """Carried so far by this attempt."""
    say: Literal["report"] = "report"


@dataclass(frozen=True)
class Progress:
    """How far a delivery is that runs: what the daemon says of it to who looks."""

    job: str
    target: str
    attempt: int
    fraction: float
    message: str
    bytes: int
    """Carried so far by this attempt."""


class Warned(Record):
    """What people should know and what does not end the delivery."""

    text: str
    say: Literal["warning"] = "warning"


class Receipt(Record):
    """What lies at the far end now."""

    version: str
    """The far end's own name of it, which never means anything else: a revision, a digest, a folder."""
    place: str
    """Where people find it, without secrets."""
    moved: bool = False
    """Whether the name that people follow stands for it now."""
    why_not_moved: str = ""
    sent: int = 0
    """Bytes that were carried, by all attempts that are known."""
    there: int = 0
    """Bytes that lay there already."""
    read_back: int = 0
    """Bytes that were read from the far end and compared."""
    removed: tuple[str, ...] = ()
    """Versions that were taken away by the target's rule."""
    usage: str = ""
    """One line of shell or code that fetches or asks it."""
    figures: Json = field(default_factory=dict)
    """Of a target that answers: `share` of the fine-tuning, `agreement`, `prompts`, …"""


class Listed(Record):
    """A version that lies at the far end."""

    version: str
    """Its name there."""
    run: str = ""
    step: int = 0
    export: str = ""
    """Id of the export that it was made of."""
    at: str = ""
    """ISO 8601 in UTC, where that is known."""
    current: bool = False
    """Whether the name that people follow stands for it."""
    whole: bool = True
    """False for one that was not finished."""


class End(Record):
    """The last line: how it ended. Exactly one of `receipt`, `listed` and `fault` is there, none after a look that found nothing wrong."""

    receipt: Receipt | None = None
    listed: tuple[Listed, ...] | None = None
    fault: Fault | None = None
    permanent: bool = False
    """With a fault: another attempt can't succeed until a person changes something."""
    retry_after: float | None = None
    """Seconds, where the far end said so."""
    say: Literal["end"] = "end"
