"""What is exported for stock clients, and which program of which client reads which variant of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.families.table import CLASSES, DECODER, PAIR

PROMPT, QUESTION = "def add", "for name in"
NEW_TOKENS, MOST = 24, 48
"""Tokens that generation_config.json asks for, and those that the programs ask for that ask for some. What is learnt ends before both:
the pipelines of transformers 4 take 256 in place of the first."""
LABELS = ("low", "middle", "high")
VECTORS = "sentence"
"""Kind of model besides those of `tests.families.table`: an encoder as a folder of sentence-transformers."""


@dataclass(frozen=True)
class Case:
    """One family of models with a tokenizer of one class."""

    model: str
    """Its type in transformers, with the kind of model, as in `tests.families.table`."""
    tokenizer: str
    """Name in `tests.older.tokenizers.NAMES`."""
    more: tuple[str, ...] = ()
    """Variants besides those of its kind."""
    without: tuple[str, ...] = ()
    """Variants of its kind that it can't have, as its export says."""

    @property
    def kind(self) -> str:
        """Whether it is a decoder, an encoder-decoder, a classifier or an encoder that makes vectors."""
        return self.model.partition("/")[2]

    @property
    def variants(self) -> tuple[str, ...]:
        """What is exported."""
        return tuple(name for name in (*VARIANTS[self.kind], *self.more) if name not in self.without)


VARIANTS = {
    DECODER: ("pytorch", "pytorch-adapter", "onnx", "web", "openvino", "gguf-f16"),
    PAIR: ("pytorch", "onnx", "web", "openvino"),
    CLASSES: ("pytorch", "onnx", "web", "openvino"),
    VECTORS: ("pytorch", "onnx", "web", "openvino"),
}
_GENAI, _WEB, _GGUF = ("onnx-genai-fp32",), ("web-int8", "web-int4"), ("gguf-f16",)
CASES: Mapping[str, Case] = {
    "qwen3": Case("qwen3/decoder", "generic", _GENAI),
    "qwen2": Case("qwen2/decoder", "qwen2", _GENAI),
    "llama": Case("llama/decoder", "llama, first token", _GENAI),
    "llama3": Case("llama/decoder", "generic, first token", (*_GENAI, "web-int8")),
    "mistral": Case("mistral/decoder", "llama, no ends"),  # onnxruntime-genai writes a space before a text without a first token
    "gemma": Case("gemma/decoder", "gemma, first token", _GENAI),
    "phi": Case("phi/decoder", "gpt2, space before", (), _GGUF),  # neither onnxruntime-genai nor llama.cpp writes this space
    "gpt2": Case("gpt2/decoder", "gpt2", _WEB),
    "gpt-neox": Case("gpt_neox/decoder", "gpt-neox", (), _GGUF),
    "cohere": Case("cohere/decoder", "cohere", (), _GGUF),
    "t5": Case("t5/encoder-decoder", "t5"),
    "bart": Case("bart/encoder-decoder", "bart"),
    "bert": Case("bert/classifier", "bert"),
    "roberta": Case("roberta/classifier", "roberta"),
    "distilbert": Case("distilbert/classifier", "distilbert"),
    "xlm-roberta": Case("xlm-roberta/classifier", "xlm-roberta"),
    "deberta-v2": Case("deberta-v2/classifier", "deberta-v2"),
    "albert": Case("albert/classifier", "albert"),
    "sentence": Case("bert/sentence", "bert"),
}


@dataclass(frozen=True)
class Reading:
    """One program of a client on one variant, and which of the live model's answers it must give."""

    environment: str
    """See `tests.clients.conftest.Clients.python`."""
    program: str
    """In `programs.py`, or in `programs.mjs`."""
    variant: str
    asked: str = "plain"
    """What the live model was asked: PROMPT ("plain"), PROMPT without the first token ("bare"), or QUESTION ("chat")."""
    count: int = NEW_TOKENS
    part: str = "whole"
    """Whether the program's answer is the text with its prompt ("whole"), or what is new in it ("new")."""

    @property
    def text(self) -> str:
        """What the program is given."""
        return QUESTION if self.asked == "chat" else PROMPT

    def __str__(self) -> str:
        return f"{self.environment}-{self.program}-{self.variant}"

    def wanted(self, live: Mapping[str, Any]) -> Any:
        """Of the live model's answers the one that counts."""
        for answer in ("classes", "vector"):
            if answer in live:
                return live[answer]
        return live[self.asked][str(self.count)][self.part]


def _of_both(program: str, *rest: Any) -> tuple[Reading, Reading, Reading]:
    """The same program under the releases of transformers: ours, the oldest that is named, and one between them."""
    ours, older, between = (Reading(environment, program, "pytorch", *rest) for environment in ("ours", "older", "clients"))
    return ours, older, between


READINGS: Mapping[str, tuple[Reading, ...]] = {
    DECODER: (
        *_of_both("pipeline"),
        *_of_both("pipeline_chat", "chat", NEW_TOKENS, "new"),
        *_of_both("generate"),
        *_of_both("generate_batch"),
        Reading("ours", "peft", "pytorch-adapter"),
        Reading("older", "ort", "onnx"),
        Reading("older", "ort_pipeline", "onnx"),
        Reading("clients", "ov", "openvino"),
        Reading("clients", "ov_genai", "openvino", "chat", MOST, "new"),
        Reading("ours", "genai", "onnx-genai-fp32", "bare", MOST, "new"),
        Reading("ours", "genai_chat", "onnx-genai-fp32", "chat", MOST, "new"),
        Reading("gguf", "llama", "gguf-f16", "plain", NEW_TOKENS, "new"),
        Reading("gguf", "llama_chat", "gguf-f16", "chat", MOST, "new"),
        *(Reading("node", "js", variant, "plain", MOST) for variant in ("web", *_WEB)),
        Reading("node", "js_chat", "web", "chat", MOST, "new"),
    ),
    PAIR: (
        *_of_both("translate", "plain", NEW_TOKENS, "new"),
        Reading("older", "ort_translate", "onnx", "plain", NEW_TOKENS, "new"),
        Reading("clients", "ov_translate", "openvino", "plain", NEW_TOKENS, "new"),
        Reading("node", "js_translate", "web", "plain", MOST, "new"),
    ),
    CLASSES: (
        *_of_both("classify"),
        Reading("older", "ort_classify", "onnx"),
        Reading("clients", "ov_classify", "openvino"),
        Reading("node", "js_classify", "web"),
    ),
    VECTORS: (
        Reading("older", "embed", "pytorch"),
        Reading("clients", "embed", "pytorch"),
        Reading("older", "embed_onnx", "onnx"),
        Reading("clients", "embed_openvino", "openvino"),
        Reading("node", "js_embed", "web"),
    ),
}
"""Kind of model → who reads it."""
