"""A measured live model to compare the smaller forms with, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from handlers.merge import merge_adapter
from handlers.models.files import copy_tokenizer
from tests.sharing import shared
from tests.validate.bench import Bench, measured


@pytest.fixture(scope="session")
def live(pico_base: Path, pico_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """The pico checkpoint, measured, and merged with its tokenizer. Read only."""

    def make(folder: Path) -> Bench:
        (folder / "merged").mkdir()
        merge_adapter(pico_checkpoint, pico_base, folder / "merged")
        copy_tokenizer(pico_checkpoint, pico_base, folder / "merged")
        return measured(pico_checkpoint, pico_base, folder / "merged", folder / "scratch")

    return shared(tmp_path_factory, "pytorch-forms", make)
