"""The contract by obstore, as for gs:// and az://, over S3: emulators of those clouds can't be had everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from tests.deliver.contract.bench import Bench, started
from tests.deliver.contract.checks import CHECKS, Check
from tests.deliver.store.s3_site import S3Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LACKS = {
    "a_wish_for_a_pause_is_kept": "the library does not hand on the header Retry-After: the daemon's own pauses hold",
    "a_wrong_clock_changes_nothing": "the clock that the tests set is Python's, and the library takes no time but the real one",
}


class CloudSite(S3Site):
    entry = "tests.deliver.store.through_obstore:ThroughObstore"
    part: ClassVar[int] = 300_000
    """An upload that is cut begins anew."""

    def leftovers(self) -> list[str]:
        """The library names no upload that it has begun: the cloud's own rule for unfinished ones takes it away."""
        return [key for key in self.keys() if "/.begun/" in key]


@pytest.fixture
def bench(tmp_path: Path, python: Path) -> Iterator[Bench]:
    with started(CloudSite, tmp_path, python=python) as made:
        yield made


@pytest.mark.parametrize("check", [check for check in CHECKS if not check.slow and check.name not in LACKS], ids=lambda check: check.name)
def test_the_contract_holds(bench: Bench, check: Check) -> None:
    check.call(bench)
