"""Nothing of ours phones home: training boxes are private."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_onnx_runtime_is_loaded_with_its_telemetry_off(tmp_path: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "ORT_DISABLE_TELEMETRY"} | {"TMPDIR": str(tmp_path)}
    script = "import os, handlers.validate.engines.graphs.onnx_causal; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    answer = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "1"
    assert list(tmp_path.iterdir()) == [], "its session file would be here"
