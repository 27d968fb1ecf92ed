"""`[notify]`: who is told of what, and when.

Called by `daemon.config.settings`. What each receiver is told, and how, is in `daemon.config.receivers`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, LiteralString, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from daemon.config.receivers import (
    ENDS,
    TRACKERS,
    Event,
    Kind,
    Receiver,
    Tracker,
    file_of,
    is_closed,
    place_of,
    read_key,
    read_one,
    read_secret,
    store_folder_of,
)
from daemon.config.receivers import read as read_urls
from daemon.config.section import OptionalPath, Section, distinct, form, refusal
from daemon.contract.faults.secret_url import SecretUrl
from daemon.contract.faults.secrets import holds_secret

OLDER_NAMES = {"waiting": "stuck"}
"""Names of events in version 1.0 → what they are called now."""
USUAL: tuple[Event, ...] = (
    "succeeded", "partial", "failed", "rejected", "delivery_failed", "stuck", "disk_low", "daemon_unwell", "recovered",
)  # fmt: skip
URGENT: tuple[Event, ...] = ("disk_low", "daemon_unwell")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_ONLY_OF: tuple[tuple[set[str], set[Kind], LiteralString], ...] = (
    ({"experiment", "model", "alias", "variant"}, {"mlflow"}, "experiment, model, alias and variant are for mlflow alone"),
    ({"offline", "folder"}, {"wandb"}, "offline and folder are for wandb alone"),
    ({"key_file"}, {"mlflow", "wandb"}, "key_file is for mlflow and wandb alone"),
    ({"python"}, {*TRACKERS}, "python is for tensorboard, mlflow and wandb alone"),
)
"""Keys, the kinds that have them, and what is said where others do."""
_ONE_OF = ("url", "url_file", "webhook", "command", "heartbeat", *TRACKERS)

Named = Annotated[Event, BeforeValidator(lambda name: OLDER_NAMES.get(name, name) if isinstance(name, str) else name)]
_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d"

Time = Annotated[str, form(_TIME, 'must be a time of the day, for example "08:00"')]
OptionalUrl = Annotated[SecretUrl | None, BeforeValidator(lambda value: None if value == "" else value)]


class TargetSettings(Section):
    """Each of `[[notify.targets]]`."""

    name: Annotated[str, form(r"[A-Za-z0-9_-]{1,40}", "must be of letters, digits, _ and -, at most 40")]
    url: OptionalUrl = None
    url_file: OptionalPath = None
    webhook: OptionalUrl = None
    secret_file: OptionalPath = None
    command: tuple[str, ...] = ()
    limit_seconds: float = Field(default=30.0, gt=0, le=50)
    heartbeat: OptionalUrl = None
    minutes: float = Field(default=5.0, gt=0, le=1440)
    tensorboard: OptionalPath = None
    mlflow: OptionalUrl = None
    experiment: str = "ckptd"
    model: str = ""
    alias: str = ""
    variant: str = ""
    wandb: Annotated[str, form(r"|[\w.-]+(/[\w.-]+)?", "must be PROJECT or ENTITY/PROJECT")] = ""
    offline: bool = False
    folder: OptionalPath = None
    key_file: OptionalPath = None
    python: OptionalPath = None
    on: tuple[Named, ...] = USUAL
    runs: tuple[str, ...] = ()
    quiet: Annotated[str, form(rf"|({_TIME})-(?!\1){_TIME}", 'must be two times of the day, for example "22:00-07:00", or "" for none')] = (
        ""
    )
    urgent: tuple[Named, ...] = URGENT
    _address: SecretUrl | None = PrivateAttr(default=None)
    _secret: SecretUrl | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        given = [key for key in _ONE_OF if getattr(self, key)]
        if len(given) != 1:
            raise refusal("give exactly one of url, url_file, webhook, command, heartbeat, tensorboard, mlflow and wandb")
        if bool(self.webhook) != bool(self.secret_file):
            raise refusal("webhook and secret_file belong together: the file holds the secret that messages are signed with")
        if (url := self.webhook or self.heartbeat) is not None and not _is_safe(url):
            raise refusal("webhook and heartbeat are https:// addresses; http:// is for 127.0.0.1, localhost and [::1] alone")
        if any("\0" in word for word in self.command):
            raise refusal("a word of a command has no byte 0")
        if self.command and "/" in self.command[0] and not self.command[0].startswith("/"):
            raise refusal("a command begins with an absolute path, or with the name of a program of PATH: it runs in the folder /")
        self._check_tracker()
        return self

    def _check_tracker(self) -> None:
        given = {name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default}
        for keys, kinds, sentence in _ONLY_OF:
            if given & keys and self.kind not in kinds:
                raise refusal(sentence)
        if self.kind not in TRACKERS:
            return
        if self.quiet:
            raise refusal("a tracker has no quiet hours: it gets figures, and no messages")
        if not ENDS & {*self.on}:
            raise refusal("a tracker gets something of succeeded, partial, failed and rejected alone: name one of them in on")
        if self.offline and self.folder is None:
            raise refusal("offline needs a folder, where the files for `wandb sync` are written")
        if self.mlflow is not None:
            self._check_mlflow(self.mlflow)

    def _check_mlflow(self, uri: SecretUrl) -> None:
        if (self.alias or self.variant) and not self.model:
            raise refusal("alias and variant are of a registered model's versions: name it with model")
        if not re.match(r"/|https?://|sqlite:////|file:/", uri.get_secret_value()):
            raise refusal("mlflow is the URI of a tracking server (https://), a store (sqlite:////PATH), or an absolute path")
        if self.key_file and not _is_safe(uri):
            raise refusal("key_file goes to https:// addresses; http:// is for 127.0.0.1, localhost and [::1] alone")
        if not self.experiment.strip():
            raise refusal("experiment is empty: MLflow's experiments have names")
        if re.search("[/:]", self.model):
            raise refusal("model has no / and no : in MLflow; {run} may have them, and they become -")
        if not re.fullmatch(r"[\w-]{0,255}", self.alias) or re.fullmatch(r"latest|v\d+", self.alias, re.IGNORECASE):
            raise refusal("alias is of letters, digits, _ and -, and not latest or v and a number, which mean something else to MLflow")

    @property
    def kind(self) -> Kind:
        """How it is told."""
        kinds: tuple[Kind, ...] = get_args(Kind)
        return next((kind for kind in kinds if getattr(self, kind)), "url")

    def with_files(self, *, needed: bool) -> Self:
        """The same with what its files hold. Raises ValueError, whose text has nothing of them. `needed`: as for `with_file` below."""
        complete = self.model_copy()
        for key, read in (("url_file", read_one), ("secret_file", read_secret), ("key_file", read_key)):
            path: Path | None = getattr(self, key)
            if path is None or (not needed and is_closed(path)):
                continue
            try:
                setattr(complete, "_address" if key == "url_file" else "_secret", read(path))
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
        return complete

    @property
    def receiver(self) -> Receiver | None:
        """Who is told; None where its file was not read."""
        address = self.url or self.webhook or self.heartbeat or self.mlflow or self._address
        without = self.command or self.tensorboard or self.wandb
        if (address is None and not without) or ((self.webhook or self.key_file) and self._secret is None):
            return None
        on = {"heartbeat": frozenset[str](), **dict.fromkeys(TRACKERS, ENDS & {*self.on})}
        return Receiver(
            f"notify.targets.{self.name} ({self.kind})", address or SecretUrl(""), name=self.name, kind=self.kind, secret=self._secret,
            command=self.command, limit=self.limit_seconds, minutes=self.minutes,
            on=on.get(self.kind, frozenset(self.on)), runs=self.runs, quiet=self.quiet, urgent=frozenset(self.urgent),
            tracker=self._tracker if self.kind in TRACKERS else None,
        )  # fmt: skip

    @property
    def _tracker(self) -> Tracker:
        return Tracker(
            str(self.python or sys.executable), str(self.tensorboard or self.folder or ""), self.wandb, self.offline, self.experiment,
            self.model, self.alias, self.variant,
        )  # fmt: skip

    @property
    def has_password(self) -> bool:
        """Whether the address of its tracker has credentials in it."""
        return self.mlflow is not None and holds_secret(self.mlflow.get_secret_value())

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the daemon writes for it."""
        uri = self.mlflow.get_secret_value() if self.mlflow is not None else ""
        return tuple(folder for folder in (self.tensorboard, self.folder, store_folder_of(uri)) if folder is not None)


