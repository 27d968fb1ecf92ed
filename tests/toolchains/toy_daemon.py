"""`python -m tests.toolchains.toy_daemon CONFIG`: the real daemon with toy stages, of which `onnx-int8` wants the toolchain `fake`.

`TOY_DEFINITIONS=FOLDER`: what is known of that toolchain.
"""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from daemon.contract.formats import catalog
from daemon.contract.formats.declaration import FormatEntry
from daemon.running.sources import installing
from daemon.toolchains import registry

if __name__ == "__main__":
    registry.DEFINITIONS = Path(os.environ["TOY_DEFINITIONS"])
    installing.DEFINITIONS = registry.DEFINITIONS  # type: ignore[attr-defined]
    ours = [entry for entry in catalog.catalog().entries if entry.value != "handlers.onnx.format:FORMAT"]
    catalog.use([*ours, FormatEntry(value="tests.toolchains.toy_format:ONNX", root=str(Path(__file__).parents[2]))])
    runpy.run_module("tests.runner.toy_daemon", run_name="__main__", alter_sys=True)
