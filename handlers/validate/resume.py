"""What an interrupted validation had found out: the live model's outputs and each finished examination, verified before reuse.

Called by the validate stage. Records lie in a hidden folder of the staging folder, each a JSON file that is replaced atomically; logits lie
beside them, and a record holds their digests, so that logits which a power cut took are noticed. A record counts only for the very
inputs it was made with: prompts and options, files of the models, the processor, and the logits it was compared with. Verdicts are
not kept: they are judged again from the figures. An artifact that could not be run is not kept either, but run again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from daemon.contract.failpoints import point
from daemon.contract.files import remove_tree, sha256_file, write_atomic
from daemon.contract.messages import Fallback
from daemon.contract.values import digest_of
from handlers.validate.checks.examination import Examination
from handlers.validate.checks.reference import Reference
from handlers.validate.checks.samples import Sample
from handlers.validate.engines.task_profile import Subject

FOLDER = ".validation"
VERSION = 3


def folder_state(folder: str | Path | None) -> list[list[Any]]:
    """Relative path, size and mtime in nanoseconds of every file below a folder; what links point to counts."""
    if folder is None:
        return []
    found = []
    for directory, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(directory, name)
            if path.is_file():
                found.append([path.relative_to(folder).as_posix(), path.stat().st_size, path.stat().st_mtime_ns])
    return found


class Kept:
    """The records of one validation. `made_for` is everything that all of them depend on, as a JSON value."""

    def __init__(self, staging: Path, made_for: Any) -> None:
        """Take over what lies in `staging`, where it is of the same work; remove everything else there."""
        self.folder = staging / FOLDER
        """Where logits go that are to be kept."""
        staging.mkdir(parents=True, exist_ok=True)
        for path in staging.iterdir():
            if path.name != FOLDER or path.is_symlink() or not path.is_dir():
                remove_tree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        self._key = digest_of([VERSION, made_for])
        self._reference_digest = ""
        self._merged_digest = ""
        self.reused: list[str] = []
        """What was not done again, for the report: "reference" and names of variants."""
        self.folder.mkdir(exist_ok=True)

    def reference(self) -> Reference | None:
        """The live model's outputs, when they are whole."""
        value = self._load("reference", [])
        if value is None:
            return None
        try:
            samples = [Sample(**{**sample, "logits": self.folder / sample["logits"]}) for sample in value.pop("samples")]
            fallbacks = [Fallback.model_validate(one) for one in value.pop("fallbacks")]
            labels = value["subject"].pop("labels")
            subject = Subject(labels=None if labels is None else tuple(labels), **value.pop("subject"))
            reference = Reference(samples=samples, fallbacks=fallbacks, subject=subject, **value)
        except (TypeError, KeyError, ValueError, AttributeError):
            return None
        self._reference_digest = self._meaning(reference)
        self.reused.append("reference")
        return reference

    def keep_reference(self, reference: Reference) -> None:
        """Keep what the live model said; its logits must lie in `folder`."""
        self._reference_digest = self._meaning(reference)
        value = dataclasses.asdict(reference)
        value["samples"] = [{**sample, "logits": Path(sample["logits"]).name} for sample in value["samples"]]
        value["fallbacks"] = [fallback.model_dump() for fallback in reference.fallbacks]
        self._save("reference", [], value, [sample.logits for sample in reference.samples])

    def examination(self, name: str, artifact: str, *, merged: bool) -> Examination | None:
        """What was found out about an artifact, and with `merged` compared with the merged model's logits too."""
        value = self._load(name, self._inputs(artifact, merged))
        if value is None:
            return None
        try:
            examination = Examination(**value)
        except TypeError:
            return None
        self.reused.append(name)
        return examination

    def keep_examination(self, name: str, artifact: str, examination: Examination, *, merged: bool, logits: Iterable[Path] = ()) -> None:
        """Keep a finished examination, with logits of its own in `folder` where others will be compared with them."""
        self._save(name, self._inputs(artifact, merged), dataclasses.asdict(examination), logits)

    def compare_with(self, logits: Iterable[Path]) -> None:
        """From now on `merged=True` means comparison with these logits."""
        self._merged_digest = digest_of([sha256_file(path) for path in logits])

    def remove(self) -> None:
        """The validation is done: nothing of it is resumed any more."""
        remove_tree(self.folder)
        point("validate.kept.removed")

    def _inputs(self, artifact: str, merged: bool) -> list[Any]:
        return [folder_state(artifact), self._reference_digest, self._merged_digest if merged else None]

    @staticmethod
    def _meaning(reference: Reference) -> str:
        """Digest of what artifacts are compared with: speed and memory of the live model are no part of it."""
        samples = [[s.ids, s.types, s.tokens, s.keep, s.encoded, s.continuation, sha256_file(s.logits)] for s in reference.samples]
        rest = [reference.logit_std, reference.speed_prompt, reference.speed_tokens, reference.readable, reference.sides]
        return digest_of([samples, rest, dataclasses.asdict(reference.subject)])

    def _record(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _load(self, name: str, inputs: list[Any]) -> Any:
        """The value of a record of the same inputs whose files are all what they were; else None."""
        try:
            record = json.loads(self._record(name).read_bytes())
            if record["key"] != self._key or record["inputs"] != digest_of(inputs) or record["digest"] != digest_of(record["value"]):
                return None
            for path, digest in record["files"].items():
                if sha256_file(self.folder / path) != digest:
                    return None
            return record["value"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def _save(self, name: str, inputs: list[Any], value: Any, files: Iterable[Path]) -> None:
        record = {
            "key": self._key,
            "inputs": digest_of(inputs),
            "digest": digest_of(value),
            "files": {path.relative_to(self.folder).as_posix(): sha256_file(path) for path in files},
            "value": value,
        }
        write_atomic(self._record(name), json.dumps(record))
        point(f"validate.{'reference' if name == 'reference' else 'examination'}.kept")
