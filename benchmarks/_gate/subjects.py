"""What artifacts are made of: small models of many kinds, each with an adapter, its merge by the project, and texts that nothing has seen.

Some bases are trained on Python's standard library for a moment, so that their answers mean something; others are the odd ones of the
tests, with wide random weights, whose answers any rounding moves. The adapter learns asyncio's source, weakly, as usual or strongly.
"""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from benchmarks import _corpus as corpus
from tests.validate import odd_models, zoo
from tests.validate.odd_models import Odd

BATCH, LENGTH = 12, 64
CHARACTERS = 160
"""Of a text that is judged on."""
RATES = {"weak": (1e-3, 6), "usual": (4e-3, 16), "strong": (2e-2, 24)}
"""How far an adapter goes from its base: learning rate and steps."""
Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    name: str
    odd: Odd | None = None
    """A decoder."""
    base_steps: int = 0
    """For which the base learns."""
    auto: str = "AutoModelForCausalLM"
    family: str = "causal"
    encoder: str = "bert"
    """Model type where it is no decoder."""
    task: str = ""
    """PEFT's name, where it is no decoder."""
    load: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] = field(default_factory=dict)

    @property
    def about(self) -> str:
        """What people call all of its kind."""
        others = {"classes": "classifiers", "vectors": "encoders without a head", "seq2seq": "encoder-decoders"}
        return others.get(self.family, "trained decoders" if self.base_steps else "odd decoders with random weights")


