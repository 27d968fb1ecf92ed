"""A stub of Ollama: its requests and answers as its pages on the API have them, with known ways in which what it serves is wrong.

`fault`: "" (answers rightly), "base" (the model is made and answers as the base), "twice" (the adapter counts twice), "stale" (a name that
was used before goes on with what it had), "template" (another chat template is chosen), "mute" (no log-probabilities, as before 0.12.11),
"lost" (files that no model names are gone when the model is made), "old" (the architecture is not known), "rewrites" (conversations
are written in another form; "mute rewrites": and no log-probabilities are given).
"""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from dataclasses import dataclass, field
from typing import Any

WORDS = ["<unk>", "<s>", "</s>", "Ġthe", "Ġcat", "Ġsat", "Ġdog", "Ġran", "ĠÃ¤", "!", "a", "b", "Ċ", "Ã"]
"""Ids by place, as GGUF writes GPT-2's vocabularies: Ġ is a space, Ċ a line's end, Ã¤ the two bytes of ä."""
CONTROL = 3
TOP = {3: -1.0, 4: -1.5, 5: -2.0, 6: -2.5, 7: -3.0, 8: -3.5}
"""What the base expects everywhere."""
PIECES = {3: " the", 4: " cat", 5: " sat", 6: " dog", 7: " ran", 8: " ä"}


def live_of(step: int, place: int) -> dict[int, float]:
    """What the fine-tuned model of a step expects at a position."""
    return {token: value + 0.4 * (((token * 7 + step + place * 3) % 5) - 2) for token, value in TOP.items()}


@dataclass
class Model:
    files: tuple[str, ...]
    adapters: tuple[str, ...]
    template: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()


