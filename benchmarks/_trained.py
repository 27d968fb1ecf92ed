"""Models that `thresholds.py` trains: bases of several architectures and sizes that have learnt Python, with LoRA runs on other Python."""

from __future__ import annotations

import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import _corpus as corpus
from handlers.demo import make_base

SIZES = {"1M": (128, 3), "6M": (256, 6), "12M": (320, 8), "30M": (512, 9), "100M": (768, 12)}
"""Name → hidden size and layers; the names are those of the decoders with gates. An encoder-decoder has half as many on each side."""
VOCABULARIES = {"12M": 8192, "30M": 8192, "100M": 24576}
"""Tokens, where they are not the demo's; classifiers have 320."""
SMALL, LARGE = ("1M", "6M"), ("30M", "100M")
ENCODERS = ("bert", "modernbert")
KINDS = ("qwen3", "llama", "gpt2", *ENCODERS, "t5")
BATCH, LENGTH = 8, 64
BATCHES = {"100M": 4}
LORA_STEPS = 30
PROMPTS = {"bert": 16, "modernbert": 16, "t5": 12}
"""Texts compared, where it is not 6: a classifier gives one answer for a text, and an encoder-decoder is compared in what it writes."""
CHARACTERS = 140

Loss = Callable[[Any], Any]
"""Model → loss of a random batch."""