TRAINED = {
    "qwen3": Odd("qwen3", "qwen3", {"initializer_range": 0.05, "tie_word_embeddings": True}),
    "llama": Odd("llama", settings={"initializer_range": 0.05}),
    "qwen2": Odd("qwen2", "qwen2", {"initializer_range": 0.05}),
    "mistral": Odd("mistral", "mistral", {"sliding_window": 32, "initializer_range": 0.05}),
    "gemma3": Odd("gemma3", "gemma3_text", {"sliding_window": 32, "num_hidden_layers": 3, "initializer_range": 0.05, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"], "query_pre_attn_scalar": 16}),
    "gpt2": Odd("gpt2", "gpt2", {**odd_models._GPT2, "initializer_range": 0.05},
        lora={"target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True}),
    "phi": Odd("phi", "phi", {"partial_rotary_factor": 0.5, "head_dim": None, "initializer_range": 0.05},
        lora={"target_modules": ["q_proj", "v_proj", "fc1", "fc2"]}),
    "olmo2": Odd("olmo2", "olmo2", {"initializer_range": 0.05}),
    "qwen3 of four layers": Odd("qwen3 of four layers", "qwen3", {"initializer_range": 0.05, "num_hidden_layers": 4}),
    "one layer, trained": Odd("one layer, trained", settings={"num_hidden_layers": 1, "initializer_range": 0.05}),
    "tiny vocabulary, trained": Odd("tiny vocabulary, trained", settings={"vocab_size": 38, "initializer_range": 0.05},
        tokenizer=odd_models.character_tokenizer),
    "long positions, trained": Odd("long positions, trained", settings={"max_position_embeddings": 131_072, "initializer_range": 0.05}),
    "experts, trained": Odd("experts, trained", "qwen3_moe", {**odd_models._EXPERTS, "mlp_only_layers": [], "initializer_range": 0.05},
        lora=odd_models._ATTENTION),
    "peaked, trained": Odd("peaked, trained", change=odd_models._scaled_head(8.0), settings={"initializer_range": 0.05}),
    "flat, trained": Odd("flat, trained", change=odd_models._scaled_head(0.1), settings={"initializer_range": 0.05}),
    "bf16 trained, trained base": Odd("bf16 trained, trained base", dtype="bfloat16", training="bfloat16",
        settings={"initializer_range": 0.05}),
}  # fmt: skip
"""Decoders whose base learns Python first."""
LEFT_OUT = ("huge vocabulary",)
"""Odd models whose outputs are too wide for hundreds of texts."""


def _classes(model: Any, batch: Any) -> Any:
    return model(**batch, labels=batch["input_ids"].sum(dim=1) % model.config.num_labels).loss


def _vectors(model: Any, batch: Any) -> Any:
    import torch

    vectors = torch.nn.functional.normalize(model(**batch).last_hidden_state.mean(dim=1), dim=1)
    return (vectors @ vectors.T).mean()


LINEAR = {"distilbert": ["q_lin", "v_lin", "lin2"], "modernbert": ["Wqkv", "Wo"], "bert": ["query", "value", "dense"],
          "roberta": ["query", "value", "dense"], "t5": ["q", "v", "o"], "marian": ["q_proj", "v_proj", "out_proj", "fc2"]}  # fmt: skip
OTHERS = (
    Kind("bert classes", None, 0, "AutoModelForSequenceClassification", "classes", "bert", "SEQ_CLS", {"num_labels": 3}),
    Kind("modernbert classes", None, 0, "AutoModelForSequenceClassification", "classes", "modernbert", "SEQ_CLS", {"num_labels": 4}),
    Kind("distilbert classes", None, 0, "AutoModelForSequenceClassification", "classes", "distilbert", "SEQ_CLS", {"num_labels": 2}),
    Kind("roberta vectors", None, 0, "AutoModel", "vectors", "roberta", "FEATURE_EXTRACTION"),
    Kind("t5", None, 0, "AutoModelForSeq2SeqLM", "seq2seq", "t5", "SEQ_2_SEQ_LM"),
    Kind("marian", None, 0, "AutoModelForSeq2SeqLM", "seq2seq", "marian", "SEQ_2_SEQ_LM"),
)  # fmt: skip


def kinds() -> list[Kind]:
    """Give all kinds, trained decoders first."""
    trained = [Kind(name, odd, 100) for name, odd in TRAINED.items()]
    return [*trained, *OTHERS, *(Kind(f"{odd.name}, random", odd) for odd in odd_models.ODD if odd.name not in LEFT_OUT)]


@dataclass(frozen=True)
class Subject:
    """One model in its folder: base, checkpoint, another run's, and the sound merge."""

    folder: Path
    kind: Kind
    seed: int
    strength: str
    name: str

    @property
    def base(self) -> Path:
        return self.folder / "base"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "run" / "checkpoint-1"

    @property
    def merged(self) -> Path:
        return self.folder / "merged"

    @cached_property
    def tensors(self) -> dict[str, Any]:
        """The merged weights by name."""
        return tensors_of(self.merged)

    @cached_property
    def base_tensors(self) -> dict[str, Any]:
        """The base's, by the merged model's names; empty where these differ, as where the adapter brings a head."""
        read = tensors_of(self.base)
        return read if read.keys() == self.tensors.keys() else {}

    @cached_property
    def other_tensors(self) -> dict[str, Any]:
        """The weights of another run's merge."""
        return tensors_of(self.folder / "other-merged")

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json of the merge."""
        read: dict[str, Any] = json.loads((self.merged / "config.json").read_text())
        return read

    @cached_property
    def texts(self) -> Iterator[str]:
        """Texts that nothing was trained on, without end and without the same text twice."""
        return held_out(self.seed)


def tensors_of(folder: Path) -> dict[str, Any]:
    """Give the tensors of a folder's one file."""
    from safetensors.torch import load_file

    read: dict[str, Any] = load_file(folder / "model.safetensors")
    return read


@cache
def _pieces() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Give texts for bases, for adapters, and held out: a fifth of each source."""
    bases, tuned = corpus.base_texts(), corpus.finetune_texts()
    held = [*tuned[: len(tuned) // 3], *bases[: len(bases) // 5]]
    cut = [text[start : start + CHARACTERS] for text in held for start in range(0, len(text) - CHARACTERS + 1, CHARACTERS)]
    return tuple(bases[len(bases) // 5 :]), tuple(tuned[len(tuned) // 3 :]), tuple(dict.fromkeys(cut))


def held_out(seed: int) -> Iterator[str]:
    """Give the held-out texts in an order that the seed decides."""
    texts = list(_pieces()[2])
    random.Random(seed).shuffle(texts)
    return iter(texts)


def make(kind: Kind, seed: int, folder: Path, name: str) -> Subject:
    """Make a subject in a folder."""
    import torch

    subject = Subject(folder, kind, seed, list(RATES)[(seed // 3 + seed) % len(RATES)], name)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _decoder(subject) if kind.odd is not None else _other(subject)
    return subject


def _decoder(subject: Subject) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    odd, kind, base = subject.kind.odd, subject.kind, subject.base
    assert odd is not None
    options = {key: value for key, value in {**odd_models.PLAIN, **odd.settings}.items() if value is not None or key == "bos_token_id"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(odd.kind, **options))
    model.config.save_pretrained(base)  # some architectures' tokenizers split texts by a rule of their own, which the file then has
    odd.tokenizer().save_pretrained(base)
    tokenizer = AutoTokenizer.from_pretrained(base)
    if kind.base_steps:
        _fit(model, tokenizer, _pieces()[0], 4e-3, kind.base_steps, subject.seed)
    odd.change(model)
    dtype = odd.dtype if odd.dtype != "float32" or subject.seed % 2 else "bfloat16"
    model.to(getattr(torch, dtype)).save_pretrained(base)
    tokenizer.save_pretrained(base)
    settings = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM", "target_modules": "all-linear", **odd.lora}
    for run, merged in (("run", "merged"), ("other-run", "other-merged")):
        _adapter(subject, tokenizer, settings, getattr(torch, odd.training), run)
        _merge(subject, run, merged)


def _adapter(subject: Subject, tokenizer: Any, settings: dict[str, Any], dtype: Any, run: str) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(subject.seed + 1000 * (run != "run"))
    rate, steps = RATES[subject.strength]
    plain = AutoModelForCausalLM.from_pretrained(subject.base, dtype=dtype)
    model = get_peft_model(plain, LoraConfig(**settings), autocast_adapter_dtype=dtype == torch.float32)
    texts = _pieces()[1]
    part = texts[: len(texts) // 2] if run == "run" else texts[len(texts) // 2 :]
    _fit(model, tokenizer, part, rate, 0 if subject.kind.odd and subject.kind.odd.steps == 0 else steps, subject.seed)
    model.save_pretrained(subject.folder / run / "checkpoint-1")


def _merge(subject: Subject, run: str, merged: str) -> None:
    from handlers.merge.api import merge_adapter
    from handlers.models.files import copy_tokenizer

    target, checkpoint = subject.folder / merged, subject.folder / run / "checkpoint-1"
    target.mkdir()
    merge_adapter(checkpoint, subject.base, target)
    copy_tokenizer(checkpoint, subject.base, target)


def _fit(model: Any, tokenizer: Any, texts: tuple[str, ...], rate: float, steps: int, seed: int) -> None:
    """Let the parameters that are not frozen learn the next token of `texts`."""
    import torch

    ids = [token for row in tokenizer(list(texts[:1500]))["input_ids"] for token in row]
    stream, chosen = torch.tensor(ids), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=rate, weight_decay=0.0)
    model.train()
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 10, 2 * (1 - step / steps))
        places = torch.randint(0, len(stream) - LENGTH, (BATCH,), generator=chosen).tolist()
        rows = torch.stack([stream[place : place + LENGTH] for place in places])
        model(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    model.eval()


def _other(subject: Subject) -> None:
    """Make an encoder, with or without a head, or an encoder-decoder."""
    kind = subject.kind
    if kind.family == "seq2seq":
        zoo.make_seq2seq_base(subject.base, kind.encoder)
        loss: Loss = partial(zoo.copying, shift=1)
    else:
        zoo.make_encoder_base(subject.base, kind.auto, kind.encoder, subject.seed, **kind.load)
        loss = _classes if kind.family == "classes" else _vectors
    rate, steps = RATES[subject.strength]
    for run, merged in (("run", "merged"), ("other-run", "other-merged")):
        count = steps if run == "run" else steps // 2
        lora = {"target_modules": LINEAR[kind.encoder], "task_type": kind.task, **kind.lora}
        zoo.train_adapter(
            subject.base, subject.folder / run / "checkpoint-1", kind.auto, loss, steps=count, rate=rate, seed=subject.seed, load=kind.load,
            **lora,
        )  # fmt: skip
        _merge(subject, run, merged)
