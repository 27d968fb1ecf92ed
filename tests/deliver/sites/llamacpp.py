"""llama.cpp's server by its requests: it reads the link `current.gguf` when it is restarted. test_llama.py has the real one."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from tests.deliver.contract.site import Contents
from tests.deliver.exports import Export
from tests.deliver.servers.answering import LACKS, AnsweringSite, dress
from tests.deliver.servers.ollama_stub import TOP
from tests.deliver.servers.stub import Scripted

RESTART = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], b'{}').close()"
ONE = "a server has one model: people are served the run that was delivered last"


class Stub(Scripted):
    """Answers with what the link led to when it was restarted, else as the base."""

    link: Path
    served: int | None = None

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path == "/restart":
            self.served = self.step_of(self.link) if self.link.exists() else None
            return 200, {}
        if path == "/health":
            return 200, {"status": "ok"}
        if path != "/completion":
            return 404, {"error": {"message": "File Not Found"}}
        rows = dict(TOP) if self.served is None else self.said(self.served, body["prompt"])
        return 200, {"completion_probabilities": [{"top_logprobs": [{"id": token, "logprob": value} for token, value in rows.items()]}]}


class SITE(AnsweringSite):
    kind = "llamacpp"
    entry = "handlers.deliver.servers.llamacpp.target:LlamaServer"
    counts: ClassVar[Literal["requests", "calls"]] = "calls"
    files: ClassVar[Mapping[str, bytes | int]] = {
        "README.md": b"# An export\n", "gguf-adapter/adapter.gguf": 150_000, "gguf-adapter/Modelfile": b"FROM ./base.gguf\n",
        "onnx/model.onnx": 40_000,
    }  # fmt: skip
    weights = "gguf-adapter/adapter.gguf"
    secret = "a-key-that-nobody-may-see"
    lacks: ClassVar[Mapping[str, str]] = {
        **LACKS,
        "hostile_names_of_runs_stay_apart": ONE,
        "the_list_names_what_was_brought_oldest_first": ONE,
        "a_far_end_that_lies_is_caught": "contents go by a folder, not over the network",
        "a_full_far_end_is_said": "nothing is written over the network: the folder's disk is what may be full",
    }

    def start(self) -> None:
        self.stub = Stub()
        self.shelf.mkdir()
        self.stub.link = self.shelf / "current.gguf"
        self.serve(self.stub)

    def options(self) -> dict[str, Any]:
        assert self.proxy is not None
        restart = [sys.executable, "-c", RESTART, f"{self.stub.url}/restart"]
        return {"url": self.proxy.url, "folder": str(self.shelf), "reload": restart, "load_seconds": 5.0}

    def dress(self, export: Export) -> None:
        dress(export, {str(place): [place, 3] for place in range(4)}, self.stub.steps, self.weights)

    def visible(self, run: str) -> Mapping[str, Contents]:
        return {
            folder.name: self.contents(folder)
            for folder in self.shelf.iterdir() if folder.name.startswith(f"{run}-") and not folder.name.startswith(".")
        }  # fmt: skip

    def current(self, run: str) -> str | None:
        link = self.shelf / "current.gguf"
        name = os.readlink(link).split("/")[0] if link.is_symlink() else None
        return name if name and name.startswith(f"{run}-") else None
