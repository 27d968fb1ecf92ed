"""Small models and adapters of every method, and hostile values for every field of their files, by one seed.

`make_sources` makes them; `cases_of` lists what can be changed in them: every key of every JSON file that a stage or a library reads,
with values of wrong kinds, absurd numbers and sizes that contradict the weights, and the headers of weight files.
"""

from __future__ import annotations

import copy
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.border.mutations import mutated_header

STAGES = ("merge", "pytorch", "reference", "onnx")
MODELS = ("llama", "qwen3_moe", "gpt2", "bert", "t5")
WRONG: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 7, 2**31, 2**63, 0.5, -1.5, 1e308, float("nan"), float("inf"), "", "four", "x" * 5000, "../../etc", "(",
    [], [0], [None], ["q_proj", 5], ["x" * 3000] * 30, {}, {"a": 1}, {"q_proj": "4"}, [[1, 2], [3]], "auto", "cuda", "float8", [-1],
    {"rope_type": "yarn"}, {"rope_type": "no such", "factor": "x"}, "\ud800", "gelu", "silu", [10**6],
)  # fmt: skip
_JSON = (
    "adapter_config.json", "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.json",
    "model.safetensors.index.json", "trainer_state.json", "modules.json",
)  # fmt: skip
_ADDED = {
    "config.json": (
        "rope_scaling", "quantization_config", "attn_implementation", "_attn_implementation", "torch_dtype", "auto_map", "id2label",
        "num_labels", "problem_type", "sliding_window", "layer_types", "use_cache", "text_config", "pruned_heads", "is_decoder",
    ),
    "generation_config.json": (
        "eos_token_id", "bad_words_ids", "suppress_tokens", "stop_strings", "num_beams", "cache_implementation", "temperature",
        "decoder_start_token_id", "forced_bos_token_id", "begin_suppress_tokens", "max_length", "no_repeat_ngram_size",
    ),
    "tokenizer_config.json": (
        "tokenizer_class", "chat_template", "added_tokens_decoder", "model_max_length", "auto_map", "extra_special_tokens",
    ),
    "special_tokens_map.json": ("pad_token", "eos_token", "additional_special_tokens", "unk_token"),
    "adapter_config.json": ("auto_mapping", "layer_replication", "corda_config", "loftq_config", "runtime_config", "rank_pattern"),
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A checkpoint that is sound, and the base that it is put on."""

    name: str
    folder: Path
    base: Path | None
    method: str
    """PEFT's name, or "full"."""


@dataclass(frozen=True)
class Case:
    """One file of a source that is other than it was, and the stage that meets it."""

    source: Source
    where: str
    """"checkpoint" or "base"."""
    file: str
    key: str
    value: Any
    """What the key says; for the header of a weight file the seed of its mutation."""
    stage: str

    def __str__(self) -> str:
        return f"{self.source.name}/{self.where}/{self.file} {self.key}={str(self.value)[:40]!a} in {self.stage}"

    def spoil(self, folder: Path) -> None:
        """Change the file below `folder`."""
        path = folder / self.file
        if path.suffix == ".safetensors":
            path.write_bytes(mutated_header(random.Random(self.value), path.read_bytes()))
            return
        content = json.loads(path.read_bytes())
        if isinstance(content, list):
            content[0][self.key] = self.value
        else:
            content[self.key] = self.value
        os.unlink(path)  # it may be a link to the source's
        path.write_text(json.dumps(content))


def make_sources(folder: Path, methods: tuple[str, ...] = ()) -> list[Source]:
    """Full fine-tunes of `MODELS`, a sentence-transformers model, and an adapter of each method on a small Llama: by default of every one
    that PEFT knows."""
    from tests.merge import zoo
    from tests.merge.adapters import test_methods

    found = [Source(kind, _full(folder / kind, kind), None, "full") for kind in MODELS]
    sentence = folder / "sentence"
    shutil.copytree(folder / "bert", sentence)
    modules = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    rows = [{"idx": number, "name": str(number), "path": path, "type": kind} for number, (path, kind) in enumerate(modules)]
    (sentence / "modules.json").write_text(json.dumps(rows))
    (sentence / "1_Pooling").mkdir()
    (sentence / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true, "word_embedding_dimension": 48}')
    found.append(Source("sentence", sentence, None, "full"))
    base = zoo.make("llama", folder / "base", "float32")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "llama" / name, base / name)
    for kind in methods or test_methods.kinds():
        adapter = test_methods.adapter_of(kind, base, folder / f"adapter-{kind}")
        (adapter / "trainer_state.json").write_text('{"global_step": 4}')
        found.append(Source(kind, adapter, base, kind))
    return found


