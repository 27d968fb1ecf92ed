"""`[[deliver]]`: each target with the keys that all have and those of its kind, in one table.

Called by `daemon.config.settings`. What a kind's own keys are its declaration says (`daemon.contract.delivering.kinds`), which is read
when a table names the kind, and not before.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    ByteSize,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    Secret,
    SerializeAsAny,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, to_jsonable_python

from daemon.config.receivers import file_of, is_closed, read_text
from daemon.config.section import WITHOUT_SECRETS, OptionalPath, Section, form
from daemon.config.suggestions import nearest
from daemon.contract.delivering.declaration import DeliveryKind
from daemon.contract.faults.secrets import holds_secret, shown
from daemon.contract.formats.mistakes import alike
from daemon.contract.values import Json

CREDENTIAL = "deliver-"
"""What the name of the credential begins with by which a service manager gives a target's secret, before the target's name:
`LoadCredential=deliver-hub:PATH` (systemd.exec(5))."""
_FOLDERS = ("folder", "staging", "url")
"""Keys by which kinds name a folder, or the address of one."""
_SECRET_VARIABLE = re.compile("TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL|CONNECTION_STRING")


class DeliverTarget(Section):
    """Each of `[[deliver]]`. What is made of a table is of the class of its kind, which has that kind's keys too."""

    name: Annotated[str, form(r"[A-Za-z0-9_-]{1,40}", "must be of letters, digits, _ and -, at most 40")]
    kind: str
    runs: tuple[str, ...] = ()
    policy: Literal["all", "passed", "best"] = "passed"
    steps: int = Field(default=0, ge=0)
    variants: tuple[str, ...] = ()
    bandwidth: ByteSize = Field(default=ByteSize(0), ge=0, validate_default=True)
    keep: int = Field(default=0, ge=0)
    secret_file: OptionalPath = None
    read_back: bool = True
    share: float = Field(default=0.9, ge=0, le=1)
    _secret: Secret[str] = PrivateAttr(default=Secret(""))

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_kind(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Any:
        """Read a table as its kind's class has it; of a kind that is not known only what all have is looked at."""
        if cls is not DeliverTarget or not isinstance(value, Mapping):
            return handler(value)
        if (kind := cls.for_table(value)) is not cls:
            return kind.model_validate(value)
        return handler({key: item for key, item in value.items() if key in cls.model_fields})

    @field_validator("kind")
    @classmethod
    def _kind_is_known(cls, value: str) -> str:
        from daemon.contract.delivering.kinds import kinds  # as in `for_table`

        if value not in (known := kinds()).by_name:
            hint = nearest(value, known.by_name) if known.by_name else "none is installed"
            left_out = "" if alike(value, known.by_name, 0.5) else "".join(f"; {problem}" for problem in known.problems)
            raise PydanticCustomError(WITHOUT_SECRETS, "there is no such kind; {hint}", {"hint": f"{hint}{left_out}"})
        return value

    @model_validator(mode="after")
    def _keeps_secrets_out(self) -> Self:
        for key, value in self.model_dump(include={*self._own_keys}).items():
            if any(map(holds_secret, _texts_in(value))):
                text = "{key} holds a user, a password or a key: write them into the file of secret_file"
                raise PydanticCustomError(WITHOUT_SECRETS, text, {"key": key})
        return self

    @classmethod
    def for_table(cls, table: Any) -> type[DeliverTarget]:
        """The class of the kind that a table names; this one where there is no such kind."""
        from daemon.contract.delivering.kinds import kinds  # other packages' code, which runs where somebody wants it

        name = table.get("kind") if isinstance(table, Mapping) else None
        declared = kinds().by_name.get(name) if isinstance(name, str) else None
        return DeliverTarget if declared is None else _class_of(declared)

    @property
    def _own_keys(self) -> Sequence[str]:
        return [key for key in type(self).model_fields if key not in DeliverTarget.model_fields]

    @property
    def declared(self) -> DeliveryKind:
        """What its kind says of itself."""
        from daemon.contract.delivering.kinds import kinds

        return kinds().by_name[self.kind]

    @property
    def options(self) -> Json:
        """The kind's own keys, secrets in clear: for the delivery's process alone."""
        return {key: _in_clear(getattr(self, key)) for key in self._own_keys}

    def secret(self) -> str:
        """What the secret file, or the service manager's credential, holds; "" without one."""
        return self._secret.get_secret_value()

    @property
    def secret_variables(self) -> dict[str, str]:
        """Those of the kind's variables that this process's environment has: handed on where no file gives a secret."""
        return {} if self.secret() else {name: os.environ[name] for name in self.declared.secret_variables if name in os.environ}

    @property
    def secrets(self) -> Iterator[str]:
        """All that nothing may show."""
        yield self.secret()
        yield from (value for name, value in self.secret_variables.items() if _SECRET_VARIABLE.search(name))
        yield from (value.get_secret_value() for key in self._own_keys if isinstance(value := getattr(self, key), Secret))

    @property
    def has_secret_in_configuration(self) -> bool:
        """Whether one of its keys is a secret itself."""
        return any(isinstance(value, Secret) and value.get_secret_value() for value in (getattr(self, key) for key in self._own_keys))

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders of this machine into which it writes, as far as its keys tell."""
        texts = (text for key in self._own_keys if key in _FOLDERS for text in _texts_in(getattr(self, key)))
        return tuple(Path(text.removeprefix("file://")) for text in texts if re.match(r"(file://)?/", text))

    def is_for(self, run: str) -> bool:
        """Whether a run's exports go there."""
        return not self.runs or any(fnmatchcase(run, pattern) for pattern in self.runs)

    def with_secret(self, *, needed: bool) -> Self:
        """The same with its secret. `needed`: False for who delivers nothing: a file that this user may not read is then left out. Raises
        ValueError, whose text has nothing of the file."""
        file = file_of(self.secret_file, f"{CREDENTIAL}{self.name}")
        if file is None or (not needed and is_closed(file)):
            return self
        complete = self.model_copy()
        complete._secret = Secret(read_text(file))
        return complete


@functools.cache
def _class_of(declared: DeliveryKind) -> type[DeliverTarget]:
    return create_model(f"DeliverTarget ({declared.name})", __base__=(declared.options, DeliverTarget), __module__=__name__)  # type: ignore[arg-type]


def _in_clear(value: Any) -> Any:
    """A value as JSON has it, with the secrets in it."""
    if isinstance(value, Secret):
        return _in_clear(value.get_secret_value())
    if isinstance(value, Mapping):
        return {str(key): _in_clear(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_in_clear(item) for item in value]
    return to_jsonable_python(value)


def _texts_in(value: Any) -> Iterable[str]:
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in _texts_in(part))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in _texts_in(part))


