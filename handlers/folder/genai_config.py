"""genai_config.json: what onnxruntime-genai reads about a model before it runs it.

Called by `genai` after the builder has written it. The builder takes few of the model's own settings of generation, names a provider
where it built for one, and invents a first token where the model has none.
"""

from __future__ import annotations

import json
from pathlib import Path

from daemon.contract.values import Json
from handlers.models.files import read_json

FILE = "genai_config.json"
OPERATION = "write onnxruntime-genai's configuration"
SEARCH = (
    "do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "num_beams",
    "num_return_sequences", "diversity_penalty", "min_length",
)  # fmt: skip
"""Settings of generation_config.json that onnxruntime-genai knows under the same name."""


def read(folder: Path) -> Json:
    """The configuration of a folder; Permanent where there is none."""
    config: Json = read_json(folder / FILE, OPERATION)
    return config


def finish(folder: Path) -> Json:
    """Complete what the builder wrote in `folder` from the model's own files beside it; gives the result.

    No provider is named, so that the folder runs wherever it is loaded; `Config.append_provider` chooses another than the CPU.
    """
    config, generation = read(folder), _json(folder / "generation_config.json")
    config["model"]["decoder"]["session_options"]["provider_options"] = []
    for name in SEARCH:
        if isinstance(value := generation.get(name), int | float):
            config["search"][name] = value
    if not _has_first_token(folder, generation):
        config["model"].pop("bos_token_id", None)
    (folder / FILE).write_text(json.dumps(config, indent=4) + "\n", encoding="utf-8")
    return config


def end_tokens(config: Json) -> tuple[int, ...]:
    """Tokens that end a text."""
    ends = config["model"]["eos_token_id"]
    return tuple(ends) if isinstance(ends, list) else (ends,)


def _has_first_token(folder: Path, generation: Json) -> bool:
    tokens = (generation.get("bos_token_id"), _json(folder / "config.json").get("bos_token_id"))
    return any(token is not None for token in tokens) or bool(_json(folder / "tokenizer_config.json").get("bos_token"))


def _json(path: Path) -> Json:
    value: Json = read_json(path, OPERATION) if path.is_file() else {}
    return value
