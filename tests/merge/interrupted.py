"""Merges of a sharded base that are cut off, and what tells how far they came."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from daemon.contract.disk.files import sha256_file
from handlers.merge import MergeReport, merge_adapter
from handlers.merge.engine import execute, resume_ledger
from tests.merge import helpers

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Case:
    """A sharded base, an adapter for it, and what an undisturbed merge of both gives."""

    base: Path
    adapter: Path
    digests: dict[str, str]
    seconds: float
    """Of the undisturbed merge."""

    @property
    def shards(self) -> list[str]:
        """Names of the weight files."""
        return sorted(name for name in self.digests if name.endswith(".safetensors"))

    def merge(self, output: Path, **options: Any) -> MergeReport:
        """Merge, or go on with a merge, in this process."""
        return merge_adapter(self.adapter, self.base, output, *helpers.settings(resume=True, **options))

    def interrupted(self, output: Path, finished: int) -> Path:
        """A folder in which a merge was stopped as soon as so many files were finished."""
        output.mkdir()

        def stop(fraction: float, message: str) -> None:
            if len(noted(output)) == finished:
                raise Stop

        with one_worker(), pytest.raises(Stop):
            self.merge(output, progress=stop)
        assert len(noted(output)) == finished
        return output


@contextlib.contextmanager
def one_worker() -> Iterator[None]:
    """Merges in here finish one file after the other, in their order."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(execute, "SPARE", 0)
        yield


class Stop(Exception):
    """Ends a merge at a safe point."""


def digests(folder: Path) -> dict[str, str]:
    """Relative path → SHA-256 of everything below a folder, hidden files too."""
    return {path.relative_to(folder).as_posix(): sha256_file(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def noted(folder: Path) -> list[str]:
    """Files that the ledger in a folder calls finished."""
    path = folder / resume_ledger.LEDGER
    return sorted(json.loads(path.read_bytes())["files"]) if path.exists() else []


def marks(folder: Path, names: list[str]) -> dict[str, tuple[int, int]]:
    """What changes when a file is written again."""
    return {name: ((folder / name).stat().st_ino, (folder / name).stat().st_mtime_ns) for name in names}


def shard(single: Path, base: Path, size: str) -> Path:
    """The model in `single` in files of at most `size`."""
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(single, dtype=torch.bfloat16).save_pretrained(base, max_shard_size=size)
    return base


def make_case(folder: Path, base: Path) -> Case:
    adapter = helpers.make_adapter(base, folder / "adapter")
    output = folder / "undisturbed"
    output.mkdir()
    started = time.monotonic()
    merge_adapter(adapter, base, output)
    return Case(base, adapter, digests(output), time.monotonic() - started)
