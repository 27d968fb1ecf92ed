"""The stage `gguf-adapter`: the checkpoint's adapter as one GGUF file, not merged, with a Modelfile.

Run by `handlers/__main__.py` with the Python of the toolchain `gguf`, on the folder of the stage `pytorch-adapter`. The check puts it over
its base, written as a GGUF file without loss, and runs both with llama.cpp.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from daemon.contract.jobs.messages import StageContext
from handlers.child.progress import Reporter, StageOutput
from handlers.gguf import modelfile
from handlers.gguf.adapter import file as adapter_file
from handlers.gguf.stage import faults_of
from handlers.models.folder import ModelFolder


def run(context: StageContext, reporter: Reporter) -> StageOutput:
    """Write the file. Permanent `form-not-possible` for what llama.cpp can't add to a base."""
    source, staging = Path(context.inputs["pytorch-adapter"]), Path(context.staging)
    assert context.base is not None, "pytorch-adapter refuses checkpoints without one"
    reporter.progress(0.2, "writing the adapter's tensors")
    title = f"{context.checkpoint.run} step {context.checkpoint.step}"
    with faults_of(context, str(source)):
        figures = adapter_file.write(source, ModelFolder(Path(context.base), "base"), staging / adapter_file.FILE, title)
    lines = "# Name here the base as Ollama has it, or its GGUF file, with the precision that you want.\nFROM ./base.gguf\n"
    (staging / modelfile.NAME).write_text(f"{lines}ADAPTER ./{adapter_file.FILE}\n", encoding="utf-8")
    size = (staging / adapter_file.FILE).stat().st_size
    return StageOutput(figures={"file": adapter_file.FILE, "library": importlib.metadata.version("gguf"), "graph_bytes": size, **figures})
