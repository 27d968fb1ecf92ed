"""SGLang: `/load_lora_adapter`, `/unload_lora_adapter`, `/v1/models`, `/generate` with token ids, `/v1/chat/completions` (SGLang's
`srt/managers/io_struct.py` and `srt/entrypoints/openai/protocol.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from daemon.contract.values import Json
from handlers.deliver.servers.adapters import AdapterServer
from handlers.deliver.servers.answers import Answer
from handlers.deliver.servers.asking import ASK, ask, unexpected
from handlers.deliver.servers.conversations import Reply
from handlers.deliver.servers.serving import TOP
from handlers.deliver.servers.sglang.declaration import KIND


class SGLang(AdapterServer):
    """An SGLang server."""

    kind = KIND
    load_path, unload_path = "/load_lora_adapter", "/unload_lora_adapter"
    how_to_allow = "start SGLang with --enable-lora"

    def ask_tokens(self, model: str, ids: Sequence[int]) -> Answer:
        """The most likely tokens."""
        return {int(row[1]): float(row[0]) for row in self._generated(model, ids)}

    def ask_plainly(self, model: str, ids: Sequence[int]) -> Reply:
        """By their texts, as SGLang has no ids in answers to conversations."""
        return Reply(_by_text((str(row[2]), float(row[0])) for row in self._generated(model, ids)))

    def _generated(self, model: str, ids: Sequence[int]) -> Any:
        body = {
            "input_ids": list(ids), "sampling_params": {"max_new_tokens": 1, "temperature": 0}, "return_logprob": True,
            "top_logprobs_num": TOP, "return_text_in_logprobs": True, "lora_path": model,
        }  # fmt: skip
        answer: Any = ask(self.calls, ASK, "/generate", body).json()
        try:
            rows = answer["meta_info"]["output_top_logprobs"][0]
            return [(float(row[0]), int(row[1]), row[2]) for row in rows]
        except (KeyError, IndexError, TypeError, ValueError):
            raise unexpected(ASK, self.url, "its answer has no log-probabilities by token id") from None

    def chat_request(self, model: str, messages: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """With the adapter as SGLang names it."""
        return {**super().chat_request(model, messages), "lora_path": model}

    def chat_answer(self, choice: Json) -> Mapping[str, float]:
        """By the text of a token."""
        rows: Any = choice["logprobs"]
        return _by_text((str(row["token"]), float(row["logprob"])) for row in rows["content"][0]["top_logprobs"])


def _by_text(rows: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Text → log-probability; of equal texts the likeliest."""
    said: dict[str, float] = {}
    for text, value in rows:
        said[text] = max(value, said.get(text, value))
    return said
