"""The contract of schedulers: the tests' own and a real Slurm pass it unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.bench import Bench
from tests.cluster.contract import (
    CONTRACT,
    a_daemon_that_starts_again_goes_on_with_what_runs,
    an_attempt_runs_and_its_files_are_where_the_daemon_expects_them,
)
from tests.cluster.failures import FAILURES

Promise = Callable[[Bench], None]
BY_NAME = pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)


@BY_NAME
def test_the_scheduler_of_the_tests_keeps(promise: Promise, bench: Bench) -> None:
    promise(bench)


SHORT = (an_attempt_runs_and_its_files_are_where_the_daemon_expects_them, a_daemon_that_starts_again_goes_on_with_what_runs)
"""What a real Slurm is asked in the quick tests too; it needs about three seconds for each."""


@pytest.mark.parametrize(
    "promise", [pytest.param(promise, marks=() if promise in SHORT else pytest.mark.slow, id=promise.__name__) for promise in CONTRACT]
)
def test_slurm_keeps(promise: Promise, slurm_bench: Bench) -> None:
    promise(slurm_bench)


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__)
def test_whatever_fails(failure: Promise, bench: Bench) -> None:
    failure(bench)
