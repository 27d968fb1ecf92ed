"""Fixtures of several files about the merge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import models
from tests.merge.interrupted import Case, make_case, shard
from tests.sharing import shared


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A base in several files with an adapter, merged once. Read only."""

    def make(folder: Path) -> Case:
        made = make_case(folder, shard(models.make_base(folder / "single"), folder / "base", "60KB"))
        assert len(made.shards) >= 4
        return made

    return shared(tmp_path_factory, "resume", make)
