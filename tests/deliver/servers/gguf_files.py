"""GGUF files made by the toolchain's Python with the format's own code."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[3]


def base_file(python: Path, folder: Path, path: Path) -> None:
    """The base, without loss."""
    code = (
        "import sys, tempfile\nfrom pathlib import Path\nfrom handlers.gguf.file.model_file import ModelFile\n"
        "made = ModelFile(Path(sys.argv[1]), 'base', Path(tempfile.mkdtemp()))\n"
        "made.write(made.lossless, Path(sys.argv[2]), lambda done: None)"
    )
    _run(python, code, folder, path)


def adapter_file(python: Path, adapter: Path, base: Path, path: Path) -> None:
    """The adapter."""
    code = "import sys\nfrom pathlib import Path\nfrom handlers.gguf.adapter import file\nfrom handlers.models.folder import ModelFolder\n"
    _run(
        python,
        code + "file.write(Path(sys.argv[1]), ModelFolder(Path(sys.argv[2]), 'base'), Path(sys.argv[3]), 'an adapter')",
        adapter,
        base,
        path,
    )


def _run(python: Path, code: str, *arguments: Path) -> None:
    subprocess.run([python, "-c", code, *map(str, arguments)], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
