"""Sound tokenizers of every kind pass as the stages publish them, and another one of the same kind does not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daemon.contract.values import Frozen
from handlers.folder import companions
from handlers.pytorch import stage as pytorch
from handlers.validate.engines.graphs.exported_folder import ExportedFolder
from handlers.validate.engines.registry import EngineSpec
from handlers.validate.files import expected
from handlers.validate.files.compare import Compared, compare
from handlers.validate.files.tokenizer import puts_first
from handlers.validate.workers import transcripts
from handlers.validate.workers.protocol import ReadFiles, Transcript
from tests import marian, models
from tests.older import tokenizers
from tests.onnx.conftest import make_context, silent
from tests.sampling import some

TEXTS = [*models.TEXTS * 4, *["Größe naïve café 東京 안녕 мир 123 456"] * 4]


class Told:
    """A worker that holds an engine and is asked of its files alone."""

    def __init__(self, name: str, engine: Any, folder: Path) -> None:
        self.name, self.folder, self._engine = name, str(folder), engine

    def ask(self, request: Any) -> Any:
        """The answer, as it would cross the pipe."""
        files = isinstance(request, ReadFiles)
        answer: Frozen = (
            transcripts.read_files(self._engine, request, Path(self.folder)) if files else transcripts.transcribe(self._engine, request)
        )
        return type(answer).model_validate(json.loads(json.dumps(answer.model_dump())))


def _trained(model: Any, trainer: Any, **parts: Any) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return json.loads(tokenizer.to_str())["model"]


def _bytes_level(cls: str, *special: str, template: str | None = None) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import transformers
        from tokenizers import models as kinds
        from tokenizers import pre_tokenizers, trainers

        trainer = trainers.BpeTrainer(vocab_size=310, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
        made = _trained(kinds.BPE(), trainer, pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=False))
        tokenizer = getattr(transformers, cls)(vocab=made["vocab"], merges=[tuple(pair) for pair in made["merges"]])
        if template:
            tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
            tokenizer.chat_template = template
        tokenizer.save_pretrained(folder)

    return make


def _pieces(cls: str, *special: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import transformers
        from tokenizers import models as kinds
        from tokenizers import normalizers, trainers

        trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[*special, *(f"<0x{one:02X}>" for one in range(256))])
        model = kinds.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
        made = _trained(model, trainer, normalizer=normalizers.Replace(" ", "▁"))
        merges = [tuple(pair) for pair in made["merges"]]
        getattr(transformers, cls)(vocab=made["vocab"], merges=merges).save_pretrained(folder)

    return make


def _words(folder: Path) -> None:
    from tokenizers import models as kinds
    from tokenizers import pre_tokenizers, trainers
    from transformers import BertTokenizer

    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    made = _trained(kinds.WordPiece(unk_token="[UNK]"), trainer, pre_tokenizer=pre_tokenizers.BertPreTokenizer())
    BertTokenizer(vocab=made["vocab"]).save_pretrained(folder)


def _unigram(folder: Path) -> None:
    from tokenizers import models as kinds
    from tokenizers import pre_tokenizers, trainers
    from transformers import T5Tokenizer

    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>")
    made = _trained(kinds.Unigram(), trainer, pre_tokenizer=pre_tokenizers.Metaspace())
    T5Tokenizer(vocab=[tuple(piece) for piece in made["vocab"]], extra_ids=10).save_pretrained(folder)


def _sentencepiece(folder: Path) -> None:
    (folder / "spiece.model").write_bytes(marian._trained(tuple(source for source, _ in marian.sentences()), spaces=False))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": 0}))


def _before_files_of_templates(folder: Path) -> None:
    _bytes_level("Qwen2Tokenizer", "<|endoftext|>", template=models.CHAT_TEMPLATE)(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": models.CHAT_TEMPLATE}
    config.pop("backend", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").unlink()


def _marian(folder: Path) -> None:
    marian.write_tokenizer(folder, tokenizer_class="MarianTokenizer")


def _single_bytes(folder: Path) -> None:
    from transformers import ByT5Tokenizer

    ByT5Tokenizer().save_pretrained(folder)


KINDS: dict[str, Callable[[Path], None]] = {
    "words": _words, "unigram": _unigram, "Llama": _pieces("LlamaTokenizer", "<unk>", "<s>", "</s>"),
    "Gemma": _pieces("GemmaTokenizer", "<pad>", "<eos>", "<bos>", "<unk>"), "GPT-2": _bytes_level("GPT2Tokenizer", "<|endoftext|>"),
    "RoBERTa": _bytes_level("RobertaTokenizer", "<s>", "<pad>", "</s>", "<unk>", "<mask>"),
    "Qwen": _bytes_level("Qwen2Tokenizer", "<|endoftext|>", template=models.CHAT_TEMPLATE), "a template inside": _before_files_of_templates,
    "SentencePiece": _sentencepiece, "Marian": _marian, "bytes": _single_bytes,
}  # fmt: skip


def _torch(folder: Path) -> Any:
    from handlers.validate.engines.pytorch.torch_causal import TorchEngine

    return TorchEngine(EngineSpec(engine="torch", folder=str(folder)))


@pytest.mark.parametrize("kind", some(KINDS, of=len(KINDS)))
def test_sound_tokenizers_pass_as_they_are_published(kind: str, tmp_path: Path) -> None:
    base, known, graphs = models.make_base(tmp_path / "base", vocab_size=420), tmp_path / "known", tmp_path / "graphs"
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (base / name).unlink()
    KINDS[kind](base)
    live: Any = Told("live", _torch(base), base)
    expected.write(live, base, None, base, known, readable=True, sentences=False)

    def compared(variant: str, engine: Any, folder: Path) -> Compared:
        worker: Any = Told(variant, engine, folder)
        return compare(worker, known, tmp_path / variant, texts=True)

    context = make_context(tmp_path / "job", "pytorch", {"merge": base}, base)
    pytorch.run(context, silent())
    folder = Path(context.staging)
    assert compared("pytorch", _torch(folder), folder).findings == []
    graphs.mkdir()
    if companions.place(make_context(tmp_path / "other", "onnx", {"merge": base}, base), base, graphs).form is None:
        return  # nothing but transformers reads it, as the stage says
    assert compared("onnx", ExportedFolder(EngineSpec(engine="onnx", folder=str(graphs))), graphs).findings == []
    config = json.loads((graphs / "generation_config.json").read_text())
    (graphs / "generation_config.json").write_text(json.dumps(config | {"temperature": 0.1}))
    (finding,) = compared("onnx", ExportedFolder(EngineSpec(engine="onnx", folder=str(graphs))), graphs).findings
    assert "temperature is 0.1 instead of not set" in finding.reason


@pytest.mark.parametrize(
    ("name", "puts"), [("generic", False), ("generic, first token", True), ("llama, first token", True), ("llama, no ends", False)]
)
def test_a_first_token_is_one_that_stands_before_every_text(name: str, puts: bool, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizers.save(name, tmp_path)
    said, canonical = (models.read_json(tmp_path / file) for file in ("tokenizer_config.json", "tokenizer.json"))
    ids = [AutoTokenizer.from_pretrained(tmp_path)(text)["input_ids"] for text in ("", "a b", "def add(a, b):")]
    answered = Transcript(ids=ids, pairs=[], digests=[], texts=[], whole=None, foreign=False)
    assert puts_first(answered, said.get("bos_token"), canonical) is puts
    assert not puts_first(answered, "another", canonical) and not puts_first(answered, None, canonical)
