"""The requests of Ollama's API, as its own page `api.md` has them, that a delivery needs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from daemon.contract.faults.errors import Permanent, Retryable
from daemon.contract.faults.fault_codes import FaultCode
from handlers.deliver.calls import Calls, Said
from handlers.deliver.servers.asking import ASK, unexpected
from handlers.deliver.version import SourceFile

CREATE = "create the model"
_BLOB = re.compile(r"^(FROM|ADAPTER) .*sha256[-:]([0-9a-f]{64})\s*$", re.MULTILINE)
MOST_SHOWN = 64 << 20
"""Bytes of a model's description: it has the vocabulary."""


@dataclass(frozen=True)
class Shown:
    """What Ollama says of a model."""

    models: frozenset[str] = frozenset()
    """SHA-256 of files that FROM names."""
    adapters: frozenset[str] = frozenset()
    template: str = ""
    info: Mapping[str, Any] = field(default_factory=dict)


class Api:
    """One Ollama."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls

    def has_blob(self, sha256: str) -> bool:
        """Whether a file lies there."""
        return self.calls.ask("look for a file", "HEAD", f"/api/blobs/sha256:{sha256}", accepted=(200, 404)).status == 200

    def put_blob(self, file: SourceFile, sent: Any) -> None:
        """Send a file. Raises CkptdError."""

        said = self.calls.ask(
            "send a file", "POST", f"/api/blobs/sha256:{file.sha256}", body=lambda: file.whole(sent), accepted=(200, 201, 400),
            headers={"Content-Length": str(file.size), "Content-Type": "application/octet-stream"},
        )  # fmt: skip
        if said.status == 400:
            remedy = "look for a proxy between here and there, and deliver again"
            cause = f"Ollama got another file than was sent: {self.calls.masked(said.words)}"
            raise Permanent(FaultCode.DELIVERY_MISMATCH, "send a file", cause, remedy, path=file.path)

    def models(self) -> dict[str, str]:
        """Name → digest of all models."""
        document = self.calls.ask("list the models", "GET", "/api/tags").json()
        rows = document.get("models") if isinstance(document, dict) else None
        if not isinstance(rows, list):
            raise unexpected("list the models", self.calls.base, "its answer is no list of models")
        return {str(row.get("model") or row.get("name")): str(row.get("digest")) for row in rows if isinstance(row, dict)}

    def show(self, model: str, vocabulary: bool = False) -> Shown | None:
        """What it says of a model; None where there is none."""
        said = self.calls.ask(
            "look at the model",
            "POST",
            "/api/show",
            body=_json({"model": model, "verbose": vocabulary}),
            accepted=(200, 404),
            most=MOST_SHOWN,
        )
        document = said.json()
        if said.status == 404:
            return None
        if not isinstance(document, dict):
            raise unexpected("look at the model", self.calls.base, "its answer says nothing of the model")
        blobs = _BLOB.findall(str(document.get("modelfile", "")))
        info = document.get("model_info")
        return Shown(
            frozenset(digest for kind, digest in blobs if kind == "FROM"), frozenset(digest for kind, digest in blobs if kind == "ADAPTER"),
            str(document.get("template", "")), info if isinstance(info, dict) else {},
        )  # fmt: skip

    def create(self, request: Mapping[str, Any]) -> None:
        """Make a model. Raises CkptdError."""
        said = self.calls.ask(CREATE, "POST", "/api/create", body=_json(request))
        lines = [json.loads(line) for line in said.body.splitlines() if line.strip()]
        errors = [str(line["error"]) for line in lines if isinstance(line, dict) and line.get("error")]
        if errors:
            cause = f"Ollama can't make the model: {self.calls.masked(errors[0])}"
            if "not found" in errors[0] or "no such file" in errors[0]:  # it takes files away that no model names, when it starts
                raise Retryable(FaultCode.DELIVERY_FAR_END, CREATE, cause, "it is delivered again by itself", path=self.calls.base)
            remedy = "see that this Ollama knows the model's architecture, and update it"
            raise Permanent(FaultCode.DELIVERY_REFUSED, CREATE, cause, remedy, path=self.calls.base)
        if not lines or not isinstance(lines[-1], dict) or lines[-1].get("status") != "success":
            cause = "Ollama did not say that the model is made"
            raise Retryable(FaultCode.DELIVERY_FAR_END, CREATE, cause, "look at Ollama's log", path=self.calls.base)

    def copy(self, model: str, alias: str) -> None:
        """Let another name stand for a model."""
        self.calls.ask("move the alias", "POST", "/api/copy", body=_json({"source": model, "destination": alias}))

    def delete(self, model: str) -> None:
        """Take a name away; one that is not there is none."""
        self.calls.ask("remove the model", "DELETE", "/api/delete", body=_json({"model": model}), accepted=(200, 404))

    def next_token(self, model: str, prompt: str, top: int) -> Mapping[str, Any]:
        """What it says about the next token of a text as it is."""
        said = self.calls.ask(ASK, "POST", "/api/generate", body=_json({**_asked(model, top), "prompt": prompt, "raw": True}))
        return self._document(said)

    def first_of_chat(self, model: str, messages: Sequence[Mapping[str, str]], top: int) -> Mapping[str, Any] | None:
        """What it says about the first token that it would answer to messages; None where the model takes none."""
        body = _json({**_asked(model, top), "messages": list(messages)})
        said = self.calls.ask(ASK, "POST", "/api/chat", body=body, accepted=(200, 400))
        return self._document(said) if said.status == 200 else None

    def _document(self, said: Said) -> Mapping[str, Any]:
        document = said.json()
        if not isinstance(document, dict):
            raise unexpected(ASK, self.calls.base, "its answer is no JSON")
        return document


def _asked(model: str, top: int) -> dict[str, Any]:
    return {
        "model": model, "stream": False, "logprobs": True, "top_logprobs": top, "options": {"temperature": 0, "num_predict": 1, "seed": 1},
    }  # fmt: skip


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
