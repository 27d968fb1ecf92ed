"""A daemon on which nobody has set [retention]: it says what stays, removes what it published itself, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runner.conftest import Toy


def there(toy: Toy) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (toy.exports / "run").glob("step-*"))


def lines(toy: Toy, event: str) -> list[dict[str, str]]:
    log = (toy.state / "ckptd.log").read_text()
    return [line for line in map(json.loads, log.splitlines()) if line["event"] == event]


@pytest.mark.slow
def test_what_was_published_before_the_default_stays_and_later_ones_go(make_toy: Callable[..., Toy], add: Callable[..., Path]) -> None:
    toy = make_toy()
    toy.start()
    for number, step in enumerate((2, 4), 1):
        add(toy, step=step)
        toy.wait_ended(number)
    assert toy.stop() == 0
    for step in (2, 4):  # as a release without the default left them
        os.utime(toy.exports / "run" / f"step-{step}" / "MANIFEST.json", (1_700_000_000, 1_700_000_000))
    toy.start()
    for number, step in enumerate(range(6, 24, 2), 3):
        add(toy, step=step)
        toy.wait_ended(number)
    assert toy.stop() == 0
    assert there(toy) == [2, 4, 14, 16, 18, 20, 22]
    said = "keeps the latest 5, the best 3 and what `prune --keep` names, of each run; older ones are removed ([retention], by default)"
    assert {line["retention"] for line in (*lines(toy, "export.finished"), *lines(toy, "daemon.started"))} == {said}
    assert [Path(line["path"]).name for line in lines(toy, "export.removed")] == ["step-6", "step-8", "step-10", "step-12"]
    assert toy.run_verb("fsck") == 0, toy.said
