"""The example of a folder's README runs as it stands under transformers 4.57 too, and writes what it writes under transformers 5."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from handlers.models.releases.older_readers import make_readable
from tests.older import tokenizers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
DECODERS = tuple(name for name in tokenizers.NAMES if not name.startswith(("bert", "distilbert", "deberta")))
"""Tokenizers that give segments in both releases belong to encoders."""
RUNNER = """
import json, sys, traceback
from pathlib import Path

answers = {}
for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
    code = (folder / "example.py").read_text()
    written = []
    try:
        exec(compile(code, str(folder), "exec"), {"print": lambda *values: written.append(" ".join(map(str, values)))})
        answers[folder.name] = written
    except Exception as error:
        answers[folder.name] = traceback.format_exception_only(error)[-1]
json.dump(answers, open(sys.argv[2], "w"))
"""


def example(folder: Path) -> str:
    """The pytorch variant's own words, as the export's README has them."""
    from datetime import timedelta

    from handlers.report import usage
    from handlers.report.content.build import build
    from tests.report import facts

    code = usage.Usage(build(facts.context(facts.succeeded(), folder / "work"), facts.BEGIN + timedelta(seconds=9))).blocks("pytorch")[1]
    assert code is not None and "**inputs" in code
    return code.replace('folder = "pytorch"', f"folder = {str(folder)!r}")


def run(python: str | Path, folders: Path, answer: Path) -> dict[str, object]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TRANSFORMERS_VERBOSITY": "error"}
    done = subprocess.run(
        [python, "-W", "ignore", "-c", RUNNER, folders, answer], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    made: dict[str, object] = json.loads(answer.read_text())
    return made


def test_the_example_writes_the_same_text_under_both_releases_with_every_tokenizer(older: Path, tmp_path: Path) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folders = tmp_path / "folders"
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=4608, max_position_embeddings=128, initializer_range=0.2, eos_token_id=None, **sizes))
    model.save_pretrained(tmp_path / "model")
    for number, name in enumerate(DECODERS):
        folder = folders / str(number)
        tokenizers.save(name, folder)
        for file in (tmp_path / "model").iterdir():
            shutil.copy(file, folder)
        make_readable(folder)
        (folder / "example.py").write_text(example(folder))
    ours, theirs = run(sys.executable, folders, tmp_path / "ours.json"), run(older, folders, tmp_path / "theirs.json")
    named = {DECODERS[int(number)]: (text, theirs[number]) for number, text in ours.items()}
    assert len(named) > 20 and all(isinstance(text, list) and text for text, _ in named.values()), named
    assert {name: texts for name, texts in named.items() if texts[0] != texts[1]} == {}
