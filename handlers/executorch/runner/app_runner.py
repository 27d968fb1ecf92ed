"""Whether ExecuTorch's own runner for language models runs a folder as its tokenizer.json and its program mean it.

Called by the stage for language models. Apps for Android and iOS have the same runner, so this is what their users get.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from daemon.contract.faults.errors import Permanent
from handlers.executorch.runner.runner_trial import PROMPT, TOKENS, Said
from handlers.executorch.session import Session
from handlers.folder import tokenizers
from handlers.static_programs.published.feeding import Text
from handlers.toolchains import use

TRIAL = "handlers.executorch.runner.runner_trial"


class Unlike(Exception):
    """The runner does not run the folder, or otherwise; the message is a clause."""


def begins(folder: Path, scratch: Path, room: int, ends: tuple[int, ...]) -> int:
    """How many first tokens the runner must be told to put before a text (`numBos`): 0 or 1. Raises Unlike."""
    toolchain = use.own()
    if toolchain is None:
        raise Unlike("it runs in the toolchain executorch alone")
    try:
        reader = tokenizers.load(folder)
        said = use.run_module(toolchain, TRIAL, {"folder": folder, "room": room - TOKENS}, scratch, Said)
    except Permanent as error:
        raise Unlike(error.fault.cause) from error
    except use.ToolchainFailedError as error:
        raise Unlike(f"it fails ({str(error)[:200]})") from error
    wanted = {text: len(reader.encode(text)) for text in said.counts}
    count = next((place for place in (0, 1) if all(said.counts[text][place] == wanted[text] for text in wanted)), None)
    if count is None:
        text = next(text for text in wanted if said.counts[text][0] != wanted[text])
        raise Unlike(f"it makes {said.counts[text][0]} tokens of {text!r} instead of {wanted[text]}")
    ours, theirs = reader.decode(_written(folder, reader.encode(PROMPT), room, ends)).strip(), said.texts[count].strip()
    both = min(len(ours), len(theirs))
    if ours[:both] != theirs[:both]:
        raise Unlike(f"after {PROMPT!r} it writes {theirs!r} instead of {ours!r}")
    return count


def _written(folder: Path, tokens: list[int], room: int, ends: tuple[int, ...]) -> list[int]:
    """Tokens after `tokens`, greedily, until one that ends the text."""
    text, made, new = Text(Session(folder / "model.pte", "model"), room), list[int](), tokens
    while len(made) < TOKENS and text.seen + len(new) < room:
        following = int(np.argmax(text.feed(new)[-1]))
        if following in ends:
            break
        made.append(following)
        new = [following]
    return made
