"""Tokenizers of every class, small, as transformers 5 saves them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from handlers.models.releases.older_readers import make_readable
from tests import models
from tests.older.reader import read_tokenizer
from tests.validate import zoo

Maker = Callable[[], Any]
NAMES = (
    "generic", "generic, encoder", "generic, encoder-decoder", "generic, space before", "generic, space before and said",
    "generic, first token", "generic, list of tokens", "generic, named token", "generic, list and named", "generic, added later",
    "generic, left", "qwen2", "gpt2", "gpt2, space before", "gpt-neox", "cohere", "whisper", "roberta", "bart", "llama",
    "llama, first token", "llama, both ends", "llama, no ends", "codellama", "gemma", "gemma, first token", "nllb", "bert", "bert, cased",
    "distilbert", "t5", "t5, no more tokens", "pegasus", "xlm-roberta", "mbart", "albert", "deberta-v2",
)  # fmt: skip


def save(name: str, folder: Path) -> dict[str, Any]:
    """A tokenizer as it is published, with what transformers 5 read before it was made readable."""
    tokenizer = makers()[name]()
    tokenizer.chat_template = models.CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    before = read_tokenizer(folder)
    (folder / "config.json").write_text("{}")
    make_readable(folder)
    (folder / "config.json").unlink()
    return before


def makers() -> dict[str, Maker]:
    """Name → what makes a tokenizer of each kind, as transformers 5 makes them."""
    import transformers as library
    from tokenizers import processors

    pairs, pieces = _pairs(_byte_level()), _pieces()
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    more = {token: number for number, token in enumerate((*special, *sorted(pairs["vocab"], key=pairs["vocab"].__getitem__)))}
    marked = {"vocab": more, "merges": pairs["merges"]}

    def plain(prefix: bool = False, **options: Any) -> Any:
        tokens = {"pad_token": "<|pad|>", "eos_token": "<|end|>"}
        return library.PreTrainedTokenizerFast(tokenizer_object=_byte_level(prefix), **tokens, **options)

    def first() -> Any:
        """As Llama 3 has it: a class of no family, and the first token by the tokenizer's own template."""
        tokenizer = _byte_level()
        template = processors.TemplateProcessing(
            single="<|pad|> $A", pair="<|pad|> $A <|pad|> $B", special_tokens=[("<|pad|>", tokenizer.token_to_id("<|pad|>"))]
        )
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
        return library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|pad|>", eos_token="<|end|>")

    def added() -> Any:
        tokenizer = plain(extra_special_tokens={"tool_token": "<tool>"})
        tokenizer.add_special_tokens({"extra_special_tokens": ["<x>"]})
        tokenizer.add_tokens(["zz", "<code>"])
        return tokenizer

    def llama(**options: Any) -> Any:
        return library.LlamaTokenizer(**pieces, pad_token="<pad>", **options)

    return {
        "generic": models.make_tokenizer,
        "generic, encoder": zoo.encoder_tokenizer,
        "generic, encoder-decoder": zoo.seq2seq_tokenizer,
        "generic, space before": lambda: plain(True),
        "generic, space before and said": lambda: plain(True, add_prefix_space=True),
        "generic, first token": first,
        "generic, list of tokens": lambda: plain(extra_special_tokens=["<tool>", "</tool>"]),
        "generic, named token": lambda: plain(extra_special_tokens={"tool_token": "<tool>"}),
        "generic, list and named": lambda: plain(extra_special_tokens=["<x>", "</x>"], tool_token="<tool>"),
        "generic, added later": added,
        "generic, left": lambda: plain(padding_side="left", model_max_length=77),
        "qwen2": lambda: library.Qwen2Tokenizer(**pairs, pad_token="<|pad|>", eos_token="<|end|>"),
        "gpt2": lambda: library.GPT2Tokenizer(**pairs, eos_token="<|end|>"),
        "gpt2, space before": lambda: library.GPT2Tokenizer(**pairs, eos_token="<|end|>", add_prefix_space=True),
        "gpt-neox": lambda: library.GPTNeoXTokenizer(**pairs),
        "cohere": lambda: library.CohereTokenizer(**pairs),
        "whisper": lambda: library.WhisperTokenizer(**pairs),
        "roberta": lambda: library.RobertaTokenizer(**marked),
        "bart": lambda: library.BartTokenizer(**marked),
        "llama": llama,
        "llama, first token": lambda: llama(add_bos_token=True),
        "llama, both ends": lambda: llama(add_bos_token=True, add_eos_token=True),
        "llama, no ends": lambda: llama(add_bos_token=False, add_eos_token=False),
        "codellama": lambda: library.CodeLlamaTokenizer(**pieces),
        "gemma": lambda: library.GemmaTokenizer(**pieces, bos_token="<s>", eos_token="</s>"),
        "gemma, first token": lambda: library.GemmaTokenizer(**pieces, bos_token="<s>", eos_token="</s>", add_bos_token=True),
        "nllb": lambda: library.NllbTokenizer(**pieces),
        "bert": lambda: library.BertTokenizer(vocab=_words()),
        "bert, cased": lambda: library.BertTokenizer(vocab=_words(), do_lower_case=False),
        "distilbert": lambda: library.DistilBertTokenizer(vocab=_words()),
        "t5": lambda: library.T5Tokenizer(vocab=_unigram("<pad>", "</s>", "<unk>")),
        "t5, no more tokens": lambda: library.T5Tokenizer(vocab=_unigram("<pad>", "</s>", "<unk>"), extra_ids=0),
        "pegasus": lambda: library.PegasusTokenizer(vocab=_unigram("<pad>", "</s>", "<unk>")),
        "xlm-roberta": lambda: library.XLMRobertaTokenizer(vocab=_unigram("<s>", "<pad>", "</s>", "<unk>")),
        "mbart": lambda: library.MBartTokenizer(vocab=_unigram("<s>", "<pad>", "</s>", "<unk>")),
        "albert": lambda: library.AlbertTokenizer(vocab=_unigram("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")),
        "deberta-v2": lambda: library.DebertaV2Tokenizer(vocab=_unigram("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "<unk>")),
    }


def _byte_level(prefix: bool = False) -> Any:
    from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
    from tokenizers import models as kinds

    tokenizer = Tokenizer(kinds.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=prefix), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=["<|pad|>", "<|end|>"], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(models.TEXTS * 4, trainer)
    return tokenizer


def _pairs(tokenizer: Any) -> dict[str, Any]:
    model = json.loads(tokenizer.to_str())["model"]
    return {"vocab": model["vocab"], "merges": [tuple(one) for one in model["merges"]]}


@functools.cache
def _pieces() -> dict[str, Any]:
    """A vocabulary as SentencePiece makes them: pairs inside of words, single bytes for the rest, which are a small part of it."""
    from pydoc_data.topics import topics

    from tokenizers import Regex, Tokenizer, pre_tokenizers, trainers
    from tokenizers import models as kinds

    tokenizer = Tokenizer(kinds.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    words = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    parts = [pre_tokenizers.Split(Regex(r"\n+"), "isolated"), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation()]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, words])
    special = ["<unk>", "<s>", "</s>", "<pad>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    texts = [*models.TEXTS * 4, *sorted(topics.values())[:60]]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=4000, special_tokens=special, show_progress=False))
    return _pairs(tokenizer)


def _unigram(*special: str) -> list[tuple[str, float]]:
    from tokenizers import Tokenizer, pre_tokenizers, trainers
    from tokenizers import models as kinds

    tokenizer = Tokenizer(kinds.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=list(special), unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(models.TEXTS * 4, trainer)
    return [tuple(one) for one in json.loads(tokenizer.to_str())["model"]["vocab"]]


def _words() -> dict[str, int]:
    letters = [chr(code) for code in range(33, 127)]
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters), "def", "##ing", "ü", "東"]
    return {word: number for number, word in enumerate(known)}
