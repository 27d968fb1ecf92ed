"""What the base says without its fine-tuning is measured beside the reference, for people who want to see what the training changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daemon.contract.fault_codes import FaultCode
from handlers.texts.built_in import BUILT_IN
from handlers.validate import record
from handlers.validate.checks.samples import SHOWN
from handlers.validate.workers.client import WorkerFailed
from handlers.validate.workers.protocol import Greedy
from tests.validate.bench import Direct, measured


def test_the_base_says_what_it_says_alone_and_the_first_prompts_are_kept(pico_base: Path, pico_checkpoint: Path, tmp_path: Path) -> None:
    prompts = BUILT_IN[: SHOWN + 1]
    found = measured(pico_checkpoint, pico_base, pico_base, tmp_path / "live", prompts).reference
    alone = measured(pico_base, None, pico_base, tmp_path / "alone", prompts).reference
    assert [one.base for one in found.samples] == [*(one.continuation for one in alone.samples[:SHOWN]), None]
    assert [one.base for one in found.samples[:SHOWN]] != [one.continuation for one in found.samples[:SHOWN]], "training changed it"
    assert [one.base for one in alone.samples] == [None] * len(prompts), "a full fine-tune has no base"
    record.logits_folder(tmp_path)
    record.write_reference(tmp_path, found)
    assert [one.base for one in record.read_reference(tmp_path).samples] == [one.base for one in found.samples]


def test_a_base_that_can_not_be_asked_costs_its_text_alone(
    pico_base: Path, pico_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask: Any = Direct.ask

    def refusing(code: FaultCode) -> Any:
        def refuse(self: Direct, request: Any) -> Any:
            if isinstance(request, Greedy) and request.bare:
                raise WorkerFailed("no bare steps here", "", code=code)
            return ask(self, request)

        return refuse

    monkeypatch.setattr(Direct, "ask", refusing(FaultCode.ENGINE))
    found = measured(pico_checkpoint, pico_base, pico_base, tmp_path / "live", BUILT_IN[:2]).reference
    assert [one.base for one in found.samples] == [None, None] and found.adapter is not None
    monkeypatch.setattr(Direct, "ask", refusing(FaultCode.WORKER_LOST))
    with pytest.raises(WorkerFailed):
        measured(pico_checkpoint, pico_base, pico_base, tmp_path / "lost", BUILT_IN[:2])