@dataclass(frozen=True)
class Trained:
    """A base in bf16, two runs of an adapter on it, and the texts that none of them has seen."""

    folder: Path
    kind: str
    size: str
    parameters: int
    loss: float
    """Of the base's last steps, in nats."""
    prompts: tuple[str, ...]
    calibration: tuple[str, ...]
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}"

    @property
    def base(self) -> Path:
        return self.folder / "base"

    def checkpoint(self, source: str) -> Path:
        """That of "sound", the run's last step; "stale", a step at a third of it; "other", the last step of another run."""
        run, step = {"sound": ("run", LORA_STEPS), "stale": ("run", LORA_STEPS // 3), "other": ("other", LORA_STEPS)}[source]
        return self.folder / run / f"checkpoint-{step}"

    def save(self) -> None:
        """Write it beside what it names; `kept` gives it back."""
        told = {**asdict(self), "folder": None}
        (self.folder / KEPT).write_text(json.dumps(told))


KEPT = "trained.json"


def kept(folder: Path) -> Trained | None:
    """What `train` made in a folder and `save` wrote; None where it did not come to its end."""
    if not (folder / KEPT).is_file():
        return None
    told = json.loads((folder / KEPT).read_text())
    return Trained(**{**told, "folder": folder, "prompts": tuple(told["prompts"]), "calibration": tuple(told["calibration"])})


def train(folder: Path, kind: str, size: str, *, seconds: float = math.inf, steps: int = 10**9, seed: int = 0) -> Trained:
    """Make all of it in `folder`; the base learns for `seconds` of CPU time, or for `steps`."""
    import torch
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(seed)
    texts = corpus.base_texts()
    tokenizer, batch = _tokenizer(kind, size, texts), BATCHES.get(size, BATCH)
    model = _untrained(kind, size)
    rate = {"1M": 2e-3, "6M": 1e-3, "12M": 1e-3}.get(size, 5e-4) / (4 if kind == "bert" else 1)  # norms after the layers: not faster
    loss = _fit(model, _loss_of(kind, tokenizer, texts, 0, batch), rate, seconds=seconds, steps=steps)
    model.to(torch.bfloat16).save_pretrained(folder / "base")
    tokenizer.save_pretrained(folder / "base")
    tuning = corpus.finetune_texts()
    many = PROMPTS.get(kind, 6)
    held, rest = tuning[: 2 * many], tuning[2 * many :]
    for run, part in (("run", rest[::2]), ("other", rest[1::2])):
        torch.manual_seed(len(run) + seed)
        lora = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type=_task(kind))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tuned = get_peft_model(_loaded(kind, folder / "base"), lora)

        def save(step: int, tuned: Any = tuned, run: str = run) -> None:
            if step in (LORA_STEPS // 3, LORA_STEPS):
                tuned.save_pretrained(folder / run / f"checkpoint-{step}")

        _fit(tuned, _loss_of(kind, tokenizer, part, 1, batch), 2e-3, steps=LORA_STEPS, after=save)
    short = [text[:CHARACTERS] for text in held]
    return Trained(folder, kind, size, model.num_parameters(), loss, tuple(short[:many]), tuple(short[many:]), seed)


def _tokenizer(kind: str, size: str, texts: list[str]) -> Any:
    if kind in ENCODERS:
        from tests.validate.zoo import encoder_tokenizer

        return encoder_tokenizer()
    tokens = VOCABULARIES.get(size, make_base.VOCABULARY)
    tokenizer = make_base.make_tokenizer(texts if size in VOCABULARIES else texts[:2000], tokens)
    if kind == "t5":
        from tokenizers import processors

        end = processors.TemplateProcessing(single=f"$A {make_base.END}", special_tokens=[(make_base.END, 1)])
        tokenizer.backend_tokenizer.post_processor = end
    return tokenizer


def _untrained(kind: str, size: str) -> Any:
    import transformers

    hidden, layers = SIZES[size]
    head = 64 if hidden >= 512 else 32
    heads = hidden // head
    tokens: dict[str, Any] = {"vocab_size": VOCABULARIES.get(size, make_base.VOCABULARY), "pad_token_id": 0, "eos_token_id": 1}
    if kind == "gpt2":
        sizes: dict[str, Any] = {"n_embd": hidden, "n_layer": layers, "n_head": heads, "n_positions": 512, "bos_token_id": 1}
    elif kind in ENCODERS:
        sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
        tokens = {"vocab_size": 320, "pad_token_id": 0, "num_labels": 4, "max_position_embeddings": 512}
        if kind == "modernbert":
            sizes["intermediate_size"] = 3 * hidden
            tokens |= {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}
    elif kind == "t5":
        sizes = {
            "d_model": hidden, "d_kv": head, "d_ff": 2 * hidden, "num_layers": max(2, layers // 2), "num_heads": heads,
            "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0, "decoder_start_token_id": 0,
        }  # fmt: skip
    else:
        sizes = {
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads // 2,
            "intermediate_size": 3 * hidden, "head_dim": head, "max_position_embeddings": 512, "tie_word_embeddings": kind == "qwen3",
            "bos_token_id": None,
        }  # fmt: skip
    return _class(kind).from_config(transformers.AutoConfig.for_model(kind, **sizes, **tokens))


def _class(kind: str) -> Any:
    import transformers

    if kind in ENCODERS:
        return transformers.AutoModelForSequenceClassification
    return transformers.AutoModelForSeq2SeqLM if kind == "t5" else transformers.AutoModelForCausalLM


def _task(kind: str) -> str:
    """PEFT's name of it."""
    return "SEQ_CLS" if kind in ENCODERS else "SEQ_2_SEQ_LM" if kind == "t5" else "CAUSAL_LM"


def _loaded(kind: str, folder: Path) -> Any:
    import torch

    return _class(kind).from_pretrained(folder, dtype=torch.float32)


def _loss_of(kind: str, tokenizer: Any, texts: list[str], rule: int, batch: int) -> Loss:
    """Of random batches of `texts`: the next token, of an encoder-decoder the second half, of a classifier the label that `rule` gives."""
    import torch

    if kind not in ENCODERS:
        stream = make_base.token_stream(tokenizer, texts)

        def predicting(model: Any) -> Any:
            places = torch.randint(0, len(stream) - LENGTH, (batch,)).tolist()
            rows = torch.stack([stream[place : place + LENGTH] for place in places])
            if kind != "t5":
                return model(input_ids=rows, labels=rows).loss
            sources = torch.nn.functional.pad(rows[:, : LENGTH // 2], (0, 1), value=tokenizer.eos_token_id)
            return model(input_ids=sources, labels=rows[:, LENGTH // 2 :].contiguous()).loss

        return predicting
    chosen = random.Random(rule)

    def classifying(model: Any) -> Any:
        some = [text[:CHARACTERS] for text in chosen.sample(texts, 2 * batch)]
        rows = tokenizer(some, padding=True, return_tensors="pt")
        return model(**rows, labels=torch.tensor([label(text, rule) for text in some])).loss

    return classifying


def label(text: str, rule: int) -> int:
    """What the base's classifier tells apart, methods and private names (0), and the fine-tuned one, methods and coroutines (1)."""
    return 2 * ("(self" in text[:48]) + (text.startswith("def _") if rule == 0 else text.startswith("async"))


def _fit(
    model: Any, loss_of: Loss, rate: float, *, seconds: float = math.inf, steps: int = 10**9, after: Callable[[int], None] | None = None
) -> float:  # fmt: skip
    """Train the parameters that are not frozen by AdamW, the rate falling to zero; the loss, smoothed."""
    import torch

    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    model.train()
    began, smooth, step = time.process_time(), 0.0, 0
    while (share := max(step / steps, (time.process_time() - began) / seconds)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20, (1 - share) / 0.5)
        loss = loss_of(model)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        smooth = loss.item() if step == 1 else 0.95 * smooth + 0.05 * loss.item()
        if after is not None:
            after(step)
    model.eval()
    return smooth


def rows(texts: Iterable[str]) -> list[dict[str, str]]:
    """Texts as rows of a .jsonl file."""
    return [{"text": text} for text in texts]
