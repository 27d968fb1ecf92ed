"""Two steps of a small training, as exports with a report that says what a server must answer."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from handlers.merge import merge_adapter
from handlers.texts.rendering import ModelFiles
from handlers.validate.checks.live import far
from tests import models
from tests.validate.bench import measured


@dataclass(frozen=True)
class Steps:
    """A base, and an export by step."""

    base: Path
    exports: dict[int, Path]

    def report(self, step: int) -> Any:
        return models.read_json(self.exports[step] / "report.json")


def lay(folder: Path, run: str, step: int, variant: str, files: dict[str, Path], answers: Any) -> Path:
    """A published export of one variant."""
    (folder / variant).mkdir(parents=True)
    for name, file in files.items():
        shutil.copy(file, folder / variant / name)
    (folder / "report.json").write_text(
        json.dumps({"schema_version": 1, "answers": answers, "artifacts": [{"variant": variant, "verdict": "passed"}]})
    )
    entries = [
        {"path": str(path.relative_to(folder)), "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
        for path in sorted(folder.rglob("*")) if path.is_file()
    ]  # fmt: skip
    manifest = {"manifest_version": 1, "run": run, "step": step, "export_id": f"{run}/{step}", "files": entries}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """Exports of steps 2 and 4."""
    root = tmp_path_factory.mktemp("served")
    base = models.make_base(root / "base", dtype="float32")
    run = models.train_run(base, root / "run")
    exports = {}
    for step in (2, 4):
        checkpoint, merged = run / f"checkpoint-{step}", root / f"merged-{step}"
        merged.mkdir()
        merge_adapter(checkpoint, base, merged)
        reference = measured(checkpoint, base, merged, root / f"scratch-{step}").reference
        files = {name: checkpoint / name for name in ("adapter_config.json", "adapter_model.safetensors")}
        exports[step] = lay(
            root / f"export-{step}", "a run", step, "pytorch-adapter", files, far.questions(reference, ModelFiles.in_folder(base))
        )
    return Steps(base, exports)
