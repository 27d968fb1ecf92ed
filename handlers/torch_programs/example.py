"""The example.py of a folder with programs: that of an ONNX folder, which opens programs instead of graphs. Called by the stages."""

from __future__ import annotations

import shutil
from pathlib import Path

from handlers.onnx.folder import examples

PROGRAM = "program.py"
_GRAPHS = '    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])\n'
_PROGRAMS = f"""    # An import would leave compiled code in the folder, which is as its manifest says.
    return runpy.run_path(str(FOLDER / "{PROGRAM}"))["opened"](FOLDER, name)
"""


def place(task: str, folder: Path) -> None:
    """Put the example for a task (a name of `handlers.models.tasks`) and what opens programs into `folder`."""
    examples.place(task, folder)
    path = folder / examples.NAME
    text = path.read_text(encoding="utf-8")
    assert _GRAPHS in text, "the example opens its graphs in one place"
    text = text.replace("import onnxruntime\n", "", 1).replace(_GRAPHS, _PROGRAMS, 1).replace("Needs onnxruntime,", "Needs torch,", 1)
    if "import runpy\n" not in text:
        text = text.replace("import json\n", "import json\nimport runpy\n", 1)
    assert "onnxruntime" not in text, "nothing else of onnxruntime is used"
    path.write_text(text, encoding="utf-8")
    shutil.copyfile(Path(__file__).with_name(PROGRAM), folder / PROGRAM)