Targets = tuple[SerializeAsAny[DeliverTarget], ...]


def complete(targets: Targets, *, needed: bool) -> Targets:
    """The targets with their secrets. Raises ValueError, whose text begins with the key."""
    return tuple(_completed(number, target, needed) for number, target in enumerate(targets))


def _completed(number: int, target: DeliverTarget, needed: bool) -> DeliverTarget:
    try:
        return target.with_secret(needed=needed)
    except ValueError as error:
        raise ValueError(f"deliver.{number}.secret_file: {error}") from None


def differences(old: Targets, new: Targets) -> Iterator[str]:
    """What of the targets differs, each as a line without secrets."""
    before, after = ({target.name: target for target in targets} for targets in (old, new))
    for name in {**before, **after}:
        if name not in after or name not in before:
            yield f"deliver.{name}: {'added' if name in after else 'removed'}"
        elif before[name] != after[name]:
            yield f"deliver.{name}: changed"


def conflicts(targets: Targets, known: Sequence[str]) -> Iterator[str]:
    """Variants that no export has, or that a kind can't take."""
    for number, target in enumerate(targets):
        place = f"deliver.{number}.variants"
        for name in target.variants:
            if name not in known:
                yield f"{place}: there is no variant {shown(name)}; {nearest(name, known)}"
            elif (fitting := target.declared.variants) and not any(fnmatchcase(name, pattern) for pattern in fitting):
                yield f"{place}: a target of the kind {target.kind} can't take {shown(name)}; it takes {', '.join(fitting)}"
