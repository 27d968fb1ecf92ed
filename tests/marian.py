"""Tiny translators as Opus-MT's folders are: SentencePiece models and vocab.json instead of a tokenizer.json. Made here in seconds."""

from __future__ import annotations

import io
import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from handlers.child.progress import StageOutput

WORDS = {
    "the": "der", "old": "alte", "small": "kleine", "lighthouse": "Leuchtturm", "keeper": "Wärter", "boat": "Boot", "harbour": "Hafen",
    "sees": "sieht", "paints": "streicht", "repairs": "repariert", "and": "und", "never": "niemals", "always": "immer", "evening": "Abend",
    "captain": "Kapitän", "follows": "folgt", "cheese": "Käse", "bridge": "Brücke", "river": "Fluss", "quietly": "leise",
}  # fmt: skip
CODES = (">>deu<<", ">>gsw<<")
FILES = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")
TARGETS = ["q_proj", "v_proj", "out_proj", "fc1", "fc2"]


def sentences(count: int = 300) -> list[tuple[str, str]]:
    """Sources and their translations, word by word."""
    draw = random.Random(4)
    rows = [[draw.choice(list(WORDS)) for _ in range(draw.randint(3, 7))] for _ in range(count)]
    return [(" ".join(row).capitalize() + ".", " ".join(WORDS[word] for word in row) + ".") for row in rows]


def write_tokenizer(folder: Path, *, apart: bool = False, spaces: bool = False, **config: Any) -> Path:
    """The files of a Marian's tokenizer; with `apart` each language has a vocabulary of its own, with `spaces` all spaces count."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = []
    for name, texts in zip(("source", "target"), zip(*sentences(), strict=True), strict=True):
        (folder / f"{name}.spm").write_bytes(_trained(texts, spaces=spaces))
        pieces.append(_pieces(folder / f"{name}.spm"))
    own = dict.fromkeys(["</s>", "<unk>", *pieces[0], *([] if apart else pieces[1]), *CODES, "<pad>"])
    (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(own)}))
    if apart:
        other = dict.fromkeys(["</s>", "<unk>", *pieces[1], "<pad>"])
        (folder / "target_vocab.json").write_text(json.dumps({token: number for number, token in enumerate(other)}))
        config["separate_vocabs"] = True
    settings = {"source_lang": "eng", "target_lang": "deu", "model_max_length": 512, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _trained(texts: tuple[str, ...], *, spaces: bool) -> bytes:
    from sentencepiece import SentencePieceTrainer

    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=120, hard_vocab_limit=False, character_coverage=1.0,
        normalization_rule_name="nmt_nfkc", remove_extra_whitespaces=not spaces, num_threads=1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def _pieces(path: Path) -> list[str]:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))
    return [model.id_to_piece(number) for number in range(len(model)) if not model.is_control(number) and not model.is_unknown(number)]


@dataclass(frozen=True)
class Marian:
    """A translator and an adapter that makes it shout."""

    base: Path
    adapter: Path


def make(folder: Path) -> Marian:
    """A base that was taught a few sentences, and a LoRA adapter that was taught to leave out the first word; both briefly."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer, MarianConfig, MarianMTModel

    torch.manual_seed(0)
    base, adapter = folder / "base", folder / "adapter"
    write_tokenizer(base)
    tokenizer = AutoTokenizer.from_pretrained(write_model_type(base))
    sizes: dict[str, Any] = {"d_model": 48, "max_position_embeddings": 96, "init_std": 0.1, "vocab_size": len(tokenizer)}
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": 2, f"{side}_attention_heads": 4, f"{side}_ffn_dim": 96}
    pad = tokenizer.pad_token_id
    model = MarianMTModel(MarianConfig(**sizes, pad_token_id=pad, eos_token_id=0, decoder_start_token_id=pad, forced_eos_token_id=0))
    model.generation_config.update(num_beams=4, max_length=64, bad_words_ids=[[pad]])
    teach(model, tokenizer, steps=120, skip=0)
    model.save_pretrained(base)
    lora = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules=TARGETS, task_type="SEQ_2_SEQ_LM"))
    lora.peft_config["default"].base_model_name_or_path = str(base)
    teach(lora, tokenizer, steps=60, skip=1)
    lora.save_pretrained(adapter)
    return Marian(base, adapter)


def write_model_type(folder: Path) -> Path:
    """Say in an otherwise empty config.json that the folder is a Marian's, which is all that its tokenizer is told from."""
    (folder / "config.json").write_text('{"model_type": "marian"}')
    return folder


def teach(model: Any, tokenizer: Any, *, steps: int, skip: int) -> None:
    """Train for a moment on a few sentences, whose translations lose their first `skip` words."""
    import torch

    torch.set_num_threads(1)
    rows = [(source, " ".join(target.split()[skip:])) for source, target in sentences(24)]
    batch = tokenizer([source for source, _ in rows], text_target=[target for _, target in rows], return_tensors="pt", padding=True)
    batch["labels"] = batch["labels"].masked_fill(batch["labels"] == tokenizer.pad_token_id, -100)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=5e-3)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    model.eval()


def copy_tokenizer(source: Path, target: Path) -> Path:
    """Copy the tokenizer's files."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        shutil.copyfile(source / name, target / name)
    return target


@dataclass(frozen=True)
class Translated:
    """The merged translator as a transformers folder, its ONNX folder, and what the onnx stage said."""

    merged: Path
    onnx: Path
    output: StageOutput


def export(model: Marian, folder: Path) -> Translated:
    """Merge the adapter and export the result, by the stages' own code."""
    from handlers.merge import merge_adapter
    from handlers.onnx.export import stage
    from handlers.onnx.tracing.strategies import STRATEGIES
    from tests.onnx.conftest import make_context, silent

    merged = folder / "merged"
    merged.mkdir(parents=True)
    merge_adapter(model.adapter, model.base, merged)
    context = make_context(folder, "onnx", {"merge": merged}, model.adapter)
    context = context.model_copy(update={"base": str(model.base)})
    output = stage.export(context, silent(), [row for row in STRATEGIES if row.name == "legacy-eager"])
    return Translated(copy_tokenizer(model.base, merged), Path(context.staging), output)
