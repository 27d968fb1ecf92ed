"""The small models that the trainings begin with."""

from __future__ import annotations

import json
from pathlib import Path

from tests import models


def make(folder: Path) -> Path:
    """`causal`, a Qwen3 in float32, and `sentence-cls`, a BERT whose sentence's vector is the normalized one of its CLS token."""
    # float32, so that what is published can be compared with the live model without the rounding of its weights between them.
    models.make_base(folder / "causal", dtype="float32", max_position_embeddings=512)
    make_sentence(folder / "sentence-cls")
    return folder


def make_sentence(folder: Path) -> None:
    """A small BERT with a WordPiece tokenizer as a folder of sentence-transformers, as that library would write it."""
    import torch
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece
    from transformers import BertConfig, BertModel, BertTokenizerFast

    torch.manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz."
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    fast = BertTokenizerFast(tokenizer_object=tokenizer)
    fast.model_max_length = 128
    fast.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(names), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=128,         initializer_range=0.3,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    write_modules(folder, config.hidden_size, "cls_token")


def write_modules(folder: Path, width: int, pooling: str) -> None:
    """Make a folder with an encoder one of sentence-transformers, as that library would write it: pooled by `pooling`, and normalized."""
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    (folder / "2_Normalize").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": width, **modes}))
