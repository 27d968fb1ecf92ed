"""Small trainings of many families, each with a tokenizer of its own class: `python -m tests.clients.trained FOLDER CASE…`.

In FOLDER/CASE it makes `base/`, `run/checkpoint-4` (a LoRA of all linear layers, as PEFT saves it, with the trainer's state), and
`live.json`: what the live model, base and adapter, answers to PROMPT and to QUESTION. Both learn a few texts, so that the most
likely token is far from the next one, and a rounding changes no answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

from tests import models
from tests.clients.cases import CASES, LABELS, MOST, NEW_TOKENS, PROMPT, QUESTION, VECTORS, Case
from tests.families import table
from tests.older import tokenizers
from tests.trainers.bases import write_modules

AUTO = {**table.AUTO, VECTORS: "AutoModel"}
CHAT = models.CHAT_TEMPLATE + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
ANSWER = " sorted(names):\n"
BEGUN, CONTINUED = "def fibonacci(n):", "\n    return n\n"
GREETING, ANSWERED = "How are you?", " Well.\n"
"""What an export's README asks, and what is learnt as the answer."""
CLOSE = 1.0
"""Difference of two logits that a client's rounding may turn round."""


def make(case: Case, place: Path) -> None:
    """Train base and adapter, and ask the live model."""
    import peft

    kind = case.kind
    tokenizer = tokenizers.makers()[case.tokenizer]()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    if kind == table.DECODER:
        tokenizer.chat_template = CHAT
    base, checkpoint = place / "base", place / "run" / "checkpoint-4"
    model = _model(case, tokenizer)
    steps = 200 if kind == table.PAIR else 60  # a copy is learnt later than a text is
    _learn(model, _batch(tokenizer, kind, models.TEXTS[2:]), steps, 3e-3)
    if model.can_generate():
        model.generation_config.max_new_tokens = NEW_TOKENS
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    if kind == VECTORS:
        write_modules(base, model.config.hidden_size, "mean_tokens")
    task: Any = {table.DECODER: "CAUSAL_LM", table.PAIR: "SEQ_2_SEQ_LM", table.CLASSES: "SEQ_CLS", VECTORS: "FEATURE_EXTRACTION"}[kind]
    live = peft.get_peft_model(
        getattr(transformers, AUTO[kind]).from_pretrained(base, dtype=torch.float32),
        # DistilBERT's "pre_classifier" is saved as a whole, since its name ends with "classifier".
        peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", exclude_modules=["pre_classifier"], task_type=task),
    )
    batch = _batch(tokenizer, kind, models.TEXTS)
    if kind == table.DECODER:  # a client may leave the first token out; a chat's template writes none
        chats = [_asked(tokenizer, tokenize=False) + ANSWER, _asked(tokenizer, GREETING, tokenize=False) + ANSWERED]
        batch = _batch(tokenizer, kind, [*models.TEXTS, BEGUN + CONTINUED], [models.TEXTS[0], *chats])
    _learn(live, batch, 6 * steps if kind == table.DECODER else steps, 1e-2)
    live.save_pretrained(str(checkpoint))
    tokenizer.save_pretrained(checkpoint)
    (checkpoint / "trainer_state.json").write_text(json.dumps({"global_step": 4}))
    (place / "live.json").write_text(json.dumps(answers(base, checkpoint, kind), ensure_ascii=False, indent=1))


def answers(base: Path, checkpoint: Path, kind: str) -> dict[str, Any]:
    """What the live model answers: token ids and texts, or the probabilities of the classes."""
    import peft

    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    plain = getattr(transformers, AUTO[kind]).from_pretrained(base, dtype=torch.float32)
    live = peft.PeftModel.from_pretrained(plain, str(checkpoint)).eval()
    inputs = tokenizer(PROMPT, return_tensors="pt", return_token_type_ids=None)
    with torch.inference_mode():
        if kind == table.CLASSES:
            (probabilities,) = live(**inputs).logits.softmax(-1).tolist()
            return {"classes": dict(zip(LABELS, probabilities, strict=True))}
        if kind == VECTORS:
            return {"vector": _vectors(live, inputs)[0].tolist()}
        made = {"plain": _written(live, tokenizer, inputs, kind)}
        if kind == table.DECODER:
            asked = _asked(tokenizer, return_tensors="pt", return_dict=True)
            bare = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)
            made["bare"] = _written(live, tokenizer, bare, kind)
            made["chat"] = _written(live, tokenizer, asked, kind)
    return made


