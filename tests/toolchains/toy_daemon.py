"""`python -m tests.toolchains.toy_daemon CONFIG`: the real daemon with toy stages, of which `onnx-int8` wants the toolchain `fake`.

`TOY_DEFINITIONS=FOLDER`: what is known of that toolchain.
"""

from __future__ import annotations

import os
import runpy
from dataclasses import replace
from pathlib import Path

from daemon.contract import plan
from daemon.toolchains import registry

if __name__ == "__main__":
    known = registry.definitions(Path(os.environ["TOY_DEFINITIONS"]))
    registry.definitions = lambda folder=None: known  # type: ignore[assignment,misc]
    changed = tuple(replace(spec, toolchain="fake") if spec.name == "onnx-int8" else spec for spec in plan.STAGES)
    plan.STAGES = changed
    plan.BY_NAME.update({spec.name: spec for spec in changed})
    runpy.run_module("tests.runner.toy_daemon", run_name="__main__", alter_sys=True)
