"""Reads folders of models and tokenizers; the same program for both releases of transformers.

    python -m tests.older.reader MODELS TOKENIZERS ANSWER

Each folder below MODELS holds case.json and logits.npy, each below TOKENIZERS a tokenizer. ANSWER, JSON: the version; of each model the
error in standard deviations of the logits and the names of weights that did not fit, or what loading it raised; of each tokenizer what it
reads.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HARD = (
    "", " ", "a", " leading", "two  spaces", "tab\tand\nnewline\r\n", "Größe 12 µm × 3 €, naïve café", "проверка 東京 こんにちは",
    "👩‍👩‍👧 emoji", "<|end|> inside <|pad|>", "[MASK] and [CLS]", "<s> x </s>", "ﬁ ① Å Å ½", "\u200bzero\u00a0width", "don't we've I'm",
    "def f(x):\n    return x+1\n", "1234567890", "<tool>x</tool>",
)  # fmt: skip
MESSAGES = [{"role": "user", "content": "hi"}]


def inputs(task: str) -> dict[str, Any]:
    """Inputs of one pass, longer than the first training of the scaled rotary embeddings."""
    import torch

    ids = torch.arange(3, 51)[None]
    return {"input_ids": ids, "decoder_input_ids": ids[:, :7]} if task == "seq2seq" else {"input_ids": ids}


def read_tokenizer(folder: Path) -> dict[str, Any]:
    """What the folder's tokenizer makes of hard texts and of a chat, and its special tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [list(tokenizer(text)["input_ids"]) for text in HARD]
    return {
        "inputs": sorted(tokenizer("a")), "ids": ids, "texts": [tokenizer.decode(one, skip_special_tokens=True) for one in ids],
        "special": sorted({str(token) for token in tokenizer.all_special_tokens}), "size": len(tokenizer),
        "chat": tokenizer.apply_chat_template(MESSAGES, tokenize=False), "side": tokenizer.padding_side,
    }  # fmt: skip


def read_model(folder: Path) -> dict[str, Any]:
    """How far the logits are from those in the folder, and which weights did not fit."""
    import numpy as np
    import torch
    import transformers

    case = json.loads((folder / "case.json").read_text())
    wanted, answer = np.load(folder / "logits.npy"), {}
    for way, options in (("error", {}), ("eager", {"attn_implementation": "eager"})):
        made = getattr(transformers, case["name"]).from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **options)
        with torch.no_grad():
            found = made[0].eval()(**inputs(case["task"])).logits.numpy()
        answer[way] = float(np.abs(found - wanted).max() / wanted.std())
        if answer["error"] < 1e-4:
            break
    lost = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return {**answer, "lost": {key: sorted(map(str, made[1][key])) for key in lost if made[1].get(key)}}


def _each(folder: Path, read: Any) -> dict[str, Any]:
    answers = {}
    for one in sorted(path for path in folder.iterdir() if path.is_dir()):
        try:
            answers[one.name] = read(one)
        except Exception as error:  # what it raises is the answer
            answers[one.name] = {"raised": f"{type(error).__name__}: {error}"}
    return answers


def main() -> None:
    """Write the answer."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    models, tokenizers, answer = map(Path, sys.argv[1:])
    read = {"models": _each(models, read_model), "tokenizers": _each(tokenizers, read_tokenizer)}
    answer.write_text(json.dumps({"version": transformers.__version__, **read}))


if __name__ == "__main__":
    main()
