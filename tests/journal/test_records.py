"""Records are read and made without pydantic where a value is exactly what a field's annotation says, and give what pydantic gives."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from daemon.contract import records
from daemon.contract.disk.files import FileEntry
from daemon.contract.faults.errors import Fault
from daemon.contract.faults.fault_codes import FaultCode
from daemon.contract.formats.thresholds import Thresholds
from daemon.contract.jobs.messages import ArtifactCheck, Outcome, StageResult, Verdict
from daemon.contract.jobs.options import Work
from daemon.contract.jobs.terms import terms_of
from daemon.contract.models.configs import AdaLoraConfig, ModelConfig
from daemon.contract.records import Record, read_json
from daemon.operating.last_end import LastEnd
from daemon.operating.monitoring.live import LiveFile

ODD: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2.5, 10**400, float("nan"), "", "x", "5", "2.5", "true", "é 中", "\ud83d\ude00", [], ["x"], [1], [None], {},
    {"a": 1}, {"a": {}}, "passed", "onnx",
    "x" * 4097, "a\0b", ["x"] * 1001, [True], {"a": 0}, {"a": [True]}, {"a": [1]}, 1 << 31, -(10**31), 1e31, -1e31, float("inf"),
)  # fmt: skip


def kinds(above: type[Record] = Record) -> Iterator[type[Record]]:
    """Every record that is there."""
    for kind in above.__subclasses__():
        if kind.__dataclass_fields__:
            yield kind
        yield from kinds(kind)


KINDS: tuple[Any, ...] = (*dict.fromkeys([*kinds(), AdaLoraConfig, ModelConfig]), LiveFile, LastEnd)


def sample(kind: Any) -> Any:
    """A JSON value of a type, in which nothing is left out."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind, include_extras=True)
        return {field.name: sample(hints[field.name]) for field in dataclasses.fields(kind)}
    if origin is typing.Annotated:
        least = max((mark.least for mark in kind.__metadata__ if isinstance(mark, records.Within)), default=0)
        return sample(inner[0]) + least if least else sample(inner[0])
    if origin in (typing.Union, UnionType):
        return sample(next(part for part in inner if part is not NoneType))
    if origin is typing.Literal:
        return inner[0]
    if origin is tuple:
        return [sample(inner[0])] * 2
    if origin is not None and issubclass(origin, Mapping):
        return {"name": sample(inner[1])}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(iter(kind)).value
    return {str: "text", int: 3, float: 0.5, bool: True, Any: {"any": [1, None]}}[kind]


def texts(kind: Any) -> Iterator[str]:
    """JSON texts of a record: as it should be, with each field missing or of another type, with a key too many, and none."""
    whole = sample(kind)
    yield json.dumps(whole)
    yield json.dumps(whole, indent=1) + " " * 100
    yield json.dumps({**whole, "odd": 1})
    for name in whole:
        yield json.dumps({key: value for key, value in whole.items() if key != name})
        yield from (
            json.dumps({**whole, name: value}, ensure_ascii=False, default=str).encode("utf-8", "replace").decode() for value in ODD
        )
        yield json.dumps({**whole, name: "\ud800"})
    yield from ("", "{", "[]", "null", "3", '"x"', "\ufeff{}", '{"a": 1} {}', "[" * 5000)


def outcome(read: Any, *what: Any) -> str:
    """What reading gives, with the types of all values; that it is refused, where it is."""
    try:
        return repr(read(*what))
    except ValidationError:
        return "refused"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_text_is_read_as_pydantic_reads_it(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    differing = {
        text: (read, wanted)
        for text in texts(kind)
        if (read := outcome(read_json, kind, text)) != (wanted := outcome(adapter.validate_json, text))
    }
    assert not differing


MADE = [kind for kind in KINDS if issubclass(kind, Record) and kind is not Fault and not kind.__pydantic_config__.get("strict")]
"""Records that the program makes too; strict ones are only read."""


@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
def test_values_are_taken_as_pydantic_takes_them(kind: type[Record]) -> None:
    adapter, whole = TypeAdapter(kind), sample(kind)
    for name in whole:
        for value in ODD:
            given = {**whole, name: value}
            assert outcome(lambda: kind(**given)) == outcome(adapter.validate_python, given), given  # noqa: B023


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_as_it_should_be_needs_no_pydantic(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "validator_of", lambda kind: pytest.fail(f"pydantic is asked for a {kind}"))
    assert read_json(kind, json.dumps(sample(kind))) is not None


def test_a_record_is_copied_compared_and_written_as_a_model_is() -> None:
    check = ArtifactCheck(variant="onnx", verdict=Verdict.FAILED, reasons=("x",))
    result = StageResult(outcome=Outcome.SUCCEEDED, checks=(check,))
    assert StageResult.model_validate_json(result.model_dump_json()) == result == StageResult.model_validate(result.model_dump())
    assert result.model_copy() == result != result.model_copy(update={"peak_rss": 1})
    assert repr(result.model_copy(update={"seconds": 3}).seconds) == "3.0"
    entry = {"path": "a", "size": 1, "sha256": "0"}
    assert FileEntry.model_validate(entry, strict=True).model_dump() == entry
    with pytest.raises(ValidationError):
        FileEntry.model_validate({**entry, "size": "1"}, strict=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        check.variant = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="odd"):
        ArtifactCheck(variant="onnx", verdict=Verdict.FAILED, odd=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="less than or equal to 1"):
        Thresholds(agreement=97, kl=0, error=0)


def test_a_fault_is_cleaned_however_it_is_made() -> None:
    values: dict[str, Any] = {"code": "timeout", "operation": "go\u202e on", "cause": "it \ud800 failed. ", "remedy": "wait.", "more": 1}
    made = Fault(**values)
    assert made.code is FaultCode.TIMEOUT and (made.operation, made.cause, made.remedy) == ("go\\u202e on", "it \\ud800 failed", "wait")
    read = TypeAdapter(Fault).validate_json(made.model_dump_json())
    assert read == made and read.code is FaultCode.TIMEOUT
    assert (
        Fault.model_validate({**made.model_dump(), "cause": "run pip install x. Or not."}).cause
        == made.model_copy(update={"cause": "run pip install x. Or not."}).cause
    )


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"export": {"variants": ["onnx", "gone"], "quantization": "int4"}}, {"export": {"variants": "x"}},
        {"export": {"deploy": ["ios"]}},
        {"validation": {"on_failed_check": "publish", "publish_unverified": ["onnx"], "fallback_minutes": 1}},
        {"validation": {"fallback_minutes": 0}}, {"validation": {"fallback_minutes": "7"}}, {"validation": {"on_failed_check": "odd"}},
        {"validation": None}, {"elsewhere": {"key": 1}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("whole", [True, False])
def test_what_decides_verdicts_is_read_of_a_job_as_with_all_its_options(changes: dict[str, Any], whole: bool) -> None:
    written = Work.recovered("{}").model_dump(mode="json") if whole else {}
    for name, section in changes.items():
        written[name] = {**written.get(name, {}), **section} if isinstance(section, dict) else section
    text = json.dumps(written)
    terms, work = terms_of(text), Work.recovered(text)
    assert (terms.export.variants, terms.export.quantization) == (work.export.variants, work.export.quantization)
    for name in ("publish_unverified", "on_failed_check", "fallback_minutes"):
        assert getattr(terms.validation, name) == getattr(work.validation, name)
