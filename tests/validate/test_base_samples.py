"""What the base says without its fine-tuning is measured beside the reference, for people who want to see what the training changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from handlers.texts.built_in import BUILT_IN
from handlers.validate import record
from handlers.validate.checks.live import base_texts
from handlers.validate.checks.live.base_texts import FILE, BaseTexts
from handlers.validate.checks.live.samples import SHOWN
from handlers.validate.engines.pytorch.torch_causal import TorchEngine
from handlers.validate.workers.client import WorkerFailed, WorkerRefused
from handlers.validate.workers.protocol import Greedy
from tests.sampling import some
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


@pytest.mark.parametrize(
    ("damage", "steps"),
    some([("none", "fewer"), ("no file", "as many"), ("other tokens", "as many"), ("no numbers", "as many")], of=2),
)
def test_what_the_base_said_before_spares_steps_and_decides_nothing(
    damage: str, steps: str, pico_base: Path, pico_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts, step = list[int](), TorchEngine._run

    def counted(self: TorchEngine, *inputs: Any, **more: Any) -> Any:
        counts[-1] += bool(getattr(self, "bare", False))
        return step(self, *inputs, **more)

    monkeypatch.setattr(TorchEngine, "_run", counted)
    found = []
    for number in range(2):
        counts.append(0)
        texts = BaseTexts(tmp_path / "cache", str(pico_base))
        found.append(measured(pico_checkpoint, pico_base, pico_base, tmp_path / f"live{number}", BUILT_IN[:3], texts).reference)
        texts.store()
        kept = tmp_path / "cache" / FILE
        known = json.loads(kept.read_bytes())
        assert all(8 <= len(one) <= 10 for one in known.values()) and len(known) == 3
        if damage == "no file":
            kept.write_bytes(b"{")
        elif damage != "none":
            kept.write_text(json.dumps({key: [1, 2, 3, 4] if damage == "other tokens" else "abc" for key in known}))
    assert [one.base for one in found[0].samples] == [one.base for one in found[1].samples] and found[0].adapter == found[1].adapter
    assert counts[1] < counts[0] - 3 if steps == "fewer" else counts[1] == counts[0]


def test_texts_of_other_bases_and_questions_are_no_drafts_and_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Greedy(ids=[1, 2], tokens=3, stop=True, bare=True)
    texts = BaseTexts(tmp_path, "base")
    texts.keep(asked, [4, 5, 6])
    texts.store()
    assert BaseTexts(tmp_path, "base").draft(asked) == [4, 5, 6]
    assert BaseTexts(tmp_path, "other").draft(asked) == BaseTexts().draft(asked) == []
    assert all(BaseTexts(tmp_path, "base").draft(asked.model_copy(update=one)) == [] for one in ({"ids": [1]}, {"tokens": 4}, {"least": 1}))
    monkeypatch.setattr(base_texts, "LIMIT", 2)
    for number in range(3):
        texts = BaseTexts(tmp_path, f"base {number}")
        texts.keep(asked, [number])
        texts.store()
    assert [BaseTexts(tmp_path, f"base {number}").draft(asked) for number in range(3)] == [[], [1], [2]]


def test_a_base_that_can_not_be_asked_costs_its_text_alone(
    pico_base: Path, pico_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask: Any = Direct.ask

    def refusing(kind: type[WorkerFailed]) -> Any:
        def refuse(self: Direct, request: Any) -> Any:
            if isinstance(request, Greedy) and request.bare:
                raise kind("no bare steps here", "")
            return ask(self, request)

        return refuse

    monkeypatch.setattr(Direct, "ask", refusing(WorkerRefused))
    found = measured(pico_checkpoint, pico_base, pico_base, tmp_path / "live", BUILT_IN[:2]).reference
    assert [one.base for one in found.samples] == [None, None] and found.adapter is not None
    monkeypatch.setattr(Direct, "ask", refusing(WorkerFailed))
    with pytest.raises(WorkerFailed):
        measured(pico_checkpoint, pico_base, pico_base, tmp_path / "lost", BUILT_IN[:2])
