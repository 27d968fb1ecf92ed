"""vLLM: `/v1/load_lora_adapter`, `/v1/unload_lora_adapter`, `/v1/models`, `/v1/completions` with token ids, `/v1/chat/completions` (vLLM's
`entrypoints/openai/models/serving.py`, `completion/protocol.py` and `chat_completion/protocol.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from daemon.contract.values import Json
from handlers.deliver.servers.adapters import AdapterServer
from handlers.deliver.servers.answers import Answer
from handlers.deliver.servers.asking import ASK, ask, unexpected
from handlers.deliver.servers.serving import TOP
from handlers.deliver.servers.vllm.declaration import KIND


class Vllm(AdapterServer):
    """A vLLM server."""

    kind = KIND
    load_path, unload_path = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    how_to_allow = "start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"

    def ask_tokens(self, model: str, ids: Sequence[int]) -> Answer:
        """The most likely tokens; tokens as ids, since texts of tokens are not unique."""
        body = {
            "model": model, "prompt": list(ids), "max_tokens": 1, "temperature": 0, "logprobs": TOP, "return_tokens_as_token_ids": True,
        }  # fmt: skip
        answer: Any = ask(self.calls, ASK, "/v1/completions", body).json()
        try:
            rows = answer["choices"][0]["logprobs"]["top_logprobs"][0]
            return {_id(token): float(value) for token, value in rows.items()}
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise unexpected(ASK, self.url, "its answer has no log-probabilities by token id") from None

    def chat_request(self, model: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """With tokens as ids."""
        return {**super().chat_request(model, messages), "return_tokens_as_token_ids": True}

    def chat_answer(self, choice: Json) -> Mapping[int, float]:
        """By token id."""
        rows: Any = choice["logprobs"]
        return {_id(row["token"]): float(row["logprob"]) for row in rows["content"][0]["top_logprobs"]}


def _id(token: str) -> int:
    return int(token.removeprefix("token_id:"))