def _is_safe(url: SecretUrl) -> bool:
    try:
        parts = urlsplit(url.get_secret_value())
        (parts.hostname or "").encode("idna")  # UnicodeError is a ValueError
        return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK))
    except ValueError:
        return False


class NotifySettings(Section):
    """`[notify]`: who gets notifications."""

    urls: tuple[SecretUrl, ...] = ()
    urls_file: OptionalPath = None
    on: tuple[Named, ...] = USUAL
    digest_at: Time = "08:00"
    stuck_hours: float = Field(default=6.0, ge=0)
    targets: Annotated[tuple[TargetSettings, ...], AfterValidator(distinct)] = ()
    _of_file: tuple[SecretUrl, ...] = PrivateAttr(default=())

    @property
    def receivers(self) -> tuple[Receiver, ...]:
        """Who is told: by `urls`, by those of the file, and the targets."""
        return (*self._by_urls(), *(receiver for target in self.targets if (receiver := target.receiver)))

    def _by_urls(self) -> Iterator[Receiver]:
        # 1.0 had no event for the end of what waits or lacks room: who was told of its beginning was told of it.
        ends = {"recovered"} if {"stuck", "disk_low"} & set(self.on) else set[Event]()
        for key, urls in {"urls": self.urls, "urls_file": self._of_file}.items():
            for number, url in enumerate(urls):
                yield Receiver(place_of(key, number, url), url, on=frozenset(self.on) | ends)

    def wants(self, *events: str) -> bool:
        """Whether anybody is to be told of one of these events."""
        return any(not receiver.on.isdisjoint(events) for receiver in self.receivers)

    def differences(self, new: NotifySettings) -> Iterator[str]:
        """What of the secrets differs in `new`, each as a line without them."""
        if self.urls != new.urls:
            yield "notify.urls: changed"
        if self._of_file != new._of_file and self.urls_file == new.urls_file:
            yield "notify.urls_file: what it holds changed"
        if self.targets != new.targets:
            yield "notify.targets: changed"

    @property
    def files(self) -> Iterable[tuple[str, Path]]:
        """Key and path of each file with a secret."""
        yield from ((f"targets.{target.name}.{key}", path) for target in self.targets
                    for key in ("url_file", "secret_file", "key_file") if (path := getattr(target, key)) is not None)  # fmt: skip

    def with_file(self, *, needed: bool = True) -> Self:
        """The same with the URLs of `urls_file` or of the service manager's credential, and with what files of targets hold.

        Raises ValueError where a file can't be used: its text begins with the key. `needed`: False for who sends nothing: a file that this
        user may not read is then left out.
        """
        complete = self.model_copy(update={"targets": tuple(self._complete_targets(needed))})
        file = file_of(self.urls_file)
        if file is not None and not needed and is_closed(file):
            file = None
        try:
            complete._of_file = () if file is None else read_urls(file)
        except ValueError as error:
            raise ValueError(f"urls_file: {error}") from None
        return complete

    def _complete_targets(self, needed: bool) -> Iterator[TargetSettings]:
        for number, target in enumerate(self.targets):
            try:
                yield target.with_files(needed=needed)
            except ValueError as error:
                raise ValueError(f"targets.{number}.{error}") from None
