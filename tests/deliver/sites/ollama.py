"""A stub of Ollama behind a key."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

from handlers.deliver.names import short
from tests.deliver.contract.site import Contents
from tests.deliver.exports import Export
from tests.deliver.proxy import Proxy
from tests.deliver.servers.answering import LACKS, AnsweringSite, dress
from tests.deliver.servers.ollama_stub import Model, Ollama

MODELFILE = (
    b'FROM ./model.gguf\nPARAMETER num_ctx 4096\nPARAMETER stop "</s>"\nTEMPLATE """{{ range .Messages }}{{ .Content }}{{ end }}"""\n'
    b"# what a test writes behind it is a remark"
)
MERGED = {"README.md": b"# An export\n", "gguf/model.gguf": 150_000, "gguf/Modelfile": MODELFILE}
ADAPTER = {"gguf-adapter/adapter.gguf": 20_000, "gguf-adapter/Modelfile": b"# Name the base\nFROM ./base.gguf\nADAPTER ./adapter.gguf\n"}
QUESTIONS = {" the cat": [1, 3, 4], " dog ran!": [1, 6, 7, 9], " ä": [1, 8], "a": [1, 10]}
"""Texts, and the tokens that they are; the server puts the first before each text itself."""


class SITE(AnsweringSite):
    kind = "ollama"
    entry = "handlers.deliver.servers.ollama.target:OllamaTarget"
    files = MERGED
    weights = "gguf/model.gguf"
    lacks: ClassVar[Mapping[str, str]] = {
        **LACKS,
        "what_lies_there_is_read_back": "Ollama gives no files back",
        "a_far_end_that_lies_is_caught": "Ollama gives no files back",
        "two_steps_at_once_end_at_the_later": "Ollama knows no conditional requests, and there is no folder in common to wait at",
    }
    part = 150_000
    """Ollama takes a file by one request."""
    secret = "a-key-that-nobody-may-see"
    more: ClassVar[dict[str, Any]] = {}

    def start(self) -> None:
        self.ollama = Ollama()
        self.ollama.key = self.secret
        self.ollama.prompts = {text: (place, len(ids)) for place, (text, ids) in enumerate(QUESTIONS.items())}
        self.proxy = Proxy(self.ollama.port)
        self.proxy.__enter__()

    def stop(self) -> None:
        assert self.proxy is not None
        self.proxy.__exit__()
        self.ollama.close()

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        return {"url": self.proxy.url, **self.more}

    def _versions(self) -> dict[str, Any]:
        with self.ollama.lock:
            return {name.removesuffix(":latest"): model for name, model in self.ollama.models.items()}

    def dress(self, export: Export) -> None:
        weights = next(path for path in export.digests if path.endswith(".gguf"))
        dress(export, QUESTIONS, self.ollama.steps, weights)

    def visible(self, run: str) -> Mapping[str, Contents]:
        return {
            name: {"gguf/model.gguf": hashlib.sha256(self.ollama.blobs[model.files[0]]).hexdigest()}
            for name, model in self._versions().items() if name.startswith(f"{short(run)}-")
        }  # fmt: skip

    def current(self, run: str) -> str | None:
        there = self._versions()
        return next(
            (
                name
                for name, model in there.items()
                if name.startswith(f"{short(run)}-") and short(run) in there and model == there[short(run)]
            ),
            None,
        )

    def expected(self, export: Export, variants: tuple[str, ...] = ()) -> Contents:
        return {path: digest for path, digest in export.digests.items() if path.endswith("model.gguf")}

    def carried(self, export: Export) -> int:
        return sum((export.folder / path).stat().st_size for path in super().expected(export))

    def lay_foreign(self) -> None:
        with self.ollama.lock:
            self.ollama.models["foreign-1-00000000:latest"] = next(iter(self.ollama.models.values()), None) or self._person()

    def _person(self) -> Any:
        self.ollama.blobs["f" * 64] = b"a person's model"
        return Model(("f" * 64,), (), "")

    def foreign_is_there(self) -> bool:
        return "foreign-1-00000000:latest" in self.ollama.models

    def stored(self) -> int:
        return sum(map(len, self.ollama.blobs.values()))
