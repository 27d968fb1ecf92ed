"""A stub of vLLM and SGLang: their requests and answers over HTTP, a real small model with real adapters behind it, and their known faults.

`fault`: "" (answers rightly), "silent" (an adapter whose keys do not match is loaded and not applied), "stale" (a name that was used before
goes on with what it had), "twice" (the adapter's scale is applied twice), "foreign" (other weights), "off" (no loading while it runs),
"full" (no place for one more adapter), "broken" (the connection is cut while it loads), "template" (conversations are written in another
form than the model's), "plain" (it takes no conversations), "full alias" (there is no place for the alias
of a new adapter).
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.deliver.servers.ollama_stub import live_of


class Stub:
    """The server's state."""

    def __init__(self, base: Path, fault: str = "") -> None:
        self.base, self.fault = base, fault
        self.names: dict[str, str] = {}
        self.cached: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.url = self.key = ""
        self.aliased: set[str] = set()
        self._lock = threading.Lock()

    def load(self, name: str, path: str) -> tuple[int, str]:
        if self.fault == "off":
            return 404, "Not Found"
        if name in self.names:
            return 400, f"The lora adapter '{name}' has already been loaded."
        if self.fault == "full" and len(self.names) >= 1:
            return 400, "No space left for one more adapter"
        if self.fault == "full alias" and name == "newest" and path not in self.aliased:
            return 400, "No space left for one more adapter"
        if name == "newest":
            self.aliased.add(path)
        if self.fault == "stale" and name in self.cached:
            self.names[name] = path
            return 200, "Success"
        import torch
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        model: Any = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        if self.fault == "foreign":
            torch.manual_seed(5)
            for weight in model.parameters():
                weight.data.normal_(0, weight.data.std().item() or 0.02)
        elif self.fault != "silent":
            model = PeftModel.from_pretrained(model, path)
            if self.fault == "twice":
                for module in model.modules():
                    if isinstance(getattr(module, "scaling", None), dict):
                        module.scaling = {key: 2 * value for key, value in module.scaling.items()}
        self.names[name], self.cached[name] = path, model.eval()
        return 200, "Success"

    def chat(self, body: Any) -> tuple[int, Any]:
        if self.fault == "plain":
            return 400, {"error": {"message": "no chat template"}}
        if self.key_of(body) not in self.names:
            return 404, {"error": {"message": "does not exist"}}
        turns = [(row["role"], row["content"]) for row in body["messages"]]
        if self.fault == "template":
            text = "".join(f"[{role.upper()}] {content} [/{role.upper()}]" for role, content in turns)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            text = self.tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True, tokenize=False)
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        as_ids = body.get("return_tokens_as_token_ids")
        rows = [
            {"token": f"token_id:{token}" if as_ids else self.tokenizer.decode([token]), "logprob": value}
            for token, value in self.top(self.key_of(body), ids, body["top_logprobs"])
        ]
        return 200, {"choices": [{"logprobs": {"content": [{"top_logprobs": rows}]}}], "usage": {"prompt_tokens": len(ids)}}

    @staticmethod
    def key_of(body: Any) -> str:
        """The adapter that a request names: SGLang has a field for it."""
        return str(body.get("lora_path") or body["model"])

    @cached_property
    def tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.base)

    def unload(self, name: str) -> tuple[int, str]:
        return (200, "Success") if self.names.pop(name, None) else (404, f"The lora adapter '{name}' cannot be found.")

    def top(self, name: str, ids: list[int], count: int) -> list[tuple[int, float]]:
        import torch

        with self._lock, torch.no_grad():
            logs = self.cached[name](torch.tensor([ids])).logits[0, -1].double().log_softmax(-1)
        values, tokens = logs.topk(count)
        return list(zip(tokens.tolist(), values.tolist(), strict=True))

    def rows(self, rows: list[tuple[int, float]], as_text: bool) -> list[Any]:
        return [[value, token, self.tokenizer.decode([token]) if as_text else None] for token, value in rows]

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        self.asked.append((path, body))
        if path == "/v1/models":
            return 200, {"object": "list", "data": [{"id": "base"}, *({"id": name, "root": path} for name, path in self.names.items())]}
        if path.endswith("/load_lora_adapter"):
            if self.fault == "broken":
                raise ConnectionAbortedError
            status, said = self.load(body["lora_name"], body["lora_path"])
        elif path.endswith("/unload_lora_adapter"):
            status, said = self.unload(body["lora_name"])
        elif path == "/v1/chat/completions":
            return self.chat(body)
        elif path == "/v1/completions":
            assert body["return_tokens_as_token_ids"] and body["temperature"] == 0
            if body["model"] not in self.names:
                return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
            rows = self.top(body["model"], body["prompt"], body["logprobs"])
            return 200, {"choices": [{"logprobs": {"top_logprobs": [{f"token_id:{token}": value for token, value in rows}]}}]}
        elif path == "/generate":
            assert body["return_logprob"] and body["sampling_params"]["temperature"] == 0
            if body["lora_path"] not in self.names:
                return 400, {"error": {"message": f"{body['lora_path']} is not loaded"}}
            rows = self.top(body["lora_path"], body["input_ids"], body["top_logprobs_num"])
            return 200, {"meta_info": {"output_top_logprobs": [self.rows(rows, body["return_text_in_logprobs"])]}}
        else:
            return 404, {"error": {"message": "Not Found"}}
        return status, said if status == 200 else {"error": {"message": said}}


@contextmanager
def serving(stub: Stub) -> Iterator[Stub]:
    """The stub behind an address of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                if stub.key and self.headers.get("Authorization") != f"Bearer {stub.key}":
                    status, said = 401, {"error": {"message": "no such key"}}
                else:
                    status, said = stub.answer(self.path, json.loads(body) if body else None)
            except ConnectionAbortedError:
                self.close_connection = True
                return
            data = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Scripted(Stub):
    """One that answers by the step that a file of weights stands for, without a model."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.steps: dict[str, int] = {}
        """By SHA-256."""
        self.loading = threading.Lock()

    def load(self, name: str, path: str) -> tuple[int, str]:
        with self.loading:
            if name in self.names:
                return 400, f"The lora adapter '{name}' has already been loaded."
            self.cached[name] = self.step_of(Path(path) / "adapter_model.safetensors")
            self.names[name] = path
            return 200, "Success"

    def top(self, name: str, ids: list[int], count: int) -> list[tuple[int, float]]:
        return list(self.said(self.cached[name], ids).items())[:count]

    def step_of(self, path: Path) -> int:
        return self.steps[hashlib.sha256(path.read_bytes()).hexdigest()]

    @staticmethod
    def said(step: int, ids: list[int]) -> dict[int, float]:
        """What the fine-tuned model of a step says, likeliest first."""
        return dict(sorted(live_of(step, ids[0]).items(), key=lambda row: -row[1]))

    def chat(self, body: Any) -> tuple[int, Any]:
        return 400, {"error": {"message": "no chat template"}}

    def rows(self, rows: list[tuple[int, float]], as_text: bool) -> list[Any]:
        return [[value, token, None] for token, value in rows]
