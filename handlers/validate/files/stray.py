"""Files of an artifact that nobody compares: those that its format does not declare, or that the checkpoint lacks. No heavy library.

Called when the files of an artifact are compared with the checkpoint's. Loaders choose among the files of a folder by their names: vLLM
takes `consolidated.safetensors` before what was checked, transformers a tokenizer from `vocab.json`, sentence-transformers a pooling from
`modules.json`. So what lies there must be known, or it is a finding.
"""

from __future__ import annotations

import contextlib
import json
import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from daemon.contract.formats.declaration import MODEL_FILES, FileKind
from handlers.validate.files.expected import TOKENIZER_CONFIG, Expected, fingerprint
from handlers.validate.workers.transcripts import TOKENIZER as CANONICAL

INDEX = ".index.json"
"""End of the name of a file that says in which files the weights lie, as transformers writes it."""
_STORED: tuple[FileKind, ...] = ("weights", "graphs")
_ALWAYS = ("config.json", "README.md")
"""Files of a model that every folder may have: the first is compared with the merged model's, the second is for people."""
_WRITTEN = (CANONICAL, TOKENIZER_CONFIG)
"""Files that a format may write of a tokenizer that has none of the name; what they say is compared."""


def fits(name: str, pattern: str) -> bool:
    """Tell whether a path below the folder fits a pattern of `Format.files`: one without a folder fits files at the top alone."""
    return fnmatchcase(name, pattern) and ("/" in pattern or "/" not in name)


def pattern_of(name: str, patterns: Mapping[str, FileKind]) -> str | None:
    """Give the first pattern that a path fits."""
    return next((pattern for pattern in patterns if fits(name, pattern)), None)


@dataclass(frozen=True)
class _Declared:
    """A file of the folder that a pattern fits."""

    name: str
    pattern: str
    kind: FileKind

    @property
    def spelt(self) -> bool:
        """Whether its format declares it by its whole name."""
        return not any(mark in self.pattern for mark in "*?[")


def faults(folder: Path, patterns: Mapping[str, FileKind], wanted: Expected) -> list[tuple[str, str]]:
    """Give (name, why, as a clause) of each file of an artifact that its format does not declare, that no file of the folder names where
    one should, or that neither the checkpoint nor its base has. `patterns`: those of its format; nothing is known without any."""
    if not patterns or wanted.present is None:
        return []
    problems, known = list[tuple[str, str]](), list[_Declared]()
    for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()):
        pattern = pattern_of(name, patterns)
        if pattern is None:
            problems.append((name, f"it holds {name}, which its format does not declare: a loader may take it for what was checked"))
        else:
            known.append(_Declared(name, pattern, patterns[pattern]))
    for file in known:
        if why := _foreign(folder, file, wanted):
            problems.append((file.name, why))
    return problems + [(name, f"it holds {name}, which no index and no graph of the folder names") for name in _unnamed(folder, known)]


def _foreign(folder: Path, file: _Declared, wanted: Expected) -> str | None:
    """Say why a file that belongs to the checkpoint is not its."""
    if file.kind == "code":
        known = wanted.code.get(file.name)
        if known is None:
            return f"it holds {file.name}, code that neither the checkpoint nor its base has"
        return None if known == fingerprint(folder / file.name) else f"its {file.name} is not the checkpoint's"
    if file.pattern not in MODEL_FILES or file.name in _ALWAYS or file.name in (wanted.present or ()):
        return None
    if file.name in _WRITTEN and wanted.asked is not None:
        return None
    return f"it holds {file.name}, which neither the checkpoint nor its base has"


def _unnamed(folder: Path, known: Sequence[_Declared]) -> list[str]:
    """Give weights and graphs that no file names which says what is loaded. Where there is no such file, those that the format declares by
    their whole names are loaded; where there are none, one of each pattern."""
    stored = [file for file in known if file.kind in _STORED and not file.name.endswith(INDEX)]
    names = {name for file in known if file.kind == "runtime" or file.name.endswith(INDEX) for name in _names(folder / file.name)}
    taken = [file for file in stored if _is_named(file.name, names)]
    if not taken:
        taken = [file for file in stored if file.spelt]
    if not taken:
        patterns = [file.pattern for file in stored]
        taken = [file for file in stored if patterns.count(file.pattern) == 1]
    left = [file.name for file in stored if file not in taken]
    graphs = [folder / file.name for file in taken if file.kind == "graphs"]
    return [name for name in left if not any(_holds(graph, PurePosixPath(name).name) for graph in graphs)]


def _is_named(name: str, names: Collection[str]) -> bool:
    """Tell whether a path, its file's name, or a folder above it is among `names`."""
    path = PurePosixPath(name)
    return path.name in names or any(str(place) in names for place in (path, *path.parents))


def _names(path: Path) -> Iterator[str]:
    """Yield all texts in a JSON file, and the words of any other."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix != ".json":
        yield from (word.strip("\"'").removeprefix("./") for word in text.split())
        return
    with contextlib.suppress(ValueError):
        yield from _texts(json.loads(text))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value.removeprefix("./")
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _holds(graph: Path, name: str) -> bool:
    """Tell whether a graph names a file: protobuf writes a text after its length, https://protobuf.dev/programming-guides/encoding."""
    word = name.encode()
    if not word or len(word) > 127 or not graph.stat().st_size:
        return False
    with graph.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(bytes([len(word)]) + word) >= 0
