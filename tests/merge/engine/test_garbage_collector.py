"""The garbage collector rests while a merge streams, and is afterwards as it was before."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handlers.merge import merge_adapter
from handlers.merge.peft import merge as peft
from tests.merge import helpers


@pytest.fixture(autouse=True)
def running() -> Iterator[None]:
    gc.enable()
    yield
    gc.enable()


@pytest.mark.parametrize(("before", "fails"), [(True, True), (False, False)])
def test_it_rests_while_weights_are_streamed_and_is_as_before_also_after_an_error(
    pico_base: Path, tmp_path: Path, before: bool, fails: bool
) -> None:
    adapter, seen = helpers.make_adapter(pico_base, tmp_path / "adapter"), []
    (tmp_path / "out").mkdir()

    def progress(fraction: float, message: str) -> None:
        seen.append(gc.isenabled())
        if fails:
            raise KeyError

    if not before:
        gc.disable()
    try:
        merge_adapter(adapter, pico_base, tmp_path / "out", *helpers.settings(progress=progress))
    except KeyError:
        assert fails
    assert set(seen) == {False}
    assert gc.isenabled() is before


def test_it_runs_while_peft_merges(pico_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter, seen = helpers.make_adapter(pico_base, tmp_path / "adapter", init_lora_weights="olora"), []
    merge: Any = peft.merge_with_peft
    monkeypatch.setattr(peft, "merge_with_peft", lambda *given, **named: seen.append(gc.isenabled()) or merge(*given, **named))
    (tmp_path / "out").mkdir()
    merge_adapter(adapter, pico_base, tmp_path / "out")
    assert seen == [True]
