"""The tokenizer's files as transformers.js reads them: tokenizer.json, and a chat template inside of tokenizer_config.json.

Called by the stages. transformers.js reads no other files of a tokenizer, and tidies the spaces of what it decodes unless it is told not
to. A Marian's SentencePiece models become a tokenizer.json (`marian_tokenizer`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import Permanent
from handlers.folder import tokenizers
from handlers.models.files import read_json
from handlers.models.releases.older_readers import GENERIC
from handlers.web import marian_tokenizer

FILE, CONFIG, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"
TIDY, FIRST = "clean_up_tokenization_spaces", "add_bos_token"
"""By the second the pipeline for texts of transformers.js goes: without it, it leaves out the first token that tokenizer.json puts."""


class UnlikeError(Exception):
    """transformers.js can't read the tokenizer, or would read it otherwise; the message is a clause."""


def place(folder: Path) -> str:
    """Make the tokenizer of a folder readable; how it came to be, "copied" or "written". Raises UnlikeError."""
    written = not (folder / FILE).is_file()
    try:
        own = tokenizers.load(folder)
        if written:
            text = marian_tokenizer.made(folder, own)
            (folder / FILE).write_text(json.dumps(text, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except Permanent as error:
        raise UnlikeError(error.fault.cause) from error
    except marian_tokenizer.DiffersError as error:
        raise UnlikeError(str(error)) from error
    config = read_json(folder / CONFIG, "read the tokenizer's configuration") if (folder / CONFIG).is_file() else {}
    changed = {**config, TIDY: bool(config.get(TIDY))}
    if (folder / TEMPLATE).is_file() and not config.get("chat_template"):
        changed["chat_template"] = (folder / TEMPLATE).read_text(encoding="utf-8")
    if config.get(FIRST) is None and _puts_first_token(own, config.get("bos_token")):
        changed[FIRST] = True
    if written:
        changed["tokenizer_class"] = GENERIC  # the class of a Marian takes texts apart in a way of its own
    (folder / CONFIG).write_text(json.dumps(changed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return "written" if written else "copied"


def _puts_first_token(own: tokenizers.FolderTokenizer, first: Any) -> bool:
    """Whether a tokenizer puts the first token of a text that its configuration names, as text or as an object."""
    name = first.get("content") if isinstance(first, dict) else first
    return isinstance(name, str) and own.decode_whole(own.encode("a")[:1]) == name
