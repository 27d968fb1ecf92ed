"""A job's configuration that this version does not understand in full: what it does not understand is left out, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from daemon.contract.jobs.options import Work

WRITTEN: dict[str, Any] = {
    "export": {"variants": ["onnx"], "target": {"kl": 0.02, "size": "0.3x"}},
    "validation": {"samples": 3, "prompts": "some.txt", "on_failed_check": "reject", "thresholds": {"onnx": {"kl": 1e-9, "error": 0.5}}},
    "merge": {},
    "onnx": {"block_size": 64},
}


def _leaves(value: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, one in value.items():
        if isinstance(one, dict):
            yield from _leaves(one, (*path, key))
        else:
            yield (*path, key)


@pytest.mark.parametrize("place", [*_leaves(WRITTEN), ("onnx", "new"), ("validation", "new"), ("validation", "thresholds", "onnx", "new")])
@pytest.mark.parametrize("wrong", [None, {"of": "another version"}])
def test_a_key_that_is_not_understood_has_its_default_alone(place: tuple[str, ...], wrong: object) -> None:
    written = json.loads(json.dumps(WRITTEN))
    section = written
    for key in place[:-1]:
        section = section[key]
    section.pop(place[-1], None)
    expected = Work.model_validate(written)
    section[place[-1]] = wrong
    assert Work.recovered(json.dumps(written)) == expected


@pytest.mark.parametrize(
    "text", ["[]", "null", '{"validation": 3, "export": []}', '{"elsewhere": {}}', "{", '{"validation": {"thresholds": 1}}']
)
def test_a_text_of_which_nothing_is_understood_is_all_defaults(text: str) -> None:
    assert Work.recovered(text) == Work.recovered("{}")
    assert Work.recovered("{}").validation.samples > 0


def test_jobs_of_one_configuration_share_it_and_a_change_of_it_is_another() -> None:
    text = Work.model_validate(WRITTEN).text
    work = Work.recovered(text)
    assert Work.recovered(text.encode().decode()) is work, "another text object with the same configuration"
    assert Work.model_validate(WRITTEN).shared() is work
    before = work.digest
    changed = work.model_copy(update={"export": work.export.model_copy(update={"opset": work.export.opset + 1})})
    assert changed.digest != before and json.loads(changed.text)["export"]["opset"] == work.export.opset + 1
    assert work.digest == before and Work.model_validate(WRITTEN) == work, "what was worked out of it does not count"
