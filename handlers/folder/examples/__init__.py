"""The example.py of an exported ONNX folder: one script for each kind of model, copied as it stands.

`place` is called by the stages that write such folders; validation runs the script, the export's README shows how. The scripts
need onnxruntime, tokenizers and numpy alone, and read what they must know from the folder that they lie in. A Marian's tokenizer
has no tokenizer.json: it is read by a module that lies beside the script, with sentencepiece instead of tokenizers. A chat template is
filled in by a module beside the script too, with jinja2. Pictures and sounds are prepared by transformers' processor of the folder.
A folder with activations has a second script, which shows them. Folders for web pages have a module that reads delivered versions.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from handlers.models.tasks import BY_NAME

NAME = "example.py"
MARIAN = "marian_tokenizer.py"
"""Reads a Marian's tokenizer."""
CHAT = "chat_template.py"
"""Fills in a chat template."""
ACTIVATIONS = "activations.py"
"""Shows activations."""
HOSTING = "hosting.js"
"""Loads files of a version that was delivered to where a web server shows it."""


def place(task: str, folder: Path) -> None:
    """Put the example for a task (a name of `handlers.models.tasks`) into `folder`."""
    name = BY_NAME[task].kind if BY_NAME[task].reads_text else "media"
    shutil.copyfile(Path(__file__).with_name(f"{name}.py"), folder / NAME)


def place_beside(name: str, folder: Path) -> None:
    """Put one of MARIAN, CHAT, ACTIVATIONS and HOSTING into `folder`."""
    shutil.copyfile(Path(__file__).with_name(name), folder / name)
