"""What of a job's configuration decides its verdicts, and how it is read from the journal without the models of all options.

`daemon.contract.jobs.options` has those, and with them the defaults: what a job of another version does not say comes from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol

from daemon.contract.jobs.messages import StageFacts
from daemon.contract.jobs.tasks import TaskTerms
from daemon.contract.records import Record, Within, read_json


class ExportTerms(Protocol):
    """Of `[export]`."""

    @property
    def variants(self) -> tuple[str, ...]: ...
    @property
    def quantization(self) -> str: ...


class CheckTerms(Protocol):
    """Of `[validate]`."""

    @property
    def publish_unverified(self) -> tuple[str, ...]: ...
    @property
    def on_failed_check(self) -> str: ...
    @property
    def fallback_minutes(self) -> float: ...
    @property
    def tasks(self) -> Sequence[TaskTerms]: ...


class Terms(Protocol):
    """Of a job's configuration: `Work` has them, and what is read of its text here."""

    @property
    def export(self) -> ExportTerms: ...
    @property
    def validation(self) -> CheckTerms: ...


class Judged(Protocol):
    """A job whose variants get verdicts."""

    @property
    def work(self) -> Terms: ...
    @property
    def stages(self) -> tuple[StageFacts, ...]: ...


def terms_of(text: str) -> Terms:
    """The terms in the JSON text of a `Work`."""
    try:
        return read_json(_Written, text)
    except ValueError:
        from daemon.contract.jobs.options import Work

        return Work.recovered(text)


class _Part(Record):
    """Some keys of a table; what else it has is read by others."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "ignore"}


class _Export(_Part):
    """A job's `export`, as the daemon writes it: with every key."""

    variants: tuple[str, ...]
    quantization: Literal["", "none", "fp16", "int8", "int4"]


class _Task(_Part):
    """Each of its `tasks`."""

    name: str
    variants: tuple[str, ...] = ()
    drop: float | None = None


class _Checks(_Part):
    """A job's `validation`, as the daemon writes it."""

    publish_unverified: tuple[str, ...]
    on_failed_check: Literal["fallback", "reject", "publish"]
    fallback_minutes: Annotated[float, Within(5e-324)]
    tasks: tuple[_Task, ...] = ()


class _Written(_Part):
    """A job's configuration."""

    export: _Export
    validation: _Checks
