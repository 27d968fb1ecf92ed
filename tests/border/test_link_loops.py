"""A link that leads to itself, in the place of any file or folder that an export reads: one sentence for it, and no traceback."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from daemon.contract.disk.placing import place as put
from daemon.system.filesystems.access import denial
from handlers.web.browser.files import Files
from tests.cli.test_bad_input import export
from tests.sampling import some

PLACES = [
    "base", "base/config.json", "base/model.safetensors", "base/tokenizer.json", "base/tokenizer_config.json", "adapter",
    "adapter/adapter_config.json", "adapter/adapter_model.safetensors", "adapter/tokenizer.json", "full/config.json",
    "full/model.safetensors", "full/tokenizer.json", "full/trainer_state.json",
]  # fmt: skip
SPARED = {"adapter/tokenizer.json", "full/tokenizer.json", "full/trainer_state.json"}
"""What an export can do without."""
SAID = {
    "base": "base.map",
    "adapter": "it is a link that leads nowhere, or back to itself",
    "base/tokenizer_config.json": "tokenizer_config.json): it is not there now",
}


def loop(path: Path) -> None:
    """Make a path a link that leads to another one, which leads back."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    back = path.with_name(f"{path.name}.back")
    back.symlink_to(path.name)
    path.symlink_to(back.name)


@pytest.mark.parametrize("place", some(PLACES, of=4))
def test_a_link_that_leads_to_itself_is_refused_or_left_out(tmp_path: Path, pico_base: Path, pico_checkpoint: Path, place: str) -> None:
    base, run = shutil.copytree(pico_base, tmp_path / "base"), tmp_path / "run"
    adapter = shutil.copytree(pico_checkpoint, run / "adapter" / "checkpoint-4")
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(base)}))
    full = shutil.copytree(pico_base, run / "full" / "checkpoint-4")
    folders = {"base": base, "adapter": adapter, "full": full}
    name, _, file = place.partition("/")
    loop(folders[name] / file if file else folders[name])
    answer = export(tmp_path, full if name == "full" else adapter)
    said = answer.stdout + answer.stderr
    assert "Traceback" not in said and "RuntimeError" not in said, said
    assert not any("Traceback" in report.read_text() for report in (tmp_path / "out").rglob("report.json"))
    assert answer.returncode == 0 if place in SPARED else answer.returncode in (1, 2), said
    assert SAID.get(place, "") in said


def test_a_link_that_leads_to_itself_is_an_error_of_the_system_and_no_other(tmp_path: Path) -> None:
    loop(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        put(tmp_path / "loop", tmp_path / "new")
    assert Files({"model": tmp_path}).fetch("https://check.invalid/model/loop") is None
    assert denial(tmp_path / "loop", "read") is None, "no right is missing"
