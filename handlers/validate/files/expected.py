"""What the files of artifacts must say: the checkpoint's own where it has them, else the base's, as the live model's loader takes them.

Written by the stage `reference` into a folder of its own, beside what the live model says of texts, and read by every check.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path

from pydantic import ConfigDict, Field

from daemon.contract.values import Frozen, Json
from handlers.models import sentence
from handlers.models.files import PROCESSORS, TEMPLATES, TOKENIZER, has_tokenizer, setting
from handlers.texts import chat
from handlers.texts.reading import values
from handlers.validate.engines.generation_rules import tokens_of
from handlers.validate.engines.sentence import settings_of
from handlers.validate.files import probes
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import ReadFiles, Transcribe, Transcript
from handlers.validate.workers.transcripts import TOKENIZER as CANONICAL

FILE, STORED = "expected.json", "stored.json"
CONFIG, GENERATION, TOKENIZER_CONFIG = "config.json", "generation_config.json", "tokenizer_config.json"
_APART = (CANONICAL, TOKENIZER_CONFIG)
"""Files of a tokenizer that formats write in another form: what they say is compared."""


class Expected(Frozen):
    """What the live model says, and the questions."""

    model_config = ConfigDict(populate_by_name=True)

    asked: Transcribe | None = None
    """None where there is no tokenizer."""
    answered: Transcript | None = Field(default=None, validation_alias="told")
    """What the live model's tokenizer makes of them; earlier releases wrote it under the other name."""
    vocabulary: dict[str, int] | None = None
    """Token → id, where no tokenizer.json can be made of the tokenizer."""
    templates: list[str] = Field(default_factory=list)
    """The chat template as the loader takes it, and what else the same folder has under its name; nothing where there is none."""
    more_templates: dict[str, str] = Field(default_factory=dict)
    """Templates with names of their own."""
    names: dict[str, str] = Field(default_factory=dict)
    """Texts of special tokens that templates know."""
    tokenizer_config: Json | None = None
    generation: Json | None = None
    """Settings that the live model generates by; None for one that generates nothing."""
    defaults: Json = Field(default_factory=dict)
    """What transformers takes for those that are not set."""
    stated: bool = False
    """There is a generation_config.json."""
    config: Json = Field(default_factory=dict)
    """config.json of the merged model."""
    copies: dict[str, str] = Field(default_factory=dict)
    """Path below the folder → `fingerprint` of a file that is carried along as it is."""
    present: list[str] | None = None
    """Paths of the files beside the weights that an artifact may have from the checkpoint, its base or the merged model."""
    code: dict[str, str] = Field(default_factory=dict)
    """Python file → its `fingerprint`, of the model's own code."""
    foreign: bool = False
    """The artifact comes from another program, which writes settings in its own way and other files beside them: what nothing that is run
    shows is a note there."""


def write(
    live: EngineWorker, pin: Path, base: Path | None, merged: Path, folder: Path, *, readable: bool, sentences: bool, seed: int = 0
) -> None:
    """Ask the live model and read the checkpoint's files; `readable`: there is a tokenizer. `seed`: what rare characters are drawn with."""
    folder.mkdir(exist_ok=True)
    folders = [pin, *([base] if base else [])]
    read = live.ask(ReadFiles(out=str(folder)))
    spoken = folders[0] if base is None or has_tokenizer(pin) else base
    asked = transcript = None
    if readable:
        if read.tokenizer and (stored := _stored(spoken / CANONICAL)):
            (folder / STORED).write_text(stored, encoding="utf-8")
        asked, transcript = _transcript(live, list(_added(folder, read.vocabulary)), _tokens(folder, read.vocabulary), seed)
    template = next((candidate for source in folders if (candidate := chat.templates_in(source)).texts), chat.Templates())
    first = {name: next((values(source / name) for source in folders if (source / name).is_file()), None) for name in (CONFIG, GENERATION)}
    settings = spoken / TOKENIZER_CONFIG
    expected = Expected(
        asked=asked, answered=transcript, vocabulary=read.vocabulary, templates=template.texts, more_templates=template.named,
        names=chat.special_tokens(spoken), tokenizer_config=values(settings) if settings.is_file() else None,
        generation=read.generation, defaults=read.defaults or {}, stated=first[GENERATION] is not None, config=values(merged / CONFIG),
        copies=_copies(pin, base, sentences=sentences), present=_present(pin, base, merged),
        code={path.name: fingerprint(path) for source in reversed(folders) for path in source.glob("*.py") if path.is_file()},
    )  # fmt: skip
    (folder / FILE).write_text(json.dumps(expected.model_dump(), ensure_ascii=False), encoding="utf-8")


