"""Folders for onnxruntime-genai: its own program loads what `latest` stands for while versions come and go, and gives the same logits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from handlers.onnx.genai import stage
from tests.deliver.contract.bench import Bench, started
from tests.deliver.sites.repository import SITE
from tests.models import make_base
from tests.onnx.conftest import make_context, silent

og = pytest.importorskip("onnxruntime_genai")
IDS = [5, 17, 100, 42]


def logits(folder: Path) -> np.ndarray:
    """Of the last token."""
    model = og.Model(str(folder))
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=8)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([IDS], np.int32))
    return np.array(generator.get_output("logits"))[0, -1]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models as ckptd's stage makes them."""
    made = []
    for seed in (1, 2):
        folder = tmp_path_factory.mktemp(f"genai-{seed}")
        base = make_base(folder / "base", dtype="float32", seed=seed)
        context = make_context(folder / "work", "onnx-genai-fp32", {"merge": base}, base)
        stage.fp32(context, silent())
        made.append(Path(context.staging))
    return made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with started(SITE, tmp_path) as made:
        yield made


@contextlib.contextmanager
def _reader(latest: Path, own: list[np.ndarray]) -> Iterator[list[int]]:
    """Somebody who loads again and again: which model it was each time."""
    ended, seen, problems = threading.Event(), list[int](), list[BaseException]()

    def read() -> None:
        try:
            while not ended.is_set():
                if latest.is_symlink():
                    said = logits(latest.resolve())
                    seen.append(next(number for number, each in enumerate(own) if np.array_equal(said, each)))
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join(120)
    assert not problems, problems


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_latest_stands_for_loads_whole_at_any_moment(bench: Bench, folders: list[Path]) -> None:
    """A reader resolves the link once, and loads the folder that it led to."""
    contents = [{f"onnx-genai-fp32/{path.name}": path.read_bytes() for path in folder.iterdir()} for folder in folders]
    own = [logits(folder) for folder in folders]
    assert not np.array_equal(*own)
    latest = bench.site.folder / "models/run-a/latest"
    with _reader(latest, own) as seen:
        receipts = [bench.deliver(bench.export(step, files=contents[step % 2]), keep=3).receipt for step in range(1, 7)]
    assert all(receipt.moved for receipt in receipts) and len(set(seen)) == 2, seen
    assert np.array_equal(logits(latest), own[0]) and latest.resolve().name.startswith("run-a-6-")
    kept = {path.name for path in latest.parent.iterdir()} - {"latest"}
    assert kept == {receipt.version.split("/")[1] for receipt in receipts[-3:]}
    for step, receipt in zip((4, 5, 6), receipts[-3:], strict=True):
        assert np.array_equal(logits(Path(receipt.place)), own[step % 2])
