"""All comparisons of the files beside an artifact's weights with what the checkpoint says: one finding for each file that says otherwise.

Called by `checks.examination` while the artifact's worker holds it. What the worker's loader says of a file counts, since that is what
users get; what it does not say is read from the file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daemon.contract.faults.errors import CkptdError
from daemon.contract.formats.catalog import catalog
from daemon.contract.formats.declaration import FileKind
from daemon.contract.models.safetensors import TensorInfo
from handlers.models.files import setting
from handlers.models.folder import ModelFolder
from handlers.models.releases.older_readers import readable_tokenizer
from handlers.texts import chat
from handlers.texts.reading import values
from handlers.validate import findings
from handlers.validate.files import expected, generation, ollama, runtime, stray, templates, tokenizer, words
from handlers.validate.files.expected import CONFIG, GENERATION, STORED, TOKENIZER_CONFIG, Expected
from handlers.validate.findings import Compared, Finding
from handlers.validate.folders import configs, quantization
from handlers.validate.workers.client import EngineWorker
from handlers.validate.workers.protocol import FilesRead, ReadFiles, Transcript
from handlers.validate.workers.transcripts import TOKENIZER as CANONICAL
from handlers.validate.workers.transcripts import WORDS

NAMED = 3


def compare(worker: EngineWorker, known: Path | None, scratch: Path, *, texts: bool) -> Compared:
    """Compare the folder of a worker, which has loaded it, with what lies in the folder `known`. `texts`: it has a tokenizer of its own.

    Raises WorkerFailed.
    """
    wanted = expected.read(known)
    if wanted is None or known is None:
        return Compared()
    folder, made = Path(worker.folder), scratch / "files"
    made.mkdir(parents=True, exist_ok=True)
    read = worker.ask(ReadFiles(out=str(made), known=str(known / STORED)))
    artifact = _Folder(folder, worker.name, wanted, read)
    result = Compared()
    if texts:
        if wanted.asked is not None and wanted.answered is not None:
            transcript = worker.ask(wanted.asked)
            result.findings += artifact.tokenizer(known, made, transcript)
            result.add(artifact.seen_by_nobody(artifact.tokenizer_settings(known, transcript)))
            result.notes += artifact.apart(transcript)
        result.findings += artifact.templates()
        result.add(artifact.seen_by_nobody([*artifact.copies(), *artifact.strays()]))
        result.add(artifact.modelfile(known))
    result.findings += [*artifact.generation(), *artifact.runtime(known)]
    result.add(artifact.seen_by_nobody(artifact.config()))
    return result


@dataclass(frozen=True)
class _Folder:
    """The folder of an artifact, and what it must say."""

    path: Path
    variant: str
    wanted: Expected
    read: FilesRead

    def tokenizer(self, known: Path, made: Path, transcript: Transcript) -> list[Finding]:
        """Compare the tokenizer: vocabulary, what it makes of texts, its settings."""
        wanted, problems = self.wanted, list[Finding]()
        assert wanted.asked is not None and wanted.answered is not None
        behaviour = tokenizer.transcript_fault(wanted.asked, transcript, wanted.answered)
        places = [known / name for name in (CANONICAL, STORED) if (known / name).is_file()]
        mine = [*([made / CANONICAL] if self.read.tokenizer else []), *([file] if (file := self.path / CANONICAL).is_file() else [])]
        others = [path for path in mine if not any(path.read_bytes() == other.read_bytes() for other in places)]
        theirs = [values(path) for path in places] if others else []
        clauses = [] if behaviour is None else [behaviour]
        for place, ours in ((place, values(place)) for place in others if theirs):
            if fault := tokenizer.vocabulary_fault(ours, theirs):
                clauses.insert(0, fault if place == others[0] else f"{fault}, as other programs read it from {CANONICAL}")
            if transcript.foreign and (parts := tokenizer.other_parts(ours, theirs)):
                clauses.append(f"has another {' and '.join(parts)} than the checkpoint's")
            if fault := tokenizer.limits_fault(ours, theirs):
                clauses.append(fault)
        if self.read.words and places:
            held = words.difference(values(made / WORDS), [values(path) for path in places])
            clauses[:0] = filter(None, (held, tokenizer.too_far_apart(wanted.asked, transcript, wanted.answered)))
        if not places and wanted.vocabulary and (own := self.read.vocabulary or dict(values(self.path / "vocab.json"))):
            clauses[:0] = [fault] if (fault := tokenizer.map_fault(own, wanted.vocabulary)) else []
        clauses[:0] = [self.read.tables] if self.read.tables else []
        if clauses:
            clauses = list(dict.fromkeys(clauses))
            problems.append(findings.tokenizer(f"its tokenizer {clauses[0]}{_more(clauses)}"))
        return problems

    def seen_by_nobody(self, problems: list[Finding]) -> Compared:
        """Give what nothing that is run shows: findings, and notes where another program made the artifact."""
        if self.wanted.foreign:
            return Compared(notes=[problem.reason for problem in problems])
        return Compared(findings=problems)

    def tokenizer_settings(self, known: Path, transcript: Transcript) -> list[Finding]:
        """Compare tokenizer_config.json."""
        wanted = self.wanted
        assert wanted.answered is not None
        if (self.path / TOKENIZER_CONFIG).is_file():
            said = wanted.tokenizer_config or {}
            canonical = next((values(known / name) for name in (STORED, CANONICAL) if (known / name).is_file()), {})
            also = readable_tokenizer(said, canonical)
            if transcript.foreign and tokenizer.puts_first(wanted.answered, said.get("bos_token"), canonical):
                also = {**also, "add_bos_token": True}  # a runtime that goes by it must be told
            if fault := generation.tokenizer_difference(values(self.path / TOKENIZER_CONFIG), said, also):
                return [findings.changed("tokenizer", f"its {TOKENIZER_CONFIG} is not the checkpoint's: {fault}", TOKENIZER_CONFIG)]
        elif wanted.tokenizer_config is not None and self._carries(TOKENIZER_CONFIG):
            return [findings.changed("tokenizer", f"it lacks {TOKENIZER_CONFIG}, which the checkpoint has", "folder")]
        return []

    def apart(self, transcript: Transcript) -> list[str]:
        """Give what its own implementation of the tokenizer reads otherwise."""
        assert self.wanted.asked is not None and self.wanted.answered is not None
        texts = tokenizer.told_apart(self.wanted.asked, transcript, self.wanted.answered)
        if not texts:
            return []
        some = ", ".join(repr(text[:40]) for text in texts[:NAMED])
        asked = len(self.wanted.asked.texts)
        return [f"its runtime's own tokenizer reads {len(texts)} of {asked} rare texts otherwise than transformers: {some}"]

    def templates(self) -> list[Finding]:
        """Compare the chat template, wherever a loader may take it from, and those with names."""
        wanted, mine = self.wanted, chat.templates_in(self.path)
        places = dict(mine.places)
        if loaded := (self.read.templates or {}).get("default"):  # an adapter's users may have it from the base
            places["chat template"] = loaded
        if not wanted.templates:
            faults = [f"its {place} has a chat template, and the checkpoint has none" for place in list(places)[:1]]
        elif not places or (not mine.places and self._carries(chat.JINJA)):  # its runtime may have one inside a file of its own
            lost = self.read.templates is not None or self._carries(chat.JINJA)
            faults = ["it has no chat template, and the checkpoint has one"] if lost else []
        else:
            faults = []
            for place, text in places.items():
                differences = [templates.difference(text, template, wanted.names) for template in wanted.templates]
                if all(differences):
                    faults.append(f"its {place} {differences[0]}")
        more = {**mine.named, **{name: text for name, text in (self.read.templates or {}).items() if name != "default"}}
        for name in {**wanted.more_templates, **more} if places or more else {}:
            ours, theirs = more.get(name), wanted.more_templates.get(name)
            if ours is None or theirs is None:
                faults.append(f"its chat template {name!r} is {'missing' if ours is None else 'not the checkpoint’s'}")
            elif told_one := templates.difference(ours, theirs, wanted.names):
                faults.append(f"its chat template {name!r} {told_one}")
        return [findings.changed("template", faults[0], "chat template")] if faults else []

    def copies(self) -> list[Finding]:
        """Compare files that are carried along as they are."""
        faults = []
        for name, value in self.wanted.copies.items():
            path = self.path / name
            if path.is_file() and expected.fingerprint(path) != value:
                faults.append((name, f"its {name} is not the checkpoint's"))
            elif not path.is_file() and self._carries(name):
                faults.append((name, f"it lacks {name}, which the checkpoint has"))
        return [findings.changed("files", fault, name) for name, fault in faults[:NAMED]]

    def strays(self) -> list[Finding]:
        """Report files that its format does not declare, or that the checkpoint does not have."""
        return [findings.stray(fault) for _, fault in stray.faults(self.path, self._patterns, self.wanted)[:NAMED]]

    def generation(self) -> list[Finding]:
        """Compare generation_config.json, as its loader takes it."""
        wanted, path = self.wanted, self.path / GENERATION
        if wanted.generation is None:
            return []
        if not path.is_file():
            lost = wanted.stated and self._carries(GENERATION)
            return [findings.changed("generation", f"it lacks {GENERATION}, which the checkpoint has", "folder")] if lost else []
        mine = self.read.generation if self.read.generation is not None else values(path)
        difference = generation.difference(mine, wanted.generation, wanted.defaults)
        return [findings.changed("generation", f"its {GENERATION} is not the checkpoint's: {difference}", GENERATION)] if difference else []

    def runtime(self, known: Path) -> list[Finding]:
        """Compare what its runtime reads from a file of its own."""
        if self.read.runtime is None:
            return []
        numbers = {text: number for number, text in _texts(known).items()} if self.read.words else {}
        own = {f"{name}_id": numbers[text] for name, text in self.wanted.names.items() if text in numbers}
        clause = runtime.difference(self.read.runtime, self.wanted.config, self.wanted.generation or {}, own)
        if tokens := self.read.runtime.get("tokenizer"):
            clause = ", ".join(filter(None, (clause, runtime.tokens_difference(tokens, self.wanted.names, values(known / CANONICAL)))))
        if not clause:
            return []
        return [findings.changed("runtime", f"its runtime's settings are not the checkpoint's: {clause}", "runtime's configuration")]

    def config(self) -> list[Finding]:
        """Compare config.json, beside that of the merged model."""
        mine = values(self.path / CONFIG)
        if not mine or not self.wanted.config:
            return []
        own = self._kind(CONFIG) != "config"
        if own and mine.get("model_type") != self.wanted.config.get("model_type"):
            return []  # it is a file of another program's, of the same name
        difference = configs.difference(mine, self.wanted.config, added=own)
        if difference is None and not own:
            tensors = self._tensors()
            stored = {tensor.dtype for tensor in tensors.values()}
            difference = configs.form_fault(mine, self.wanted.config, stored) or configs.tied_fault(mine, self.path, tensors)
            if difference is None and mine.get("quantization_config") != self.wanted.config.get("quantization_config"):
                renamed = self.read.modules or {}
                difference = quantization.fault(mine, {renamed.get(name, name): tensor for name, tensor in tensors.items()}, self.path)
        return [findings.changed("config", difference)] if difference else []

    def modelfile(self, known: Path) -> Compared:
        """Compare Ollama's Modelfile, where there is one."""
        path, wanted = self.path / ollama.NAME, self.wanted
        if not path.is_file():
            lost = self._kind(ollama.NAME) is not None and not wanted.foreign
            return Compared(findings=[findings.changed("runtime", f"it lacks its {ollama.NAME}", "folder")] if lost else [])
        modelfile, tokens = ollama.read(path.read_text(encoding="utf-8", errors="replace")), _texts(known)
        sizes = (setting(wanted.config, key) for key in (*runtime.POSITIONS, "sliding_window"))
        ends = [tokens[number] for number in sorted(expected.ends(wanted)) if number in tokens]
        fault = ollama.difference(
            modelfile, self.path, ends=ends, specials=tokens.values(), lengths=[size for size in sizes if isinstance(size, int)],
            generation=wanted.generation or {},
        )  # fmt: skip
        result = Compared(
            findings=[findings.changed("runtime", f"its {ollama.NAME} is not the checkpoint's: {fault}", ollama.NAME)] if fault else []
        )
        if modelfile.template is not None:
            try:
                clause = ollama.template_difference(modelfile.template, next(iter(wanted.templates), None), wanted.names)
                result.findings += [findings.changed("template", f"its {ollama.NAME}'s TEMPLATE {clause}", ollama.NAME)] if clause else []
            except ollama.UnreadError as error:
                result.notes.append(f"its {ollama.NAME}'s TEMPLATE was not compared with the chat template: it uses {str(error)!r}")
        return result

    def _tensors(self) -> dict[str, TensorInfo]:
        """Give what its safetensors files hold, by name."""
        with contextlib.suppress(CkptdError):  # files that can't be read are found where they are loaded
            return dict(ModelFolder(self.path).headers) if any(self.path.glob("*.safetensors")) else {}
        return {}

    def _carries(self, name: str) -> bool:
        """Tell whether its format says that the file is among its own, where the checkpoint has it."""
        variant = catalog().variants.get(self.variant)
        return variant is not None and "tokenizer" in variant.traits and self._kind(name) is not None

    def _kind(self, name: str) -> Any:
        pattern = stray.pattern_of(name, self._patterns)
        return None if pattern is None else self._patterns[pattern]

    @property
    def _patterns(self) -> dict[str, FileKind]:
        return catalog().files.get(self.variant, {})


def _texts(known: Path) -> dict[int, str]:
    """Give the added tokens of the checkpoint's tokenizer by id."""
    tokenizer = values(known / CANONICAL) or values(known / STORED)
    return {token["id"]: token["content"] for token in tokenizer.get("added_tokens", [])}


def _more(clauses: list[str]) -> str:
    return "".join(f"; it {clause}" for clause in clauses[1:NAMED])