def read(folder: Path | None) -> Expected | None:
    """Return what was written; None where there is no such folder."""
    path = Path(folder or "", FILE)
    if folder is None or not path.is_file():
        return None
    return Expected.model_validate_json(path.read_bytes())


def ends(wanted: Expected) -> frozenset[int]:
    """Give tokens that end a text: those of generation_config.json, and of config.json."""
    said = ((wanted.generation or {}).get("eos_token_id"), setting(wanted.config, "eos_token_id"))
    return frozenset(token for value in said for token in tokens_of(value))


def fingerprint(path: Path) -> str:
    """Give what stands for what a file says: of JSON for its values, of other files for their bytes."""
    data = path.read_bytes()
    if path.suffix == ".json":
        with contextlib.suppress(ValueError):
            data = json.dumps(json.loads(data), sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def _transcript(live: EngineWorker, added: list[str], tokens: dict[str, int], seed: int) -> tuple[Transcribe, Transcript]:
    rare, numbers = probes.beyond(tokens, seed)
    size = len(tokens) or 256
    asked = Transcribe(
        texts=[*probes.TEXTS, *probes.around(added)],
        pairs=list(probes.PAIRS),
        digested=[*probes.sweep(), *rare],
        sequences=[*probes.sequences([], size), *numbers],
    )
    read = live.ask(asked)
    whole = asked.model_copy(update={"sequences": [*probes.sequences(read.ids, size), *numbers]})
    return whole, live.ask(whole)


def _added(folder: Path, vocabulary: dict[str, int] | None) -> list[str]:
    """Give tokens that are not made of parts; some of them where there are many."""
    if vocabulary is not None:
        return []
    path = folder / CANONICAL
    tokens = [token["content"] for token in values(path).get("added_tokens", [])] if path.is_file() else []
    return tokens if len(tokens) <= 2 * MOST else [*tokens[:MOST], *tokens[-MOST:]]


MOST = 32
"""Tokens from the beginning and from the end of the added ones that are asked in texts; all are compared with their ids."""


def _tokens(folder: Path, vocabulary: dict[str, int] | None) -> dict[str, int]:
    """Give the vocabulary: token → id; nothing where it is not known."""
    if vocabulary is not None:
        return vocabulary
    path = folder / CANONICAL
    entries = values(path)["model"]["vocab"] if path.is_file() else {}
    return entries if isinstance(entries, dict) else {row[0]: number for number, row in enumerate(entries)}


def _stored(path: Path) -> str | None:
    """Give a tokenizer.json as it lies there: transformers may read it otherwise than other programs do."""
    return path.read_text(encoding="utf-8") if path.is_file() else None


def _present(pin: Path, base: Path | None, merged: Path) -> list[str]:
    """Give what lies beside the weights of a checkpoint: its tokenizer from one folder, each other file from either, modules as the merge
    has them."""
    folders = (pin, *([base] if base else []))
    spoken = (pin,) if base is None or has_tokenizer(pin) else (base, pin)
    places = [
        *((folder, TOKENIZER) for folder in spoken), (merged, (sentence.MODULES, *sentence.SETTINGS, "[0-9]*_*/*")),
        *((folder, (GENERATION, *PROCESSORS, *TEMPLATES, *(f"{name}/*" for name in TEMPLATES))) for folder in folders),
    ]  # fmt: skip
    files = {path.relative_to(folder).as_posix() for folder, names in places for name in names for path in folder.glob(name)}
    return sorted(files)


def _copies(pin: Path, base: Path | None, *, sentences: bool) -> dict[str, str]:
    """Give files of the tokenizer from one folder, of processors from the checkpoint first, and what sentence-transformers reads."""
    files: dict[str, Path] = {}
    whole = base is None or has_tokenizer(pin)
    for folder in (pin,) if whole or base is None else (base, pin):
        files |= {path.name: path for pattern in TOKENIZER for path in folder.glob(pattern) if path.name not in _APART}
    for folder in (base, pin) if base else (pin,):
        files |= {path.name: path for name in PROCESSORS if (path := folder / name).is_file()}
    if sentences:
        folder = settings_of(pin, base)
        patterns = (sentence.MODULES, *sentence.SETTINGS, "[0-9]*_*/config.json")
        files |= {str(path.relative_to(folder)): path for pattern in patterns for path in folder.glob(pattern)}
    return {name: fingerprint(path) for name, path in sorted(files.items()) if path.is_file()}
