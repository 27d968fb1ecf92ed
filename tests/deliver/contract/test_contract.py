"""Every kind of target passes the same checks over its own far end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.deliver.contract.bench import Bench
from tests.deliver.contract.checks import CHECKS, Check
from tests.deliver.contract.site import Site, sites


def _cases() -> list[Any]:
    return [
        pytest.param(site, check, id=f"{name}-{check.name}", marks=[pytest.mark.slow, pytest.mark.timeout(1800)] if check.slow else [])
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
