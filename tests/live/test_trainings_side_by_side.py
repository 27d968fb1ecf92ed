"""Three real trainings below one root at the same time: each of their checkpoints is taken exactly once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.live.test_training_exported_live import start_training
from tests.service import Service


@pytest.mark.slow
def test_a_plain_a_resumed_and_a_rotating_training_are_all_taken_exactly_once(  # R1.1
    make_service: Callable[..., Service], pico_base: Path
) -> None:
    service = make_service()
    service.start()
    service.wait_for(lambda v: v["daemon"]["running"] and v["daemon"]["pid"])
    plain, resumed, rotating = (service.root / name for name in ("plain", "resumed", "rotating"))
    trainings = [
        start_training(pico_base, plain, steps=4, save_steps=2, pause=0.5),
        start_training(pico_base, resumed, steps=4, save_steps=2, pause=0.5),
        start_training(pico_base, rotating, steps=4, save_steps=1, save_total_limit=1, pause=1.5),
    ]
    try:
        assert trainings[1].wait(180) == 0
        first = service.wait_for(lambda v: sum(job["run"] == "resumed" for job in v["jobs"]) == 2, 60)
        before = {job["id"] for job in first["jobs"] if job["run"] == "resumed"}
        # Another batch size: step 4 is written again with other weights.
        again = resumed / "checkpoint-2"
        trainings.append(start_training(pico_base, resumed, steps=4, save_steps=2, pause=0.5, batch=1, resume=str(again)))
        assert [training.wait(180) for training in trainings] == [0, 0, 0, 0]
        done = service.wait_for(lambda v: len(v["jobs"]) >= 2 + 3 + 4, 60)
    finally:
        for training in trainings:
            training.kill()
            training.wait()
    assert service.stop() == 0
    taken = Counter((job["run"], job["step"]) for job in done["jobs"])
    assert taken == {
        ("plain", 2): 1, ("plain", 4): 1, ("resumed", 2): 1, ("resumed", 4): 2,
        ("rotating", 1): 1, ("rotating", 2): 1, ("rotating", 3): 1, ("rotating", 4): 1,
    }  # fmt: skip
    assert before < {job["id"] for job in done["jobs"]}
    assert [path.name for path in rotating.glob("checkpoint-*")] == ["checkpoint-4"]
    assert done["lost"] == []
