"""Every kind of target passes the same checks over its own far end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deliver.contract.bench import Bench
from tests.deliver.contract.checks import CHECKS, Check
from tests.deliver.contract.site import Site, sites

ALWAYS = frozenset({"reference", "store"})
"""Kinds of which all quick checks are made each time."""
FEW = frozenset({
    "a_whole_version_arrives_and_is_followed", "what_has_not_passed_is_delivered_and_not_followed", "what_is_refused_waits_for_a_person",
    "a_far_end_that_lies_is_caught", "the_followed_version_is_not_taken_away", "a_source_that_changed_makes_nothing_visible",
})  # fmt: skip
"""What is checked of all others each time; the rest takes ten minutes, and is slow."""


def _is_slow(name: str, check: Check) -> bool:
    return check.slow or not (name in ALWAYS or check.name in FEW)


def _cases() -> list[Any]:
    return [
        pytest.param(
            site, check, id=f"{name}-{check.name}", marks=[pytest.mark.slow, pytest.mark.timeout(1800)] if _is_slow(name, check) else []
        )
        for name, site in sites().items()
        for check in CHECKS
        if check.name not in site.lacks
    ]


@pytest.mark.parametrize(("kind", "check"), _cases())
def test_a_target_does_what_all_do(kind: type[Site], check: Check, tmp_path: Path) -> None:
    (folder := tmp_path / "far end").mkdir()
    with kind(folder) as site:
        if check.over_http and site.proxy is None:
            pytest.skip("its far end does not speak HTTP")
        check.call(Bench(site, tmp_path))


@pytest.mark.parametrize("kind", [pytest.param(site, id=name) for name, site in sites().items()])
def test_what_a_target_lacks_is_a_check_and_has_a_reason(kind: type[Site]) -> None:
    assert set(kind.lacks) <= {check.name for check in CHECKS} and all(kind.lacks.values())