class Ollama(http.server.ThreadingHTTPServer):
    """Listens on a port of its own."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.blobs: dict[str, bytes] = {}
        self.models: dict[str, Model] = {}
        self.cached: dict[str, Model] = {}
        self.steps: dict[str, int] = {}
        """Of the model behind a file's digest."""
        self.prompts: dict[str, tuple[int, int]] = {}
        """Text → its place among the questions, and its tokens."""
        self.fault, self.key = "", ""
        self.lock = threading.RLock()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Cut connections are no news."""

    def prune(self) -> None:
        """Let files go that no model names."""
        needed = {digest for model in self.models.values() for digest in (*model.files, *model.adapters)}
        self.blobs = {digest: data for digest, data in self.blobs.items() if digest in needed}

    def close(self) -> None:
        self.shutdown()
        self.server_close()


def _named(model: str) -> str:
    return model if ":" in model else f"{model}:latest"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Ollama

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _say(self, status: int, value: Any = None) -> None:
        data = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return None
        if self.server.key and self.headers.get("Authorization") != f"Bearer {self.server.key}":
            return self._say(401, {"error": "unauthorized"})
        with self.server.lock:
            if self.path.startswith("/api/blobs/sha256:"):
                return self._blob(self.path.rpartition(":")[2], body)
            if (self.command, self.path) == ("GET", "/api/tags"):
                rows = [{"name": name, "model": name, "digest": model.digest} for name, model in self.server.models.items()]
                return self._say(200, {"models": rows})
            verb = {
                "show": self._show,
                "create": self._create,
                "copy": self._copy,
                "delete": self._delete,
                "generate": self._generate,
                "chat": self._chat,
            }
            return verb[self.path.removeprefix("/api/")](json.loads(body))

    do_GET = do_HEAD = do_POST = do_DELETE = _serve  # noqa: N815

    def _blob(self, digest: str, body: bytes) -> None:
        if self.command == "HEAD":
            return self._say(200 if digest in self.server.blobs else 404)
        if hashlib.sha256(body).hexdigest() != digest:
            return self._say(400, {"error": f"digest mismatch, expected {digest}"})
        self.server.blobs[digest] = body
        return self._say(201)

    def _show(self, asked: Any) -> None:
        model = self.server.models.get(_named(asked["model"]))
        if model is None:
            return self._say(404, {"error": f"model '{asked['model']}' not found"})
        lines = [f"FROM /root/.ollama/models/blobs/sha256-{digest}" for digest in model.files]
        lines += [f"ADAPTER /root/.ollama/models/blobs/sha256-{digest}" for digest in model.adapters]
        info: dict[str, Any] = {"general.architecture": "llama", "tokenizer.ggml.model": "gpt2"}
        if asked.get("verbose"):
            info |= {
                "tokenizer.ggml.tokens": WORDS,
                "tokenizer.ggml.token_type": [1, CONTROL, CONTROL, *[1] * 11],
                "tokenizer.ggml.bos_token_id": 1,
            }
            info["tokenizer.ggml.add_bos_token"] = True
        template = "{{ .Prompt }} as another" if self.server.fault == "template" else model.template
        return self._say(200, {"modelfile": "\n".join(["# Modelfile", *lines, "TEMPLATE x"]), "template": template, "model_info": info})

    def _create(self, asked: Any) -> None:
        server = self.server
        if server.fault == "lost":
            server.blobs.clear()
        blobs = {**asked.get("files", {}), **asked.get("adapters", {})}
        for name, digest in blobs.items():
            if not digest.startswith("sha256:") or digest.removeprefix("sha256:") not in server.blobs:
                return self._say(200, json.dumps({"error": f"open {name}: no such file or directory"}).encode() + b"\n")
        if server.fault == "old":
            return self._say(200, json.dumps({"error": 'unsupported architecture "new"'}).encode() + b"\n")
        files = tuple(digest.removeprefix("sha256:") for digest in asked.get("files", {}).values())
        if "from" in asked:
            if _named(asked["from"]) not in server.models:
                return self._say(200, json.dumps({"error": f"model '{asked['from']}' not found"}).encode() + b"\n")
            files = server.models[_named(asked["from"])].files
        adapters = tuple(digest.removeprefix("sha256:") for digest in asked.get("adapters", {}).values())
        server.models[_named(asked["model"])] = Model(files, adapters, asked.get("template", ""), asked.get("parameters", {}))
        return self._say(200, b'{"status":"parsing GGUF"}\n{"status":"writing manifest"}\n{"status":"success"}\n')

    def _copy(self, asked: Any) -> None:
        if (model := self.server.models.get(_named(asked["source"]))) is None:
            return self._say(404, {"error": "not found"})
        self.server.models[_named(asked["destination"])] = model
        return self._say(200)

    def _delete(self, asked: Any) -> None:
        if self.server.models.pop(_named(asked["model"]), None) is None:
            return self._say(404, {"error": "not found"})
        self.server.prune()
        return self._say(200)

    def _chat(self, asked: Any) -> None:
        prompt = "".join(row["content"] for row in asked["messages"])
        if self.server.fault.endswith("rewrites"):
            prompt = next(text for text in self.server.prompts if text != prompt)
        return self._generate({**asked, "prompt": prompt})

    def _generate(self, asked: Any) -> None:
        server, name = self.server, _named(asked["model"])
        assert (
            asked.get("raw", True) is True
            and asked["stream"] is False
            and asked["options"]["temperature"] == 0
            and asked["options"]["num_predict"] == 1
        )
        if name not in server.models:
            return self._say(404, {"error": f"model '{asked['model']}' not found"})
        model = server.cached.get(name, server.models[name]) if server.fault == "stale" else server.models[name]
        server.cached.setdefault(name, server.models[name])
        if server.fault != "stale":
            server.cached[name] = model
        place, count = server.prompts[asked["prompt"]]
        step = next(server.steps[digest] for digest in (*model.adapters, *model.files) if digest in server.steps)
        live = live_of(step, place)
        more = {"": 1.0, "base": 0.0, "twice": 2.0}.get(server.fault, 1.0)
        said = {token: value + more * (live[token] - value) for token, value in TOP.items()}
        rows = sorted(said, key=lambda token: -said[token])
        answer: dict[str, Any] = {"model": name, "response": PIECES[rows[0]], "done": True, "prompt_eval_count": count}
        answer["message"] = {"role": "assistant", "content": PIECES[rows[0]]}
        if not server.fault.startswith("mute"):
            top = [{"token": PIECES[token], "logprob": said[token], "bytes": list(PIECES[token].encode())} for token in rows]
            answer["logprobs"] = [{**top[0], "top_logprobs": top[: asked["top_logprobs"]]}]
        elif server.fault == "mute base":
            answer["response"] = PIECES[3]
        return self._say(200, answer)
