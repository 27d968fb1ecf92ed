"""kill -9 at every named point there is, and at random times for hundreds of rounds: nothing lost, nothing twice, nothing half.

The stages are toys, so that a round takes seconds; daemon, journal, child entry and publication are the real ones. After
each case the shared checker of the invariants looks at everything (`daemon.operating.integrity.fsck`).
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from daemon.contract.disk.files import files_below
from daemon.operating.integrity.fsck import examine
from daemon.publishing.verification import exports_below
from tests.runner.conftest import ALL, Toy, artifacts
from tests.service import stray_handlers

Add = Callable[..., Path]
QUICK = 1
"""Points tried in the quick set; the slow one tries them all."""
ROUNDS = int(os.environ.get("KILL_ROUNDS", "200"))
STAGES = 9


def check(toy: Toy, count: int, expected: dict[str, str] | None = None) -> None:
    """Stop the daemon in order; then everything must be there, once, whole, and nothing else."""
    assert toy.stop() == 0
    findings = examine(toy.state, toy.exports, quiescent=True, deep=True)
    assert findings.findings == (), findings
    exports = [export for export in exports_below(toy.exports) for path in files_below(export) if path.stat().st_nlink != 1]
    assert exports == [], "a published file has one link"
    jobs = toy.status()["jobs"]
    assert Counter(job["state"] for job in jobs) == {"succeeded": count}, toy.log()[-3000:]
    assert stray_handlers(toy.folder) == []
    if expected is not None:
        assert artifacts(Path(jobs[0]["target"])) == expected


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, pico_checkpoint: Path) -> tuple[dict[str, str], list[str]]:
    """What an export that nothing disturbed publishes, and every fault point that it passes."""
    from tests.runner.conftest import copied

    toy = Toy(tmp_path_factory.mktemp("undisturbed"), variants=ALL)
    trace = toy.folder / "trace.txt"
    toy.environment |= {"CKPTD_FAULT_TRACE": str(trace)}
    copied(pico_checkpoint, toy)
    toy.start()
    (job,) = toy.wait_ended()
    check(toy, 1)
    seen = dict.fromkeys(trace.read_text().split())
    return artifacts(Path(job["target"])), [name for name in seen if name not in ("before.heartbeat", "after.heartbeat")]


def killed_at(point: str, toy: Toy, add: Add, expected: dict[str, str]) -> None:
    """Kill whoever comes to `point` first, daemon or child; start again if it was the daemon; compare."""
    add(toy)
    once = toy.folder / "once"
    once.touch()
    toy.environment |= {"CKPTD_FAULT_ONCE": str(once)}
    toy.start(fault=point)
    toy.wait_for_death_or_end()
    assert not once.exists(), f"the point {point} was never reached"
    if toy.process is not None and toy.process.poll() is not None:
        assert toy.process.returncode == -signal.SIGKILL
        toy.start()
    toy.wait_ended()
    begun = Counter(stage for _, stage, _ in toy.begun())
    check(toy, 1, expected)
    assert sum(begun.values()) <= STAGES + 1, f"more than one attempt was repeated: {begun}"


def test_killed_at_some_points_it_ends_with_the_same_artifacts(  # R6.5
    make_toy: Callable[..., Toy], add: Add, undisturbed: tuple[dict[str, str], list[str]]
) -> None:
    expected, points = undisturbed
    assert len(points) > 25, points
    generator = random.Random(seed := random.randrange(10**6))
    print(f"seed {seed}")
    for point in generator.sample(points, QUICK):
        print(point)
        killed_at(point, make_toy(variants=ALL, extra="[limits]\nretry_seconds = 0.1\n"), add, expected)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["publish.lent", "kept.moved"])
def test_killed_while_outputs_hand_their_files_to_the_export_it_ends_with_the_same_artifacts(  # R6.5
    make_toy: Callable[..., Toy], add: Add, undisturbed: tuple[dict[str, str], list[str]], point: str
) -> None:
    expected, points = undisturbed
    assert point in points
    killed_at(point, make_toy(variants=ALL, extra="[limits]\nretry_seconds = 0.1\n"), add, expected)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_every_point_it_ends_with_the_same_artifacts(  # R6.5
    make_toy: Callable[..., Toy], add: Add, undisturbed: tuple[dict[str, str], list[str]]
) -> None:
    expected, points = undisturbed
    for point in points:
        print(point)
        killed_at(point, make_toy(variants=ALL, extra="[limits]\nretry_seconds = 0.1\n"), add, expected)


def kill_rounds(toy: Toy, add: Add, rounds: int, seed: int) -> None:
    """Start, add a checkpoint now and then, kill -9 at a random time, and so on; in the end everything must be there."""
    generator = random.Random(seed)
    count = 0
    for number in range(rounds):
        if number % 4 == 0:
            count += 1
            add(toy, run=f"run-{generator.randrange(3)}", step=count)
        toy.start()
        time.sleep(generator.uniform(0.3, 2.0))
        victims = [process.pid for process in toy.children()]
        if victims and generator.random() < 0.3:
            with_luck(victims[0])
            time.sleep(generator.uniform(0, 0.3))
        toy.kill()
    toy.start()
    toy.wait_ended(count, seconds=300)
    check(toy, count)


def with_luck(pid: int) -> None:
    """Kill a child, if it still lives."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_some_rounds_of_kills_at_random_times_lose_nothing(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.5
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    kill_rounds(make_toy(variants=ALL, extra="[limits]\nretry_seconds = 0.1\nattempts = 50\ncrashes = 1000\n"), add, 5, seed)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_hundreds_of_rounds_of_kills_at_random_times_lose_nothing(make_toy: Callable[..., Toy], add: Add) -> None:  # R6.5
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    kill_rounds(make_toy(variants=ALL, extra="[limits]\nretry_seconds = 0.1\nattempts = 50\ncrashes = 1000\n"), add, ROUNDS, seed)
