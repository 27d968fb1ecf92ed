"""The contract of schedulers: the tests' own and a real Slurm pass it unchanged."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest

from tests.cluster import failures, signs
from tests.cluster.bench import Bench
from tests.cluster.contract import CONTRACT, an_attempt_runs_and_its_files_are_where_the_daemon_expects_them

Promise = Callable[[Bench], None]
BY_NAME = pytest.mark.parametrize("promise", CONTRACT, ids=lambda promise: promise.__name__)


@BY_NAME
def test_the_scheduler_of_the_tests_keeps(promise: Promise, bench: Bench) -> None:
    promise(bench)


SHORT = (an_attempt_runs_and_its_files_are_where_the_daemon_expects_them,)
"""What a real Slurm is asked in the quick tests too."""
AT_ONCE = (
    failures.an_answer_that_was_lost_submits_nothing_twice, failures.a_job_that_is_started_again_does_nothing,
    failures.what_waits_and_is_stopped_never_begins, failures.a_refusal_is_said, failures.other_releases_are_refused_before_anything_runs,
    failures.a_daemon_that_died_before_it_asked_asks_once,
)  # fmt: skip
"""What fails, of the quick tests too: what nothing must be waited for."""


def marked(promises: Collection[Promise], quick: Collection[Promise]) -> pytest.MarkDecorator:
    """Each of the promises as a case; those that are not among the quick ones are slow."""
    cases = [pytest.param(each, marks=() if each in quick else pytest.mark.slow, id=each.__name__) for each in promises]
    return pytest.mark.parametrize("promise", cases)


@marked(CONTRACT, SHORT)
def test_slurm_keeps(promise: Promise, slurm_bench: Bench) -> None:
    promise(slurm_bench)


@marked((*failures.FAILURES, *signs.SIGNS), AT_ONCE)
def test_whatever_fails(promise: Promise, bench: Bench) -> None:
    promise(bench)
