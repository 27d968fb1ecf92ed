"""Small encoders of several families with the kinds of tokenizers that they have, and the scripts of their exports as users run them."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from handlers.folder import examples
from handlers.graphs.graphset import Graph, GraphSet
from handlers.models.tasks import BY_NAME
from tests.onnx.test_encoders import KINDS, make
from tests.validate import zoo

TEXTS = [
    "Ada Lovelace wrote it in London, long before the others.", "Why did the keeper climb the stairs every evening?",
    "Die Größe der Städte: München, Zürich und Köln.", "naïve café – «проверка» слова", "東京と大阪に行きました。",
    "It rains. The street is wet.",
    "He said that nobody knows who made the first one, or when.",
]  # fmt: skip
LENGTH = 48
"""Tokens that the models read; Roberta and XLMRoberta have two positions more."""
LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
OUTPUTS = {"feature-extraction": ("last_hidden_state",), "question-answering": ("start_logits", "end_logits")}
FAMILIES = {
    "Bert": "wordpiece", "DistilBert": "wordpiece", "Electra": "wordpiece", "Roberta": "bytes", "ModernBert": "bytes",
    "XLMRoberta": "pieces",
}  # fmt: skip


def tokenizer_of(kind: str, **settings: Any) -> Any:
    """WordPiece that lowers case and strips accents as BERT's does, byte-level BPE as RoBERTa's, or Unigram as XLM-R's."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    cls, sep, mask = ("[CLS]", "[SEP]", "[MASK]") if kind == "wordpiece" else ("<s>", "</s>", "<mask>")
    unknown, pad = ("[UNK]", "[PAD]") if kind == "wordpiece" else ("<unk>", "<pad>")
    special = [pad, cls, sep, mask, unknown]
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=320, special_tokens=special, show_progress=False)
    elif kind == "bytes":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=320, special_tokens=special, unk_token=unknown, show_progress=False)
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    second = "$B:1 [SEP]:1" if kind == "wordpiece" else "</s> $B </s>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} {second}", special_tokens=[(cls, 1), (sep, 2)]
    )
    names: dict[str, Any] = {"pad_token": pad, "cls_token": cls, "sep_token": sep, "mask_token": mask, "unk_token": unknown}
    if kind == "wordpiece":
        names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=LENGTH, **{**names, **settings})


def source(folder: Path, family: str, task: str, *, tokens: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A transformers folder: a model with wide random weights, so that its answers vary, and its tokenizer."""
    kind = FAMILIES[family]
    tokenizer = tokenizer_of(kind, **(tokens or {}))
    KINDS.setdefault("XLMRoberta", KINDS["Roberta"])
    if task == "token-classification":
        settings = {"id2label": dict(enumerate(LABELS)), "label2id": {name: number for number, name in enumerate(LABELS)}, **settings}
    positions = LENGTH + (1 if "Roberta" in family else 0)
    make(
        folder, family, task, vocab_size=max(len(tokenizer), 320), max_position_embeddings=positions, pad_token_id=0, initializer_range=0.4,
        **settings,
    )  # fmt: skip
    if task == "token-classification":
        _favour_labels(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _favour_labels(folder: Path) -> None:
    """Lower the answer "O" of a classifier of tokens, so that random weights find something in every text."""
    from safetensors.numpy import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.bias"] = tensors["classifier.bias"] - np.array([20.0, *[0.0] * (len(LABELS) - 1)], np.float32)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def graph_of(model: Path, folder: Path, task: str) -> Path:
    """Its ONNX folder with example.py, the graph traced by torch's older exporter, which takes about a second."""
    zoo.export_encoder(model, folder, BY_NAME[task].auto, OUTPUTS.get(task, ("logits",)))
    GraphSet(task=task, family="encoder", dtype="float32", opset=17, graphs=(Graph(role="model", file="model.onnx"),)).write(folder)
    examples.place(task, folder)
    return folder


def sentence_graph_of(model: Path, folder: Path) -> Path:
    """The same for a folder of sentence-transformers: the graph gives sentence_embedding too."""
    import torch

    from handlers.families.sentence import SentenceModules
    from handlers.graphs.rewriting import SENTENCE_OUTPUT as OUTPUT
    from handlers.models import sentence

    graph_of(model, folder, "feature-extraction")
    live, _ = loaded(model, "feature-extraction")
    chain = sentence.read(model)
    assert chain is not None
    modules = SentenceModules(model, chain)

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.live, self.modules_after = live, modules

        def forward(self, ids: Any, mask: Any, types: Any) -> Any:
            hidden = self.live(ids, attention_mask=mask, token_type_ids=types).last_hidden_state
            return hidden, self.modules_after(hidden, mask)

    names, outputs = ["input_ids", "attention_mask", "token_type_ids"], ["last_hidden_state", OUTPUT]
    ids = torch.randint(5, 300, (2, 9))
    axes = {name: {0: "batch", 1: "sequence"} for name in (*names, outputs[0])} | {OUTPUT: {0: "batch"}}
    zoo._trace(Whole(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), folder / "model.onnx", names, outputs, axes)
    sentence.place(model, folder)
    return folder


def run(folder: Path, *words: str) -> Any:
    """What example.py says on a command line of its own, without torch, transformers and our packages."""
    done = attempt(folder, *words)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def attempt(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same, however it ends."""
    blocked = "import runpy, sys\nfor name in ('torch', 'transformers', 'peft', 'handlers', 'daemon'):\n    sys.modules[name] = None\n"
    program = blocked + "sys.argv = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-I", "-c", program, str(folder / "example.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


OPTIONS: dict[str, Any] = {
    "context": None, "pair": None, "query": None, "prompt": None, "prompt_text": None, "no_answer": False, "top": 5, "length": None,
    "stride": None, "npz": None,
}  # fmt: skip


class Script:
    """A folder's example.py inside of this process, for many texts."""

    def __init__(self, folder: Path) -> None:
        self.parts: dict[str, Any] = runpy.run_path(str(folder / examples.NAME))
        self.model = self.parts["Model"](None)

    def __call__(self, function: str, text: Any, **options: Any) -> Any:
        """What one of its functions makes of a text (of a list of texts: `vectors`)."""
        self.model.seen.clear()
        return self.parts[function](self.model, text, SimpleNamespace(**{**OPTIONS, **options}))

    def outputs(self) -> list[dict[str, np.ndarray]]:
        """Inputs and outputs of the graph's runs for the last text."""
        return list(self.model.seen)


def loaded(folder: Path, task: str) -> tuple[Any, Any]:
    """The model by transformers in fp32, and its tokenizer."""
    import torch
    import transformers

    model = getattr(transformers, BY_NAME[task].auto).from_pretrained(folder, dtype=torch.float32).eval()
    return model, transformers.AutoTokenizer.from_pretrained(folder)
