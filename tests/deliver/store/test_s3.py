"""The contract over S3, as moto's server speaks it."""

from __future__ import annotations

import pytest

from tests.deliver.contract.bench import Bench
from tests.deliver.contract.checks import CHECKS, Check

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_the_contract_holds(bench: Bench, check: Check) -> None:
    check.call(bench)
