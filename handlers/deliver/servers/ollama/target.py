"""Ollama as a target: files by digest, a model under a name by content, asked, and then an alias that is copied from it.

Models that this made are known by their names: the last part is a digest of the files that Ollama shows of them, and of the template.
Ollama knows no conditional writes: of two that move the alias at once, the last wins.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from daemon.contract.delivering.orders import Listed, Move, Receipt
from daemon.contract.faults.errors import CkptdError, Permanent
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.names import of_run, short
from handlers.deliver.servers.answers import Answer
from handlers.deliver.servers.asking import ASK
from handlers.deliver.servers.conversations import Reply
from handlers.deliver.servers.ollama.api import CREATE, Api, Shown
from handlers.deliver.servers.ollama.declaration import KIND, OllamaOptions
from handlers.deliver.servers.ollama.vocabulary import Vocabulary
from handlers.deliver.servers.ollama.wanted import Wanted, digest_of, no_base, wanted
from handlers.deliver.servers.serving import AS_IT_IS, TOP, Questions, Serving, is_wrong
from handlers.deliver.target import Setting, Unreadable
from handlers.deliver.version import SourceFile, Version

ENDING = ".gguf"
OWN = re.compile(r"(.+)-(\d+)-([0-9a-f]{8}):latest")


class OllamaTarget(Serving):
    """A running Ollama."""

    kind = KIND

    def __init__(self, setting: Setting) -> None:
        self._options = OllamaOptions.model_validate(setting.options)
        super().__init__(setting, self._options)
        self._api = Api(self.calls)
        self._vocabularies: dict[str, Vocabulary] = {}

    def look(self) -> None:
        """Ask for its models, and for the base of adapters."""
        self._api.models()
        if self._options.base and self._api.show(self._options.base) is None:
            raise no_base(f"there is no model {self._options.base}")

    def put(self, file: SourceFile, sent: Callable[[int], None]) -> int:
        """Send a GGUF file; what others say goes with the request that makes the model."""
        if not file.path.endswith(ENDING) or self._api.has_blob(file.sha256):
            return file.size
        self._api.put_blob(file, sent)
        return 0

    def read_back(self, file: SourceFile) -> Iterator[bytes]:
        """Nothing can be read from there."""
        raise Unreadable("Ollama gives no files back; it compared their digests when it took them, and its answers are compared")

    def finish(self, version: Version, move: Move) -> Receipt:
        """Make the model, ask it, and move the alias."""
        questions, made = self.questions(version), wanted(version, self._options.base)
        shown = self._api.show(made.name)
        if fresh := shown is None:
            self._api.create(made.request)
            shown = self._api.show(made.name)
        try:
            self._compare(made, shown)
            figures = self.checked(made.name, questions)
        except Permanent as error:
            if fresh or (is_wrong(error) and not self._is_followed(made.name, version.run)):
                self._take_back(made.name)
            raise
        why = self._follow(made.name, version, questions, move)
        alias = of_run(self._options.alias, version.run)
        return Receipt(
            version=made.name, place=f"{self.url} as {made.name}", moved=not why, why_not_moved=why,
            usage=f"ollama run {made.name if why else alias}", figures=figures,
        )  # fmt: skip

    def _compare(self, made: Wanted, shown: Shown | None) -> None:
        """Raise Permanent where a name stands for something else than was made."""
        template = str(made.request.get("template", ""))
        if shown is None or _ours(shown) != made.digests:
            raise Permanent(
                FaultCode.DELIVERY_CONFLICT, CREATE, f"the name {made.name} stands for something else",
                "look at what lies there, and remove that model", path=self.url,
            )  # fmt: skip
        if template and shown.template.strip() != template.strip():
            raise self.wrong("it writes conversations by another chat template than the model's", made.name, "update Ollama")

    def answers(self, model: str, questions: Questions) -> Sequence[Answer]:
        """The most likely next tokens; empty where a position can't be asked by text. Raises CkptdError."""
        said = super().answers(model, questions)
        if not any(said):
            cause = "none of the questions can be asked of it by text"
            raise Permanent(FaultCode.DELIVERY_ANSWERS, ASK, cause, "deliver it to another server", path=self.url)
        return said

    def ask_tokens(self, model: str, ids: Sequence[int]) -> Answer:
        """By the text that is these tokens."""
        vocabulary = self._vocabulary(model)
        if not (prompt := vocabulary.text(ids)):
            return {}
        said = self._api.next_token(model, prompt, TOP)
        if int(said.get("prompt_eval_count") or 0) > len(ids):
            return {}  # the same text is cut into other tokens
        return _tokens(vocabulary, said, str(said.get("response", "")))

    def ask_chat(self, model: str, messages: Sequence[Mapping[str, str]]) -> Reply | None:
        """By Ollama's own chat."""
        said = self._api.first_of_chat(model, messages, TOP)
        if said is None:
            return None
        message: Any = said.get("message") or {}
        text = str(message.get("content") or message.get("thinking") or "")
        return Reply(_tokens(self._vocabulary(model), said, text), said.get("prompt_eval_count"))

    def _vocabulary(self, model: str) -> Vocabulary:
        if model not in self._vocabularies:
            shown = self._api.show(model, vocabulary=True)
            try:
                self._vocabularies[model] = Vocabulary(shown.info if shown else {})
            except ValueError as error:
                cause = f"it can't be asked what it would be right to answer: {error}"
                raise Permanent(FaultCode.DELIVERY_ANSWERS, ASK, cause, "update Ollama", path=self.url) from error
        return self._vocabularies[model]

    def _follow(self, name: str, version: Version, questions: Questions, move: Move) -> str:
        """Let the alias stand for the model; gives why it does not, "" where it does."""
        alias = of_run(self._options.alias, version.run)
        if not alias:
            return "the target has no alias"
        if move == "keep":
            return AS_IT_IS
        old = next((row for row in self.list(version.run) if row.current), None)
        there = _tagged(alias) in (models := self._api.models())
        if move == "move" and old is not None and old.step > version.step:
            return f"people are served step {old.step}, which is later"
        if move == "move" and there and old is None:
            return "the alias stands for a model that ckptd did not bring"
        if there and models[_tagged(alias)] == models.get(_tagged(name)):
            return ""
        before = self.answers_now(alias, questions) if there else None
        self._vocabularies.pop(alias, None)
        self._api.copy(name, alias)
        try:
            self.checked(alias, questions, before)
        except CkptdError as error:
            if old is not None:
                self._api.copy(old.version, alias)
            elif not there:
                self._api.delete(alias)
            if is_wrong(error):
                self._take_back(name)
            raise
        return ""

    def list(self, run: str) -> Sequence[Listed]:
        """Models whose names say that they are ours, and whose files say so too."""
        models, rows = self._api.models(), []
        for match in filter(None, map(OWN.fullmatch, models)):
            if run and match.group(1) != short(run):
                continue
            name = match.group(0).removesuffix(":latest")
            shown = self._api.show(name)
            if shown is None or digest_of(_ours(shown), shown.template) != match.group(3):
                continue
            alias = _tagged(of_run(self._options.alias, run or match.group(1)))
            current = bool(self._options.alias) and models.get(alias) == models[match.group(0)]
            rows.append(Listed(version=name, run=run or match.group(1), step=int(match.group(2)), export=name, current=current))
        return sorted(rows, key=lambda row: (row.run, row.step, row.version))

    def remove(self, version: str) -> None:
        """Take a model away; files that no other names go with it."""
        row = next((row for row in self.list("") if row.version == version), None)
        if row is None:
            return
        if row.current:
            raise self.followed(version)
        self._api.delete(version)

    def _is_followed(self, name: str, run: str) -> bool:
        return any(row.current for row in self.list(run) if row.version == name)

    def _take_back(self, name: str) -> None:
        """Remove what was made now."""
        with contextlib.suppress(CkptdError):
            self._api.delete(name)


def _tokens(vocabulary: Vocabulary, said: Mapping[str, Any], text: str) -> Answer:
    """The log-probabilities of a first token; of an Ollama that gives none, its choice alone."""
    rows = said.get("logprobs")
    if not isinstance(rows, list) or not rows:
        token = vocabulary.id(text.encode())
        return {} if token is None else {token: 0.0}
    answer: dict[int, float] = {}
    for row in rows[0].get("top_logprobs") or rows[:1]:
        token = vocabulary.id(bytes(row["bytes"]) if row.get("bytes") else str(row["token"]).encode())
        if token is not None:
            answer[token] = float(row["logprob"])
    return answer


def _tagged(name: str) -> str:
    """A name as the list of models has it."""
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _ours(shown: Shown) -> frozenset[str]:
    """The files of a model that a delivery sent: of one with adapters those alone."""
    return shown.adapters or shown.models
