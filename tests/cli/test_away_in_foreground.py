"""`ckptd export` and what is away: at the start it is an error, later it is waited for, for a while."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from daemon.cli.export import working
from daemon.contract.disk.away import fault_of
from daemon.running.waits import Waiting


@pytest.mark.parametrize(("begun", "seconds", "ends"), [(False, 0, True), (True, 0, False), (True, 29, False), (True, 31, True)])
def test_what_is_away_ends_the_command_at_once_at_the_start_and_later_after_a_while(*, begun: bool, seconds: float, ends: bool) -> None:
    fault = fault_of("/models/base", FileNotFoundError(), "read the base model")
    waiting = Waiting(fault, time.monotonic() - seconds, 0.0)
    assert working._needs_help(waiting, {}, begun=begun) is ends


@pytest.mark.slow
@pytest.mark.parametrize("returns", [True, False])
def test_a_base_that_goes_away_during_the_merge_is_tried_again_for_a_while(
    pico_checkpoint: Path, pico_base: Path, tmp_path: Path, *, returns: bool
) -> None:
    base, config = Path(shutil.copytree(pico_base, tmp_path / "base")), tmp_path / "config.toml"
    config.write_text(
        f'[output]\ndirectory = "{tmp_path}/out"\n[state]\ndirectory = "{tmp_path}/state"\n[export]\nvariants = ["pytorch"]\n'
        "[validate]\nsamples = 2\nmost_samples = 2\nnew_tokens = 6\nspeed_tokens = 0\n"
        f"[base.map]\n{json.dumps(str(pico_base))} = {json.dumps(str(base))}\n"
    )
    command = [sys.executable, "-m", "daemon", "export", str(pico_checkpoint), "--config", str(config)]
    environment = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        while not any((tmp_path / "state" / "foreground").glob("*/jobs/*/merge.1/job.json")):
            assert process.poll() is None
            time.sleep(0.005)
        base.rename(tmp_path / "aside")
        if returns:
            time.sleep(8)
            (tmp_path / "aside").rename(base)
        said = process.communicate(timeout=180)[0]
    if returns:
        assert process.returncode == 0, said
        return
    assert process.returncode == 75 and str(base) in said and "it is not there now" in said
    assert "run the same command again" in said and "limits.away_hours" not in said
    (tmp_path / "aside").rename(base)
    again = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False, env=environment)
    assert again.returncode == 0, again.stdout + again.stderr