def certain_start(place: Path, text: str, tokens: int, *, chat: bool) -> str:
    """What the live model writes behind a text, as far as no rounding changes it: up to the first token that another one comes close to."""
    import peft

    checkpoint = place / "run" / "checkpoint-4"
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    plain = transformers.AutoModelForCausalLM.from_pretrained(place / "base", dtype=torch.float32)
    live = peft.PeftModel.from_pretrained(plain, str(checkpoint)).eval()
    turns = [{"role": "user", "content": text}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"] if chat else tokenizer(text)["input_ids"]
    options = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    with torch.inference_mode():
        written = live.generate(input_ids=torch.tensor([ids]), max_new_tokens=tokens, **options)
    best = torch.cat(written.logits).topk(2).values
    close = (best[:, 0] - best[:, 1] < CLOSE).tolist()
    new = written.sequences[0, len(ids) :][: close.index(True) if True in close else None]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def _asked(tokenizer: Any, question: str = QUESTION, **options: Any) -> Any:
    return tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, **options)


def _model(case: Case, tokenizer: Any) -> Any:
    name, kind = case.model.partition("/")[0], case.kind
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
    settings = table.tiny_settings(case.model, config_class().to_dict())
    tokens = {f"{token}_token_id": getattr(tokenizer, f"{token}_token_id") for token in ("pad", "bos", "eos")}
    tokens["pad_token_id"] = tokens["pad_token_id"] if tokens["pad_token_id"] is not None else tokens["eos_token_id"]
    settings |= {key: value for key, value in tokens.items() if key in settings} | {"vocab_size": len(tokenizer)}
    settings |= {key: 0.05 for key in ("initializer_range", "init_std") if key in settings}
    if case.model.startswith("cohere"):
        settings["logit_scale"] = 1.0  # with its own, a sixteenth, so small a model has no margin between two tokens
    if kind == table.CLASSES:
        settings |= {"num_labels": len(LABELS), "id2label": dict(enumerate(LABELS)), "label2id": {name: n for n, name in enumerate(LABELS)}}
    if kind == table.PAIR:
        settings["decoder_start_token_id"] = tokens["pad_token_id"] if name == "t5" else tokens["eos_token_id"]
    torch.manual_seed(5)
    return getattr(transformers, AUTO[kind]).from_config(config_class(**settings)).float()


def _batch(tokenizer: Any, kind: str, texts: list[str], bare: list[str] | None = None) -> dict[str, Any]:
    """What is learnt. `bare`: texts of a decoder that are read without a first token."""
    end = tokenizer.eos_token if kind == table.DECODER else ""
    ids = tokenizer([text + end for text in texts])["input_ids"]
    ids += tokenizer([text + end for text in bare], add_special_tokens=False)["input_ids"] if bare else []
    rows = tokenizer.pad({"input_ids": ids}, return_tensors="pt", padding_side="right")
    batch = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    if kind == VECTORS:
        return batch
    if kind == table.CLASSES:
        return {**batch, "labels": torch.arange(len(texts)) % len(LABELS)}
    return {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def _learn(model: Any, batch: dict[str, Any], steps: int, rate: float) -> None:
    optimizer = torch.optim.AdamW([value for value in model.parameters() if value.requires_grad], lr=rate, weight_decay=0.0)
    model.train()
    for _ in range(steps):
        loss = model(**batch).loss if "labels" in batch else _likeness(_vectors(model, batch))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()


def _vectors(model: Any, inputs: Any) -> torch.Tensor:
    """Texts → their vectors, by the mean and normalized."""
    mask = inputs["attention_mask"][:, :, None]
    total = (model(**inputs).last_hidden_state * mask).sum(1)
    return torch.nn.functional.normalize(total / mask.sum(1), dim=-1)


def _likeness(vectors: torch.Tensor) -> torch.Tensor:
    return (vectors @ vectors.T).mean()


def _written(live: Any, tokenizer: Any, inputs: Any, kind: str) -> dict[str, Any]:
    ids = {key: value for key, value in inputs.items() if key != "token_type_ids"}
    length = ids["input_ids"].shape[1] if kind == table.DECODER else 1
    rows = {count: live.generate(**ids, max_new_tokens=count, do_sample=False)[0].tolist() for count in (NEW_TOKENS, MOST)}
    return {
        "prompt": rows[MOST][:length],
        **{str(count): {"ids": row[length:], "new": tokenizer.decode(row[length:], skip_special_tokens=True),
                        "whole": tokenizer.decode(row, skip_special_tokens=True)} for count, row in rows.items()},
    }  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for chosen in sys.argv[2:]:
        make(CASES[chosen], Path(sys.argv[1], chosen))
