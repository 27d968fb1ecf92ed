"""A whole export by the real stages: plain files with one link, none of them the trainer's, read by each format's own reader."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from daemon.contract.disk.files import files_below
from tests.publish.test_one_link import several_links

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]


def export(checkpoint: Path, home: Path, variants: str) -> Path:
    """`ckptd export` with what the trainer has hard-linked into the pin; gives the export."""
    environment = {
        **os.environ, "XDG_STATE_HOME": str(home / "state"), "CKPTD_EXPORT__VARIANTS": variants, "CKPTD_VALIDATE__SAMPLES": "2",
        "CKPTD_VALIDATE__NEW_TOKENS": "4", "CKPTD_VALIDATE__SPEED_TOKENS": "0", "CKPTD_LIMITS__DISK_RESERVE": "0",
        "CKPTD_PIN__COPY_LIMIT": "0",
    }  # fmt: skip
    command = [sys.executable, "-m", "daemon", "export", str(checkpoint), "--output", str(home / "out"), "--force"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = (path.parent for path in (home / "out").glob("*/*/MANIFEST.json") if not path.parent.is_symlink())
    return found


@pytest.mark.slow
def test_a_full_fine_tune_that_is_passed_through_has_no_file_of_the_trainers(pico_base: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "runs" / "full" / "checkpoint-4"
    shutil.copytree(pico_base, checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    trainers = {path.stat().st_ino for path in files_below(checkpoint)}
    published = export(checkpoint, tmp_path, "pytorch")
    assert several_links(published) == []
    listed = {one["path"] for one in json.loads((published / "MANIFEST.json").read_bytes())["files"]}
    assert {"README.md", "pytorch/README.md"} <= listed and "from_pretrained(folder" in (published / "pytorch" / "README.md").read_text()
    assert not trainers & {path.stat().st_ino for path in files_below(published)}
    assert {path.stat().st_nlink for path in files_below(checkpoint)} == {1}, "the pin is gone"
    with safe_open(published / "pytorch" / "model.safetensors", "np") as opened:
        assert list(opened.keys())