def _full(folder: Path, kind: str) -> Path:
    """A model of a kind with its tokenizer, and a `generation_config.json`; the Llama's weights lie in two files with an index."""
    import torch
    import transformers

    from tests import models
    from tests.validate import zoo

    if kind == "bert":
        zoo.make_encoder_base(folder, "AutoModelForMaskedLM")
    elif kind == "t5":
        zoo.make_seq2seq_base(folder, "t5")
    else:
        sizes = {"vocab_size": 320, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, "initializer_range": 0.2}
        wide = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        more: dict[str, Any] = {
            "llama": {**wide, "max_position_embeddings": 128},
            "qwen3_moe": {**wide, "head_dim": 8, "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2},
            "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
        }[kind]
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(kind, **{**sizes, **more})
        size = "20KB" if kind == "llama" else "1GB"
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder, max_shard_size=size)
        models.make_tokenizer().save_pretrained(folder)
    if not (folder / "generation_config.json").is_file():
        (folder / "generation_config.json").write_text("{}")
    (folder / "special_tokens_map.json").write_text('{"pad_token": "<|pad|>"}')
    (folder / "trainer_state.json").write_text('{"global_step": 4}')
    return folder


def cases_of(sources: list[Source], rng: random.Random, count: int) -> Iterator[Case]:
    """`count` cases, the same for the same seed."""
    places = [(source, where, file) for source in sources for where, file in _files(source)]
    weights = [6.0 if file == "config.json" else 2.0 if file in ("adapter_config.json", "generation_config.json") else 1.0
               for _, _, file in places]  # fmt: skip
    for _ in range(count):
        source, where, file = rng.choices(places, weights)[0]
        folder = source.base if where == "base" and source.base else source.folder
        stage = rng.choice(STAGES[:3] if source.base is not None else STAGES)
        if file.endswith(".safetensors"):
            yield Case(source, where, file, "header", rng.randrange(10**6), stage)
            continue
        content = json.loads((folder / file).read_bytes())
        table = content[0] if isinstance(content, list) else content
        key = rng.choice([*table, *_ADDED.get(file, ())])
        yield Case(source, where, file, key, _hostile(rng, table.get(key)), stage)


def _files(source: Source) -> Iterator[tuple[str, str]]:
    """(where, file) of all that is read."""
    for where, folder in (("checkpoint", source.folder), ("base", source.base)):
        if folder is None or (where == "base" and source.method not in ("LORA", "LOHA", "OFT", "IA3")):
            continue
        weights = sorted(path.name for path in folder.glob("*.safetensors"))[:1]
        yield from ((where, name) for name in (*_JSON, *weights) if (folder / name).is_file())


_CONTRADICT: tuple[Callable[[Any], Any], ...] = (
    lambda size: size * 2, lambda size: size + 1, lambda size: size // 2, lambda size: -size, lambda size: size * 1000,
    lambda size: float(size), lambda size: str(size), lambda size: [size],
)  # fmt: skip


def _hostile(rng: random.Random, value: Any) -> Any:
    """Another value than `value`: for a size often one that contradicts the weights; inside of an object or a list often one entry."""
    if isinstance(value, dict) and value and rng.random() < 0.6:
        key = rng.choice(list(value))
        return {**value, key: _hostile(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.4:
        number = rng.randrange(len(value))
        return [*value[:number], _hostile(rng, value[number]), *value[number + 1 :]]
    if type(value) is int and rng.random() < 0.5:
        return rng.choice(_CONTRADICT)(value)
    return copy.deepcopy(rng.choice(WRONG))
