"""Checks that the example in an ONNX folder works without PyTorch. Called by the validate stage once the artifact's worker has ended.

The script runs as a person would run it, in a process that can import neither torch nor transformers, and must give the tokens
that the artifact gave under examination.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from handlers.onnx.folder.examples import NAME

SECONDS = 900
_WITHOUT_TORCH = """
import runpy, sys
for name in ("torch", "transformers", "peft", "handlers", "daemon"):
    sys.modules[name] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def check(folder: Path, text: str, tokens: Sequence[int] | None, threads: int) -> str | None:
    """Why the folder's example.py does not work, in one sentence; None when it is, or when there is none.

    `tokens`: what it must make of `text`; None where the model makes no tokens, and the script need only answer in JSON.
    """
    if not (folder / NAME).is_file():
        return None
    asked = [text] if tokens is None else [text, "--tokens", str(len(tokens)), "--ids"]
    limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "RAYON_NUM_THREADS")}
    command = [sys.executable, "-I", "-c", _WITHOUT_TORCH, str(folder / NAME), *asked]
    try:
        done = subprocess.run(
            command, env={**os.environ, **limits}, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        return f"its {NAME} took longer than {SECONDS} seconds"
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return f"its {NAME} does not run: {lines[-1][:300] if lines else f'exit code {done.returncode}'}"
    try:
        made = json.loads(done.stdout)
    except ValueError:
        return f"its {NAME} does not answer in JSON"
    if tokens is not None and (not made or list(made) != list(tokens)[: len(made)]):  # it stops at an end token, the examination doesn't
        return f"its {NAME} gives other tokens than the artifact gave in this check"
    return None
