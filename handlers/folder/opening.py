"""The example.py of a folder whose programs are no ONNX graphs: that of an ONNX folder, which opens them by a module that lies beside it.

Called by the stages of formats that have the parts, inputs and outputs of the ONNX forms and run on another runtime.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from handlers.folder import examples

_GRAPHS = '    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])\n'


def place(task: str, folder: Path, opener: Path, needs: str) -> None:
    """Put the example for a task (a name of `handlers.models.tasks`) and the module `opener` into `folder`.

    `opener` has a function `opened(folder, name)` that gives for the name of an ONNX graph what stands for it, in the manner of
    onnxruntime's sessions. `needs`: the package that it imports.
    """
    examples.place(task, folder)
    path = folder / examples.NAME
    text = rewritten(path.read_text(encoding="utf-8"), opener.name, needs)
    assert text is not None, "the example opens its graphs in one place, and uses nothing else of onnxruntime"
    path.write_text(text, encoding="utf-8")
    shutil.copyfile(opener, folder / opener.name)


def rewritten(text: str, opener: str, needs: str) -> str | None:
    """The text of an example that opens its programs by the module `opener`; None where it opens no graphs, or does more with them."""
    programs = f"""    # An import would leave compiled code in the folder, which is as its manifest says.
    return runpy.run_path(str(FOLDER / "{opener}"))["opened"](FOLDER, name)
"""
    if _GRAPHS not in text:
        return None
    text = text.replace("import onnxruntime\n", "", 1).replace(_GRAPHS, programs, 1).replace("Needs onnxruntime,", f"Needs {needs},", 1)
    if "import runpy\n" not in text:
        text = text.replace("import json\n", "import json\nimport runpy\n", 1)
    return None if "onnxruntime" in text else text
