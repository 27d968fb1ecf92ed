"""What a shell at the far end makes of a script whose sender is killed."""

from __future__ import annotations

import subprocess
from pathlib import Path

from handlers.deliver.rsync.connection import Connection
from handlers.deliver.rsync.declaration import RsyncOptions


def test_of_a_script_that_arrives_in_part_nothing_is_run(tmp_path: Path) -> None:
    (far := tmp_path / "far").mkdir()
    connection = Connection(RsyncOptions(to=f"host:{far}"), "", tmp_path)
    script = connection._inside("echo new > new\nmv -f new latest.json\n")
    for length in range(len(script) - 1):
        subprocess.run(["sh", "-s"], input=script[:length], capture_output=True, check=False)
        assert not list(far.iterdir()), script[:length]
    subprocess.run(["sh", "-s"], input=script, check=True)
    assert [path.name for path in far.iterdir()] == ["latest.json"]
