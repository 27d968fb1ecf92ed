"""A checkpoint that only its owner may read, from the daemon's pin to the published export and its report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.detection.helpers import copy_of
from tests.service import Service


@pytest.mark.slow
def test_what_only_its_owner_may_read_is_nowhere_open_and_its_report_says_it(
    pico_checkpoint: Path, pico_base: Path, tmp_path: Path
) -> None:
    service = Service(tmp_path, extra=f'[metrics]\ntextfile = "{tmp_path}/ckptd.prom"\n')
    service.state.mkdir(mode=0o755)  # as somebody else made it
    service.state.chmod(0o755)
    secrets = {"CKPTD_NOTIFY__URLS": "json://user:hidden-word@127.0.0.1:9/x", "MY_API_KEY": "hidden-word"}
    service.environment |= secrets
    source = copy_of(pico_checkpoint, service.root / "run" / "checkpoint-4")
    (source / "adapter_model.safetensors").chmod(0o600)
    service.start()
    (job,) = service.wait_ended(1)
    service.wait_for(lambda _: (tmp_path / "ckptd.prom").exists(), 60)
    assert service.stop() == 0
    assert job["state"] == "succeeded", service.log()[-3000:]

    export = service.exports / "run" / "step-4"
    open_ones = [path for path in (export, *export.rglob("*")) if path.stat().st_mode & 0o077]
    assert open_ones == []
    for place in (service.state, *(service.exports / ".staging").iterdir(), *(service.exports / ".kept").iterdir()):
        assert place.stat().st_mode & 0o077 == 0, place
    assert [path for path in service.state.rglob("*") if path.stat().st_mode & 0o077 and path.name != "ckptd.log"] == []
    assert (tmp_path / "ckptd.prom").stat().st_mode & 0o777 == 0o644
    report = json.loads((export / "report.json").read_bytes())
    access = report["access"]
    assert "readable by its owner only" in access and "adapter_model.safetensors" in access and "output.wider_than_sources" in access
    assert "readable by its owner only" not in f"{report['warnings']}{service.log()}", "a detail, and no warning of each export"
    assert "could be read by others (mode 0755)" in service.log()
    written = [path for path in (*service.state.rglob("*"), *service.exports.rglob("*")) if path.is_file()]
    assert [path for path in written if b"hidden-word" in path.read_bytes()] == []

    assert service.run_verb("verify", str(export)) == 0 and service.run_verb("status") == 0 and service.run_verb("verify", "--journal") == 0
