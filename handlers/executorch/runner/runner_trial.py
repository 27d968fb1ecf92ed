"""Tries ExecuTorch's own runner for language models, which apps use, on a folder: how it counts texts, and what it writes.

Started by the stage as a process of its own in the toolchain, since the runner ends its process where it is not content.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.folder.hard_texts import TEXTS
from handlers.toolchains import inside

PROMPT, TOKENS = "How are you?", 8


@dataclass(frozen=True)
class Said:
    """What the runner does. A pair is without and with a first token that it is told to put before a text (`num_bos`)."""

    counts: dict[str, list[int]]
    """Text → how many tokens it is, a pair."""
    texts: list[str]
    """What it writes after PROMPT, greedily, a pair; as far as its tokens are whole characters."""


def tried(options: argparse.Namespace) -> Said:
    """Count texts and write two. Raises what the runner raises."""
    from handlers.executorch.session import bindings

    bindings()
    runners = importlib.import_module("executorch.extension.llm.runner")
    folder = Path(options.folder)
    runner = runners.TextLLMRunner(str(folder / "model.pte"), str(folder / "tokenizer.json"))

    def generate(text: str, begin: int, count: int, **callbacks: Any) -> None:
        runner.reset()
        config = runners.GenerationConfig(echo=False, max_new_tokens=count, temperature=0.0, num_bos=begin)
        runner.generate(text, config, **callbacks)

    counts: dict[str, list[int]] = {}
    for text in TEXTS:
        if text and len(text.encode()) < options.room:
            stats: list[Any] = []
            for begin in (0, 1):
                generate(text, begin, 1, stats_callback=stats.append)
            counts[text] = [int(entry.num_prompt_tokens) for entry in stats]
    written: list[list[str]] = [[], []]
    for begin, pieces in enumerate(written):
        with contextlib.suppress(UnicodeDecodeError):  # its pieces are tokens, and those of some characters are several
            generate(PROMPT, begin, TOKENS, token_callback=pieces.append)
    return Said(counts, ["".join(pieces) for pieces in written])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--room", required=True, type=int)
    inside.main(parser, tried)
